// Text helpers: concatenation for messages, names, sizes in bytes as people write and read them.
#pragma once

#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace zero3d {

/// The arguments streamed one after the other: concat("rank ", 3, " of ", 4).
template <typename... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

/// The items streamed with `separator` between them.
template <typename Items>
std::string joined(const Items& items, std::string_view separator) {
  std::ostringstream out;
  std::string_view before;
  for (const auto& item : items) out << std::exchange(before, separator) << item;
  return std::move(out).str();
}

/// Appends the arguments, streamed, to a list in words: after `separator` unless it is empty yet.
template <typename... Args>
void append_item(std::string& list, std::string_view separator, const Args&... args) {
  list += concat(list.empty() ? "" : separator, args...);
}

/// ASCII letters made small.
std::string lower_case(std::string_view text);

/// "512MiB", "1.5 GiB", "64k", "1000" -> bytes (KiB/MiB/GiB/TiB and K/M/G/T are powers of 1024,
/// KB/MB/GB/TB of 1000). Throws Error(kInvalid) on anything else, zero and overflow included.
std::int64_t parse_bytes(std::string_view text);

/// 1610612736 -> "1.50 GiB".
std::string format_bytes(std::int64_t bytes);

/// 1234567 -> "1,234,567".
std::string format_count(std::int64_t count);

/// The candidate nearest to `name` by edit distance, or "" when none is near enough to suggest.
std::string nearest_name(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace zero3d
