// Puts a complete file or folder in the place of another.
#pragma once

#include <string>

namespace zero3d {

/// `fresh` takes the name `target`, which is there; what was there has the name `fresh` afterwards.
/// In one step where the system can exchange names. Throws IoError; `target` is then as it was.
void replace_path(const std::string& fresh, const std::string& target);

}  // namespace zero3d
