// Text helpers: concatenation for messages, sizes in bytes as people write and read them.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

namespace zero3d {

/// The arguments streamed one after the other: concat("rank ", 3, " of ", 4).
template <typename... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

/// "512MiB", "1.5 GiB", "64k", "1000" -> bytes (KiB/MiB/GiB/TiB and K/M/G/T are powers of 1024,
/// KB/MB/GB/TB of 1000). Throws Error(kInvalid) on anything else, zero and overflow included.
std::int64_t parse_bytes(std::string_view text);

/// 1610612736 -> "1.50 GiB".
std::string format_bytes(std::int64_t bytes);

/// 1234567 -> "1,234,567".
std::string format_count(std::int64_t count);

/// The candidate nearest to `name` by edit distance, or "" when none is near enough to suggest.
std::string nearest_name(std::string_view name, const std::string_view* candidates,
                         std::size_t count);

}  // namespace zero3d
