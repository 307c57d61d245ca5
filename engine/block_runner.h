// Executes the operations of a step: blocks of a module on the parameters of a ParameterAccess,
// with the contexts that blocks see. Holds what lies between operations: values, gradients, and
// what blocks saved or are to be computed again from, by (block, micro-batch).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "zero3d/device/readback.h"
#include "zero3d/engine/kept_inputs.h"
#include "zero3d/engine/module.h"
#include "zero3d/engine/parameter_access.h"
#include "zero3d/engine/schedule.h"

namespace zero3d {

/// What a micro-batch brings to its operations.
struct BatchInput {
  ConstView tokens;         ///< i32 [B, T] in host memory, read by load_batch.
  ConstView targets;        ///< The same, or undefined.
  RandomKey key;            ///< key.sample is the micro-batch's first row.
  bool trains = true;       ///< Backward follows: blocks save what it needs.
  bool last = false;        ///< Ends the accumulation window.
  float loss_gradient = 1;  ///< Of the mean loss.
};

struct RunnerOptions {
  DType dtype = DType::f32;
  int rank = 0;              ///< In traces.
  int backward_down_to = 0;  ///< The first block with a trainable parameter.
  HostTier host;             ///< For inputs that forward keeps on the host.
};

class BlockRunner {
 public:
  BlockRunner(const Module& module, ParameterAccess& parameters, Device& device, Stream& compute,
              const RunnerOptions& options);

  /// Before the first operation of a micro-batch; what an earlier one of that number left is gone.
  void begin(int micro_batch, const BatchInput& input);
  void run(const Op& op);

  /// The loss of the forward that ended last, fp32 [2]; undefined before the first.
  const Readback& last_loss() const { return last_loss_; }
  /// What the last block of a micro-batch without backward gave; the micro-batch ends.
  Values take_outputs(int micro_batch);

 private:
  struct MicroBatchRun {
    BatchInput input;
    Values values;               ///< Between two forward operations.
    Values gradients;            ///< Between two backward operations.
    Tensor loss;                 ///< Until loss_gradient.
    std::set<int> kept_nothing;  ///< Blocks whose forward did.
    int to_come = 0;             ///< Blocks whose forward ran and whose backward did not.
    bool in_backward = false;
  };
  struct TileGradients {
    std::vector<bool> written;   ///< That the block has taken to write.
    std::vector<Tensor> to_add;  ///< Second gradients of tied parameters, by parameter.
  };
  struct Kept {
    std::vector<std::int64_t> inputs;  ///< Elements of each; undefined ones have none.
    Saved saved;
    std::vector<TileGradients> gradients;  ///< By tile.
  };

  BlockContext context(const Op& op, const MicroBatchRun& run) const;
  void load_batch(MicroBatchRun& run);
  void forward(const Op& op, MicroBatchRun& run);
  void recompute(const Op& op, MicroBatchRun& run);
  void run_block(const Op& op, MicroBatchRun& run, bool saves);
  void finish_forward(MicroBatchRun& run);
  void loss_gradient(MicroBatchRun& run);
  void backward(const Op& op, MicroBatchRun& run);
  void finish_gradients(const BlockContext& context, const std::vector<GradientTarget>& targets,
                        TileGradients& gradients);
  void forget(const Op& op);

  const std::vector<std::unique_ptr<Block>>& blocks_;
  ParameterAccess& parameters_;
  Device& device_;
  Stream& compute_;
  RunnerOptions options_;
  bool is_last_tile(const Op& op) const {
    return op.tile + 1 == tiles_[static_cast<std::size_t>(op.block)];
  }

  std::vector<std::vector<bool>> adds_gradient_;  ///< By block and parameter.
  std::vector<int> tiles_;                        ///< By block.
  std::map<int, MicroBatchRun> running_;
  std::map<std::pair<int, int>, Kept> kept_;  ///< By block and micro-batch.
  KeptInputs kept_inputs_;
  Readback last_loss_;
};

}  // namespace zero3d
