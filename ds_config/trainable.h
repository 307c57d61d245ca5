// What a training run demands of a loaded configuration beyond DeepSpeed's reader: everything the
// engine refuses at start, and what zero3d does not implement. One table says what is implemented.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "zero3d/ds_config/load.h"

namespace zero3d {

struct TrainOptions {
  /// Downgrades what zero3d does not implement, although it changes the result, to warnings.
  bool allow_unsupported = false;
};

struct TrainCheck {
  std::vector<ConfigMessage> errors;
  /// One start-up warning: the sections accepted but not implemented and what each would have done;
  /// "" when there are none.
  std::string not_implemented;
  bool ok() const { return errors.empty(); }
  /// Throws one ConfigError with all errors, as `loaded` shows them.
  void require_ok(const LoadResult& loaded) const;
};

TrainCheck check_trainable(const LoadResult& loaded, const TrainOptions& options = {});

/// Why the value at `path` of a configuration changes nothing in a run of zero3d: another ZeRO
/// stage, a section that is not enabled, nothing to do, or not implemented yet; "" when it does.
std::string why_without_effect(const Config& config, std::string_view path);

}  // namespace zero3d
