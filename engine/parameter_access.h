// Where the operations of a step get parameters and put gradients: a ShardedModel, or the stand-in
// of a dry run.
#pragma once

#include <vector>

#include "zero3d/core/view.h"
#include "zero3d/engine/schedule.h"

namespace zero3d {

struct GradientTarget {
  View view;  ///< In the parameter's shape and dtype; undefined when there is nothing to write now,
              ///< or in this tile.
  bool trains = false;      ///< The parameter is not frozen.
  bool accumulate = false;  ///< It is tied and was written before: add to it.
};

/// Operations come one at a time: acquire, in backward gradients, the work, release.
class ParameterAccess {
 public:
  virtual ~ParameterAccess() = default;
  /// Views of the block's parameters in declared order, whole, for work on the compute stream;
  /// undefined ones for those of other tiles.
  virtual std::vector<ConstView> acquire(const Op& op) = 0;
  /// Before the first gradients of a micro-batch; `last` ends the accumulation window.
  virtual void begin_backward(int micro_batch, bool last) = 0;
  /// Where a backward operation writes, per declared parameter. By the end of the block's last one
  /// every gradient must be written (zero if unused).
  virtual std::vector<GradientTarget> gradients(const Op& op) = 0;
  /// The work of `op` is enqueued on the compute stream: its views end, and what gradients it
  /// finished may be reduced.
  virtual void release(const Op& op) = 0;
  /// Adds a micro-batch's loss, fp32 [2] = (sum, count), to the step's mean.
  virtual void add_loss(const ConstView& loss) = 0;
};

}  // namespace zero3d
