// What the dialect reader needs below its grammar: UTF-8, positions, numbers. Not installed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "zero3d/formats/json_value.h"

namespace zero3d {

/// `text` without blanks, tabs and line breaks around it.
std::string_view strip_blanks(std::string_view text);

/// Offset of the first byte that is not UTF-8; npos when all is.
std::size_t first_bad_utf8(std::string_view text);

/// Appends a code point; half of a surrogate pair becomes U+FFFD.
void append_utf8(std::string& out, std::uint32_t code);

/// Offset to line and column. Cheap for offsets asked in ascending order.
class PositionIndex {
 public:
  explicit PositionIndex(std::string_view text) : text_(text) {}
  TextPosition at(std::size_t offset);

 private:
  std::string_view text_;
  std::size_t offset_ = 0;
  TextPosition place_{1, 1};
};

struct HjsonNumber {
  std::optional<JsonValue> value;  ///< Absent: the token is no number.
  bool too_large = false;          ///< It is one, but beyond what a double holds.
};

/// The dialect's numbers: no +, no leading zeros, digits on both sides of a point; an integral
/// value below 1e10 in magnitude is an integer however it is written.
HjsonNumber parse_hjson_number(std::string_view token);

}  // namespace zero3d
