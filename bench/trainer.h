// One rank of a training run inside a benchmark: a model with weights and tokens drawn at random,
// trained through the public engine, timed step by step to the end of all the work of a step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/engine/engine.h"
#include "zero3d/models/model_config.h"
#include "zero3d/parallel/comm/communicator.h"

namespace zero3d::bench {

struct TrainerOptions {
  ModelConfig model;
  std::string config;  ///< ds_config text; see ds_config().
  std::int64_t sequence = 64;
  int threads = 1;
  std::function<void(TrainSettings&)> change;  ///< Of what the text comes to.
  GridDegrees degrees = {.dp = 0};             ///< dp 0: all ranks are replicas.
};

/// A ds_config with AdamW. `dtype` is fp32 or bf16; `zero` is the text of further members of
/// zero_optimization.
std::string ds_config(std::int64_t micro_batch, const std::string& dtype, int stage,
                      const std::string& zero = "");

/// GPT-2 124M with the given dropout.
ModelConfig gpt2_config(double dropout);

/// Multiply-adds count two. The products of forward and backward of GPT-2 (attention scores not
/// counted), for `tokens` tokens.
double gpt2_product_flop(const ModelConfig& model, std::int64_t tokens);

class Trainer {
 public:
  /// Collective. Takes the communicator of this rank.
  Trainer(const TrainerOptions& options, std::unique_ptr<Communicator> communicator);
  ~Trainer();

  /// Collective: a step that all ranks begin together, until all have ended all they enqueued.
  /// Seconds, the same to within noise on every rank.
  double step();

  Engine& engine() { return *engine_; }
  Device& device() { return *device_; }

 private:
  std::unique_ptr<Communicator> communicator_;
  Mesh mesh_;
  std::unique_ptr<Module> module_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::int32_t> tokens_;
  std::vector<MicroBatch> batches_;
};

/// Each side once in turn, `rounds` times, after one uncounted round: times[side][round].
std::vector<std::vector<double>> in_turns(int rounds,
                                          const std::vector<std::function<double()>>& sides);

/// What must be gained over a peer whose own matrix products run at `share` of oneDNN's rate:
/// `slow` where that is 35 % or less, `fast` at 80 %, where less is left to gain; linear between.
double wanted_factor(double slow, double fast, double share);

double median(std::vector<double> values);
/// The median of a[i] / b[i].
double median_ratio(const std::vector<double>& a, const std::vector<double>& b);
/// "2.53 (2.41-2.60)": the median and the range of a[i] / b[i].
std::string ratio_text(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace zero3d::bench
