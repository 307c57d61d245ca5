// zero3d validate: what becomes of ds_config files, without any device.
#pragma once

#include <string>
#include <vector>

#include "config_options.h"

namespace zero3d::tools {

struct ValidateOptions {
  ConfigOptions config;
  std::vector<std::string> files;
  bool json = false;  ///< One object a line instead of text.
  bool all = false;   ///< Of one file: every value, also those that are defaults.
};

/// Prints what becomes of each file; throws ExitStatus when one is refused.
void validate(const ValidateOptions& options);

}  // namespace zero3d::tools
