#include "zero3d/core/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "zero3d/core/error.h"

namespace zero3d {
namespace {

constexpr int kDigits = 6;  // of a double, as a stream and %g print it

/// Multiplier of a unit suffix in lower case without blanks, 0 when unknown.
double unit_bytes(std::string_view unit) {
  static constexpr std::string_view kPrefixes = "kmgtp";
  if (unit.empty() || unit == "b") return 1;
  const auto position = kPrefixes.find(unit[0]);
  if (position == std::string_view::npos) return 0;
  const std::string_view rest = unit.substr(1);
  const double base = rest == "b" ? 1000.0 : (rest.empty() || rest == "ib" ? 1024.0 : 0.0);
  return base == 0 ? 0 : std::pow(base, static_cast<double>(position) + 1);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitution = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
    }
  }
  return row[b.size()];
}

/// `value` as to_chars writes it with `format`, in `buffer`.
template <std::size_t kSize, typename T, typename... Format>
std::string_view write(char (&buffer)[kSize], T value, Format... format) {
  const auto result = std::to_chars(buffer, buffer + kSize, value, format...);
  return {buffer, static_cast<std::size_t>(result.ptr - buffer)};
}

}  // namespace

TextPiece::TextPiece(long long value) : text_(write(number_, value)) {}
TextPiece::TextPiece(unsigned long long value) : text_(write(number_, value)) {}
TextPiece::TextPiece(double value)  // a NaN has a sign, which says nothing
    : text_(write(number_, std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value,
                  std::chars_format::general, kDigits)) {}

std::string join(std::initializer_list<TextPiece> pieces) {
  std::size_t size = 0;
  for (const TextPiece& piece : pieces) size += piece.text().size();
  std::string all;
  all.reserve(size);
  for (const TextPiece& piece : pieces) all += piece.text();
  return all;
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

std::int64_t parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit;
  for (const char* c = end; c != text.data() + text.size(); ++c) {
    if (*c != ' ') unit += *c;
  }
  const double bytes = error == std::errc() ? number * unit_bytes(lower_case(unit)) : 0;
  if (!(bytes >= 1) || bytes > 9e18) {
    throw_invalid(concat("'", text,
                         "' is not a size in bytes; write for example 512MiB, 2GiB or 1073741824"));
  }
  return static_cast<std::int64_t>(bytes);
}

std::string format_bytes(std::int64_t bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < kUnits.size()) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

std::string format_count(std::int64_t count) {
  std::string digits = std::to_string(count);
  const std::ptrdiff_t first = count < 0 ? 1 : 0;
  for (std::ptrdiff_t i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > first; i -= 3) {
    digits.insert(static_cast<std::size_t>(i), ",");
  }
  return digits;
}

std::string nearest_name(std::string_view name, std::span<const std::string_view> candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) best_distance = distance, best = candidate;
  }
  return best;
}

}  // namespace zero3d
