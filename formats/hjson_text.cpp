#include "zero3d/formats/hjson_text.h"

#include <charconv>
#include <cmath>
#include <locale>
#include <sstream>
#include <string>

#include "zero3d/core/text.h"
#include "zero3d/formats/hjson.h"

namespace zero3d {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

HjsonNumber convert_number(std::string_view token, bool integral) {
  if (integral) {
    std::int64_t value = 0;
    const auto result = std::from_chars(token.data(), token.data() + token.size(), value);
    if (result.ec == std::errc()) return {JsonValue(value), false};
  }
  double value = 0;
  const auto result = std::from_chars(token.data(), token.data() + token.size(), value);
  if (result.ec == std::errc::result_out_of_range) {
    // from_chars does not say which way. Too small is zero, as every reader has it; too large has
    // no value.
    std::istringstream stream{std::string(token)};
    stream.imbue(std::locale::classic());
    stream >> value;
    if (std::abs(value) < 1) return {JsonValue(0), false};
    return {std::nullopt, true};
  }
  // The dialect reads 5e8 and 1.0 as integers, up to ten digits.
  if (!integral && std::abs(value) < 1e10 && value == std::floor(value)) {
    return {JsonValue(static_cast<std::int64_t>(value)), false};
  }
  return {JsonValue(value), false};
}

}  // namespace

std::string_view strip_blanks(std::string_view text) {
  constexpr std::string_view kBlank = " \t\n\r\v\f";
  const auto first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::size_t first_bad_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || i + length > text.size()) return i;
    for (std::size_t k = 1; k < length; ++k) {
      if (!is_continuation(text[i + k])) return i;
    }
    const auto second = static_cast<unsigned char>(text[i + 1]);
    // Overlong forms, surrogates, and what lies beyond U+10FFFF.
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
        (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) {
      return i;
    }
    i += length;
  }
  return std::string_view::npos;
}

void append_utf8(std::string& out, std::uint32_t code) {
  if (code >= 0xD800 && code <= 0xDFFF) code = 0xFFFD;  // half of a pair: no character
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (code >> 6)));
    out.push_back(static_cast<char>(0x80 | (code & 63)));
  } else if (code < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (code >> 12)));
    out.push_back(static_cast<char>(0x80 | ((code >> 6) & 63)));
    out.push_back(static_cast<char>(0x80 | (code & 63)));
  } else {
    out.push_back(static_cast<char>(0xF0 | (code >> 18)));
    out.push_back(static_cast<char>(0x80 | ((code >> 12) & 63)));
    out.push_back(static_cast<char>(0x80 | ((code >> 6) & 63)));
    out.push_back(static_cast<char>(0x80 | (code & 63)));
  }
}

HjsonNumber parse_hjson_number(std::string_view token) {
  std::size_t i = token.substr(0, 1) == "-" ? 1 : 0;
  const auto digits = [&] {
    const std::size_t from = i;
    while (i < token.size() && is_digit(token[i])) ++i;
    return i - from;
  };
  const std::size_t first = i;
  const std::size_t count = digits();
  if (count == 0 || (count > 1 && token[first] == '0')) return {};
  bool integral = true;
  if (i < token.size() && token[i] == '.') {
    ++i;
    if (digits() == 0) return {};
    integral = false;
  }
  if (i < token.size() && (token[i] == 'e' || token[i] == 'E')) {
    ++i;
    if (i < token.size() && (token[i] == '+' || token[i] == '-')) ++i;
    if (digits() == 0) return {};
    integral = false;
  }
  if (i != token.size()) return {};
  return convert_number(token, integral);
}

TextPosition PositionIndex::at(std::size_t offset) {
  if (offset < offset_) *this = PositionIndex(text_);
  for (; offset_ < offset && offset_ < text_.size(); ++offset_) {
    if (text_[offset_] == '\n') {
      ++place_.line;
      place_.column = 1;
    } else if (!is_continuation(text_[offset_])) {
      ++place_.column;
    }
  }
  return place_;
}

std::string locate(std::string_view text, std::string_view name, TextPosition position,
                   std::string_view message) {
  std::string out = concat(name, ":", position.line, ":", position.column, ": ", message);
  std::size_t begin = text.substr(0, 3) == "\xEF\xBB\xBF" ? 3 : 0;
  for (int line = 1; line < position.line; ++line) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) return out;
    begin = end + 1;
  }
  std::string_view line = text.substr(begin, text.find_first_of("\r\n", begin) - begin);
  // A window of the line around the column, in characters; control characters as blanks, and what
  // is no ASCII as "?" where the line is no UTF-8.
  constexpr int kBefore = 60;
  constexpr int kWidth = 100;
  const bool decodes = first_bad_utf8(line) == std::string_view::npos;
  std::string shown;
  std::string marker;
  int column = 0;
  for (const char c : line) {
    const bool continues = decodes && is_continuation(c);
    if (!continues) ++column;
    if (column <= position.column - kBefore) continue;
    if (column > position.column - kBefore + kWidth) break;
    const auto byte = static_cast<unsigned char>(c);
    shown.push_back(byte < 0x20 || c == 0x7f ? ' ' : byte >= 0x80 && !decodes ? '?' : c);
    if (!continues && column < position.column) marker.push_back(' ');
  }
  if (strip_blanks(shown).empty()) return out;
  return concat(out, "\n    ", shown, "\n    ", marker, "^");
}

}  // namespace zero3d
