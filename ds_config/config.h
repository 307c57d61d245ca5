// A ds_config with every value resolved: all known keys, in a fixed order, named as in the file;
// docs/config.md, generated from this folder's tables, says what they mean. A Config from load.h is
// complete: the batch triple, overlap_comm and the degrees are resolved too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "zero3d/core/dtype.h"
#include "zero3d/formats/json_value.h"
#include "zero3d/optim/parameters.h"

namespace zero3d {

/// ranks = dp x tp x pp (dp = outer data-parallel degree x sp when sequence parallel).
struct ParallelDegrees {
  int ranks = 1;
  int dp = 1;  ///< Data-parallel replicas: the divisor of train_batch_size.
  int tp = 1;
  int pp = 1;
  int sp = 1;
};

struct Config {
  JsonValue values;  ///< Every known key; absent sections without a default are null.
  ParallelDegrees degrees;

  /// The value at "section.key"; null inside a section that is null. Throws Error(kInvalid) for a
  /// key that no ds_config has.
  const JsonValue& at(std::string_view path) const;
  /// True or false; null is false.
  bool flag(std::string_view path) const;
  /// Throw Error(kInvalid) when the value is of another type, null included.
  std::int64_t integer(std::string_view path) const;
  double number(std::string_view path) const;
  const std::string& text(std::string_view path) const;
  bool has(std::string_view path) const { return !at(path).is_null(); }
  void set(std::string_view path, JsonValue value);

  int stage() const { return static_cast<int>(integer("zero_optimization.stage")); }
  /// Whether zero_optimization.`section` ("offload_param", "offload_optimizer") names a device.
  bool offloads(std::string_view section) const;
  bool offloads_to_drive(std::string_view section) const;
  /// Whether anything is, at this stage.
  bool uses_drives() const;
};

/// A value of optimizer.params or scheduler.params; nothing for an object, or a list of other
/// things than numbers.
std::optional<ParameterValue> parameter_value(const JsonValue& value);

/// "fp16", "float16", "half", "torch.float16", ... -> DType; nothing for other spellings (int8
/// included: DeepSpeed knows it, training does not).
std::optional<DType> parse_ds_dtype(std::string_view text);

/// Parameters and activations: fp16 or bf16 when enabled, else fp32.
DType model_dtype(const Config& config);
/// Of gradient reductions: communication_data_type; by default fp32, since accumulation is (a
/// listed difference: DeepSpeed's default is the model's dtype).
DType communication_dtype(const Config& config);
/// Of the gradients added up over micro-batches: data_types.grad_accum_dtype, fp32 by default.
DType accumulation_dtype(const Config& config);
/// Of the weights the optimizer updates.
DType master_dtype(const Config& config);

}  // namespace zero3d
