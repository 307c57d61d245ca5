// Text helpers: concatenation for messages, names, sizes in bytes as people write and read them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace zero3d {

/// One argument of concat, as a stream would print it. Refers to a text that it is made of.
class TextPiece {
 public:
  explicit TextPiece(std::string_view text) : text_(text) {}
  explicit TextPiece(const char* text) : text_(text) {}
  explicit TextPiece(char c) : number_{c}, text_(number_, 1) {}
  explicit TextPiece(bool value) : TextPiece(value ? '1' : '0') {}
  explicit TextPiece(int value) : TextPiece(static_cast<long long>(value)) {}
  explicit TextPiece(long value) : TextPiece(static_cast<long long>(value)) {}
  explicit TextPiece(long long value);
  explicit TextPiece(unsigned value) : TextPiece(static_cast<unsigned long long>(value)) {}
  explicit TextPiece(unsigned long value) : TextPiece(static_cast<unsigned long long>(value)) {}
  explicit TextPiece(unsigned long long value);
  explicit TextPiece(double value);  ///< Six significant digits.
  explicit TextPiece(const void*) = delete;  // not a bool
  explicit TextPiece(signed char) = delete;
  explicit TextPiece(unsigned char) = delete;  // a letter or a number: the caller says
  TextPiece(const TextPiece&) = delete;
  TextPiece& operator=(const TextPiece&) = delete;

  std::string_view text() const { return text_; }

 private:
  char number_[24];
  std::string_view text_;
};

std::string join(std::initializer_list<TextPiece> pieces);

/// The arguments one after the other: concat("rank ", 3, " of ", 4).
template <typename... Args>
std::string concat(const Args&... args) {
  return join({TextPiece(args)...});
}

/// The items with `separator` between them.
template <typename Items>
std::string joined(const Items& items, std::string_view separator) {
  std::string all;
  std::string_view before;
  for (const auto& item : items) all += concat(std::exchange(before, separator), item);
  return all;
}

/// Appends the arguments to a list in words: after `separator` unless it is empty yet.
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
