// The reference of ds_config keys as Markdown, from the same descriptions that read the file.
#pragma once

#include <string>

namespace zero3d {

/// The text of docs/config.md.
std::string config_reference();

}  // namespace zero3d
