// Runs a module's blocks on sharded parameters: forward and backward of one micro-batch, with the
// contexts blocks see.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3d/engine/module.h"
#include "zero3d/engine/sharded_model.h"

namespace zero3d {

class BlockRunner {
 public:
  BlockRunner(const Module& module, ShardedModel& model);

  /// Runs all blocks. `saves` keeps what backward needs; `key.sample` is the micro-batch's first
  /// row.
  Values forward(Values inputs, const RandomKey& key, bool training, bool saves);
  /// Backward of the last forward that saved, from the gradient of the mean loss (fp32 [1]).
  void backward(Tensor loss_gradient, const RandomKey& key);

 private:
  BlockContext context(const RandomKey& key, bool training, bool saves) const;
  void run_backward(int block, Values& gradients, const RandomKey& key);

  const Module& module_;
  ShardedModel& model_;
  std::vector<Saved> saved_;
  bool has_saved_ = false;
  int backward_down_to_ = 0;  ///< The first block with a trainable parameter.
};

}  // namespace zero3d
