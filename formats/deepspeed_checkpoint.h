// Checkpoints that DeepSpeed wrote, as a source: its ZeRO stages 0 to 3 under any number of ranks,
// those of pipelines, and universal ones. Every parameter is whole here, by its global name, and
// its master weights and optimizer states are read by ranges of elements from where they lie; no
// file is read whole. Files may come from anywhere (torch_archive.h). Reads are safe from several
// threads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/view.h"

namespace zero3d {

struct DeepspeedParameter {
  std::string name;  ///< In pipelines "<layer>.<name in the layer>", "tied_modules.<key>.<name>".
  std::vector<std::int64_t> shape;
  bool frozen = false;    ///< Neither masters nor states: what is read is the model's weight.
  int group = -1;         ///< Of the optimizer; -1: none has it.
  std::int64_t step = 0;  ///< Updates that its states have behind them.
  std::vector<std::string> states;  ///< "exp_avg", "exp_avg_sq": with an element per element.

  std::int64_t numel() const;
};

/// A parameter group of the optimizer.
struct DeepspeedGroup {
  std::int64_t step = 0;  ///< Updates applied.
  /// Its numbers by name: "lr", "weight_decay", "betas" (two), "momentum".
  std::map<std::string, std::vector<double>> values;
};

/// The state of the fp16 loss scaler; a static one has but a scale.
struct DeepspeedLossScale {
  bool dynamic = false;
  double scale = 1;
  std::int64_t iteration = 0;       ///< Steps that it has seen.
  std::int64_t last_overflow = -1;  ///< The iteration of it; -1: none.
  std::int64_t hysteresis = 1;      ///< Overflows left before the scale falls.
  double factor = 2;
  std::int64_t window = 1000;
  double min_scale = 1;
};

struct DeepspeedFacts {
  std::string folder;      ///< The tag's.
  std::string ds_version;  ///< "" when the files do not say.
  bool universal = false;
  bool pipeline = false;
  int zero_stage = 0;
  int zero_ranks = 1;  ///< Over which ZeRO divided the states.
  int pipeline_stages = 1;
  int tensor_ranks = 1;
  std::optional<DType> dtype;  ///< Of the model's weights; empty when no file says.
  std::int64_t global_steps = 0;
  std::int64_t global_samples = 0;
  std::int64_t skipped_steps = 0;
  std::optional<double> clip_grad;
  std::optional<DeepspeedLossScale> loss_scale;
  std::vector<DeepspeedGroup> groups;
  /// The numbers of the scheduler's state by name ("last_batch_iteration"); empty: it had none.
  std::map<std::string, double> scheduler;
  /// Names of one parameter: alias -> the name that parameters() has.
  std::map<std::string, std::string> aliases;
  std::vector<std::string> remarks;  ///< What is there and is not read.
};

/// Whether `path` is one: a folder with "latest" (or "latest_universal"), or a tag's folder.
bool is_deepspeed_checkpoint(const std::string& path);

class DeepspeedCheckpoint {
 public:
  /// The name under which read() has master weights, as universal checkpoints name them. Where a
  /// parameter has none (it is frozen, or no optimizer was saved) they are the model's weights.
  static constexpr std::string_view kMaster = "fp32";

  /// Opens what is_deepspeed_checkpoint() takes. Throws IoError with what is missing, damaged or
  /// does not fit together (a file of a rank, a parameter whose pieces leave a gap), and for what
  /// is not read: tensor parallelism but in universal form, mixtures of experts, states that were
  /// left on drives.
  explicit DeepspeedCheckpoint(const std::string& path);
  DeepspeedCheckpoint(DeepspeedCheckpoint&&) noexcept;
  DeepspeedCheckpoint& operator=(DeepspeedCheckpoint&&) noexcept;
  ~DeepspeedCheckpoint();

  const DeepspeedFacts& facts() const;
  /// In the order of the files, each once.
  const std::vector<DeepspeedParameter>& parameters() const;
  /// By name or alias; null when there is none.
  const DeepspeedParameter* find(std::string_view name) const;

  /// Writes elements [first, first + dst.numel()) of kMaster or a state of a parameter of this
  /// checkpoint, in row-major order, to host memory of a floating dtype (rounded once where it is
  /// another one). Throws IoError.
  void read(const DeepspeedParameter& parameter, std::string_view what, std::int64_t first,
            const View& dst) const;
  /// Reads every file and holds it to its checksums. Throws IoError.
  void verify() const;

 private:
  std::unique_ptr<class DeepspeedContents> contents_;
};

}  // namespace zero3d
