// Executes the operations of a step: blocks of a module on the parameters of a ParameterAccess,
// with the contexts that blocks see. Holds what lies between operations: values, gradients, and
// what blocks saved or are to be computed again from, by (block, micro-batch). What crosses from
// stage to stage of a pipeline goes through StageLinks.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "zero3d/device/event.h"
#include "zero3d/device/readback.h"
#include "zero3d/engine/kept_inputs.h"
#include "zero3d/engine/module.h"
#include "zero3d/engine/parameter_access.h"
#include "zero3d/engine/pipeline/border.h"
#include "zero3d/engine/pipeline/stage_links.h"
#include "zero3d/engine/schedule.h"

namespace zero3d {

/// What a micro-batch brings to its operations.
struct BatchInput {
  ConstView tokens;                  ///< i32 [B, T] in host memory, read by load_batch.
  ConstView targets;                 ///< The same, or undefined.
  RandomKey key;                     ///< key.sample is the micro-batch's first row.
  bool trains = true;                ///< Backward follows: blocks save what it needs.
  bool last = false;                 ///< Ends the accumulation window.
  float loss_gradient = 1;           ///< Of the mean loss.
  const Borders* borders = nullptr;  ///< Between stages, for a batch of this shape.
  bool whole = false;  ///< Not cut over the ranks that share sequences: each does all of it.
};

struct RunnerOptions {
  DType dtype = DType::f32;
  int rank = 0;                 ///< In traces.
  StageBlocks stage;            ///< The blocks of the module that run here.
  HostTier host = {};           ///< For inputs that forward keeps on the host.
  StageLinks* links = nullptr;  ///< Where the stage has neighbours.
  TensorParallel tp = {};
  bool splits_kept = false;  ///< Of kept inputs, over the ranks of `tp`.
  /// `tp` where no backward follows: sequences are of any length there, and so not split.
  TensorParallel evaluation_tp = {};
  SequenceParallel sp = {};
};

class BlockRunner {
 public:
  BlockRunner(const Module& module, ParameterAccess& parameters, Device& device, Stream& compute,
              const RunnerOptions& options);
  ~BlockRunner();

  /// Before the first operation of a micro-batch; what an earlier one of that number left is gone.
  void begin(int micro_batch, const BatchInput& input);
  void run(const Op& op);

  /// The loss of the forward that ended last, fp32 [2]; undefined before the first.
  const Readback& last_loss() const { return last_loss_; }
  /// What the last block of a micro-batch without backward gave; the micro-batch ends.
  Values take_outputs(int micro_batch);
  /// What lies between two forward, and two backward operations of a micro-batch.
  const Values& values(int micro_batch) const { return running_.at(micro_batch).values; }
  const Values& gradients(int micro_batch) const { return running_.at(micro_batch).gradients; }

 private:
  /// On its way from another stage.
  struct Arrival {
    Values values;
    Event arrived;
  };
  struct MicroBatchRun {
    BatchInput input;
    SequenceParallel sp;                   ///< For samples of its length.
    Values values;                         ///< Between two forward operations.
    Values gradients;                      ///< Between two backward operations.
    std::map<int, Arrival> coming_values;  ///< By chunk.
    std::map<int, Arrival> coming_gradients;
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
  Tensor load(const ConstView& source, const MicroBatchRun& run);
  const Border& border(int block, const MicroBatchRun& run) const;
  void receive(const Op& op, MicroBatchRun& run);
  void send(const Op& op, MicroBatchRun& run);
  void take_arrivals(const Op& op, MicroBatchRun& run);
  static void abandon_arrivals(MicroBatchRun& run);
  void forward(const Op& op, MicroBatchRun& run);
  void recompute(const Op& op, MicroBatchRun& run);
  void run_block(const Op& op, MicroBatchRun& run, bool saves);
  void finish_forward(MicroBatchRun& run);
  void loss_gradient(MicroBatchRun& run);
  void backward(const Op& op, MicroBatchRun& run);
  void finish_gradients(const BlockContext& context, const std::vector<GradientTarget>& targets,
                        TileGradients& gradients);
  void forget(const Op& op);
  bool gives_back(const Op& op) const;
  void end_if_over(int micro_batch);

  std::vector<Block*> blocks_;  ///< Of the stage.
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
