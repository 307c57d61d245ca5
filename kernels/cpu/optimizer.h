// Update loops on the CPU: the bodies behind kernels/optimizer.h, called from a stream's task, and
// the loops per instruction set that they spread over the device's threads.
#pragma once

#include "zero3d/kernels/args/optimizer.h"

namespace zero3d::kernels::cpu {

/// In chunks that do not depend on the number of threads. For every struct of constants of
/// kernels/optimizer.h but LambStepConstants.
template <typename Constants>
void update(const UpdateArgs<Constants>& args);
void lamb_step(const LambStepArgs& args);

/// Elements [begin, end) of one slice.
template <typename Constants>
using UpdateLoop = void (*)(const Constants&, const ElementArrays&, std::int64_t begin,
                            std::int64_t end);

struct UpdateLoops {
  UpdateLoop<AdamConstants> adam_decoupled;
  UpdateLoop<AdamConstants> adam_classic;
  UpdateLoop<LionConstants> lion;
  UpdateLoop<AdagradConstants> adagrad;
  UpdateLoop<SgdConstants> sgd;           ///< Without a momentum buffer.
  UpdateLoop<SgdConstants> sgd_momentum;  ///< With one.
  UpdateLoop<RmspropConstants> rmsprop;
  UpdateLoop<RmspropConstants> rmsprop_momentum;
  UpdateLoop<RmspropConstants> rmsprop_centered;
  UpdateLoop<RmspropConstants> rmsprop_centered_momentum;
  UpdateLoop<LambConstants> lamb;
  UpdateLoop<DescentConstants> descent;
  UpdateLoop<BlendConstants> blend;
  UpdateLoop<NullConstants> null_update;
};

/// Of an instruction set that choose_isa() returned.
const UpdateLoops& update_loops(Isa isa);

}  // namespace zero3d::kernels::cpu
