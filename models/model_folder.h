// Folders that are given as a model's and are none. Internal to models.
#pragma once

#include <string>

namespace zero3d {

inline constexpr const char* kModelConfigFile = "config.json";

/// Throws IoError that says what a folder without config.json looks like, and what to give instead;
/// nothing where it has one.
void refuse_other_folder(const std::string& folder);

}  // namespace zero3d
