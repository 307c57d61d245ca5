// Loads a ds_config: reads the dialect, resolves "auto" from options and the model, converts every
// key, applies the cross-field rules, and reports all faults of a file at once. Needs no devices.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zero3d/ds_config/config.h"

namespace zero3d {

/// What stands in for "auto", as the Hugging Face integration takes it from its own arguments. A
/// value stated in the file that differs from a given option is an error; an absent key keeps its
/// default.
struct AutoValues {
  std::optional<double> lr;
  std::optional<double> weight_decay;
  std::optional<std::pair<double, double>> betas;
  std::optional<double> eps;
  std::optional<std::int64_t> warmup_steps;
  std::optional<std::int64_t> micro_batch;
  std::optional<std::int64_t> accumulation;
  std::optional<std::int64_t> global_batch;
  std::optional<double> max_grad_norm;
  std::vector<std::string> precision;  ///< "fp32", "fp16", "bf16"; empty: not given.
  std::optional<std::int64_t> steps;
  bool steps_must_match =
      true;  ///< False: `steps` is only the run's length, and a stated total may differ from it.
  std::optional<std::int64_t> hidden_size;  ///< Of the model.
};

struct LoadOptions {
  int ranks = 1;          ///< World size.
  std::optional<int> tp;  ///< Override the degrees of the file.
  std::optional<int> pp;
  std::optional<int> sp;
  std::optional<std::string> schedule;  ///< Override the keys of zero3d for pipelines.
  std::optional<int> virtual_stages;
  std::optional<std::string> partition;
  std::optional<int> recompute;  ///< Overrides pipeline.activation_checkpoint_interval.
  AutoValues autos;
  bool strict = false;  ///< Unknown top-level keys are errors, not warnings.
};

struct ConfigMessage {
  std::string path;     ///< JSON path, "" when the text does not parse.
  std::string message;  ///< Alone tells what to change.
  TextPosition position;
  std::string text() const;  ///< "path: message".
};

/// Where a resolved value comes from.
enum class ValueSource { default_value, file, auto_value, command_line, derived };
std::string_view name_of(ValueSource source);

struct Provenance {
  ValueSource source = ValueSource::default_value;
  std::string note;  ///< "--lr", "hidden size", "line 12", ...
};

struct LoadResult {
  std::string name;  ///< The file, or what stood for it.
  std::string text;  ///< What was read.
  Config config;     ///< Valid only if ok().
  std::vector<ConfigMessage> errors;
  std::vector<ConfigMessage> warnings;
  /// What DeepSpeed's reader takes but its engine, or zero3d, refuses at start: warnings for
  /// validate, errors for train (check_trainable).
  std::vector<ConfigMessage> train_errors;
  /// What the engine will log as a warning when it starts.
  std::vector<ConfigMessage> train_warnings;
  /// Every value that is not a plain default, by JSON path of the resolved configuration.
  std::map<std::string, Provenance> provenance;
  bool ok() const { return errors.empty(); }
  /// Throws one ConfigError carrying all errors when there are any.
  void require_ok() const;
  /// "file:line:column: path: message", and the line of the file with a mark under the column.
  std::string show(const ConfigMessage& entry) const;
};

/// `source` is a path, JSON text (its first non-blank character is '{'), or URL-safe base64 of it.
LoadResult load_config(std::string_view source, const LoadOptions& options);
LoadResult load_config_file(const std::string& path, const LoadOptions& options);
/// `name` stands for the file in messages.
LoadResult load_config_text(std::string_view text, std::string_view name,
                            const LoadOptions& options);

/// The values of `config` without nulls and deprecated keys: a ds_config file that loads again, to
/// the same Config. What a run writes beside its results.
JsonValue loadable_json(const Config& config);
/// A stable fingerprint of the resolved configuration (16 hexadecimal digits): ranks compare it at
/// start to find that they disagree.
std::string config_fingerprint(const Config& config);

}  // namespace zero3d
