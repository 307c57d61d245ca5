// The rules of ds_config that look at more than one key, in the order DeepSpeed applies them.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "zero3d/ds_config/reader.h"

namespace zero3d::config {

/// A configuration as stated and as read, while the rules go over it.
struct Draft {
  Reader& reader;
  JsonValue& root;
  Config& config;

  // Messages about the key `path`, placed where its section's member stands, else the section.
  void error(const std::string& path, std::string message) const;
  void warning(const std::string& path, std::string message) const;
  void train_error(const std::string& path, std::string message) const;
};

/// Where the first two names of `path` lead in `root`, as far as it goes; else 0:0.
TextPosition position_of(const JsonValue& root, std::string_view path);

/// Refuses keys that DeepSpeed removed, whatever their value, and says what replaces them; renames
/// the section bfloat16. Works on the tree, before it is read.
void replace_old_keys(Reader& reader, JsonValue& root);

/// Replaces "auto" in the tree before it is read, by the rules of the Hugging Face integration:
/// values from the options, sizes from the model's hidden size. Also compares what the file states
/// with the options given, as that integration does. `replicas` is dp, the divisor of
/// train_batch_size. What no option supplies becomes one error, and is returned.
std::set<std::string> resolve_autos(Reader& reader, JsonValue& root, const AutoValues& values,
                                    int replicas);

/// dp, tp, pp and sp of `ranks`, from the options or the tree.
ParallelDegrees resolve_degrees(Reader& reader, const JsonValue& root, const LoadOptions& options);
/// The configuration, as read, says the degrees where DeepSpeed's keys are, whoever gave them; what
/// the file says otherwise is a warning.
void state_degrees(const Draft& draft, const LoadOptions& options);

/// Deprecated keys into their replacements, and the rules inside zero_optimization.
void finish_zero(const Draft& draft);
/// What the stage at hand cannot bear or does not use.
void check_zero(const Draft& draft);
/// zenflow and what stands beside it.
void check_zenflow(const Draft& draft);
/// Steps of zenflow.update_interval "auto".
inline constexpr std::int64_t kAutoUpdateInterval = 4;
void finish_precision(const Draft& draft);
/// Whichever of the batch triple is absent, and whether the three fit dp.
void finish_batch(const Draft& draft);
/// The rest: reductions, curriculum, wall_clock_breakdown, keys without effect at this stage.
void finish_rest(const Draft& draft);
/// Types and parameters of optimizer and scheduler, as their constructors will take them.
void check_optimizer(const Draft& draft);
void check_scheduler(const Draft& draft);
/// The rest that only a run would tell, by making of the settings what the engine makes of them.
/// For a configuration without errors; adds to the train errors and train warnings of `result`.
void check_training(const Draft& draft, LoadResult& result);

}  // namespace zero3d::config
