// Texts from outside, as they may stand in messages: a key or a name may hold anything.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace zero3d {

/// Control characters as "\\x1b", new lines too unless `lines` are kept; of more than `limit` bytes
/// only the first.
std::string printable(std::string_view text, std::size_t limit, bool lines = false);

}  // namespace zero3d
