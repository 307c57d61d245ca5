// What git-lfs leaves in the place of a file that was not fetched.
#pragma once

#include <string_view>

namespace zero3d {

inline bool is_lfs_pointer(std::string_view text) {
  return text.starts_with("version https://git-lfs");
}
inline constexpr std::string_view kIsLfsPointer =
    "is a git-lfs pointer, not the file itself; run git lfs pull where it came from";

}  // namespace zero3d
