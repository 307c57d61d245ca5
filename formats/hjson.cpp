#include "zero3d/formats/hjson.h"

#include <charconv>
#include <exception>
#include <optional>
#include <string>
#include <unordered_map>

#include "zero3d/core/text.h"
#include "zero3d/formats/hjson_text.h"

namespace zero3d {

namespace {

constexpr std::string_view kPunctuators = "{}[],:";

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_eol(char c) { return c == '\n' || c == '\r'; }

class Parser {
 public:
  Parser(std::string_view text, std::string_view name, std::vector<HjsonProblem>& duplicates,
         const HjsonOptions& options)
      : text_(text), name_(name), duplicates_(duplicates), options_(options), positions_(text) {}

  JsonValue document() {
    if (text_.size() > options_.max_bytes) {
      const std::string message = concat("the text has ", text_.size(), " bytes, more than the ",
                                         options_.max_bytes, " a configuration may have");
      throw HjsonError({}, message, concat(name_, ": ", message));
    }
    const std::size_t bad = first_bad_utf8(text_);
    if (bad != std::string_view::npos) {
      fail(bad, concat("byte ", bad, " is not UTF-8; save the file in that encoding"));
    }
    if (text_.substr(0, 3) == "\xEF\xBB\xBF") at_ = 3;
    const std::size_t start = at_;
    const char first = next();
    if (first == '\0' && at_ == text_.size()) return JsonValue::make_object();
    JsonValue root = first == '{' || first == '[' ? value() : braceless(start);
    next();
    if (at_ != text_.size()) {
      fail(at_, concat("the text goes on after the end of the configuration: the braces close too "
                       "early, or a second object follows; remove what is not part of it"));
    }
    return root;
  }

 private:
  [[noreturn]] void fail(std::size_t offset, std::string_view message) {
    const TextPosition place = positions_.at(offset);
    throw HjsonError(place, std::string(message), locate(text_, name_, place, message));
  }

  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  /// Skips blanks and comments; the character there, '\0' at the end.
  char next() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (is_space(c)) {
        ++at_;
      } else if (c == '#' || (c == '/' && peek(1) == '/')) {
        while (at_ < text_.size() && !is_eol(text_[at_])) ++at_;
      } else if (c == '/' && peek(1) == '*') {
        const std::size_t end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos) fail(at_, "this comment never ends: close it with */");
        at_ = end + 2;
      } else {
        return c;
      }
    }
    return '\0';
  }

  bool at_end() const { return at_ >= text_.size(); }

  /// A root object without braces, or else a single value.
  JsonValue braceless(std::size_t start) {
    const std::size_t known = duplicates_.size();
    try {
      return object(true);
    } catch (const HjsonError&) {
      const std::exception_ptr first = std::current_exception();
      duplicates_.resize(known);
      at_ = start;
      depth_ = 0;
      path_.clear();
      try {
        JsonValue single = scalar_root();
        next();
        if (at_end()) return single;
      } catch (const HjsonError&) {
      }
      std::rethrow_exception(first);
    }
  }

  JsonValue scalar_root() {
    next();
    return value();
  }

  JsonValue value() {
    const char c = next();
    const std::size_t begin = at_;
    const TextPosition place = positions_.at(begin);
    JsonValue result;
    if (c == '"' || c == '\'') {
      result = JsonValue(text_.substr(at_, 3) == "'''" ? multiline_string() : quoted_string());
    } else if (c == '{' || c == '[') {
      if (++depth_ > options_.max_depth) {
        fail(begin, concat("more than ", options_.max_depth, " levels of nesting"));
      }
      ++at_;
      result = c == '{' ? object(false) : array();
      --depth_;
    } else {
      result = quoteless();
    }
    result.set_position(place);
    return result;
  }

  JsonValue object(bool without_braces) {
    JsonValue result = JsonValue::make_object();
    std::unordered_map<std::string, std::size_t> seen;
    if (!without_braces && next() == '}') {
      ++at_;
      return result;
    }
    const std::size_t opened = at_;
    while (true) {
      next();
      const std::size_t begin = at_;
      const TextPosition place = positions_.at(begin);
      std::string name = key(opened);
      if (next() != ':') fail(at_, concat("expected ':' after the key \"", name, "\""));
      ++at_;
      const std::size_t outer = path_.size();
      if (outer > 0) path_.push_back('.');
      path_ += name;
      JsonValue item = value();
      add_member(result, seen, std::move(name), place, std::move(item));
      path_.resize(outer);
      if (next() == ',') {
        ++at_;
        next();
      }
      if (without_braces ? at_end() : peek() == '}' && !at_end()) {
        if (!without_braces) ++at_;
        return result;
      }
    }
  }

  void add_member(JsonValue& object, std::unordered_map<std::string, std::size_t>& seen,
                  std::string name, TextPosition place, JsonValue item) {
    auto& members = object.members();
    const auto [entry, fresh] = seen.emplace(name, members.size());
    if (fresh) {
      members.push_back({std::move(name), place, std::move(item)});
      return;
    }
    JsonMember& before = members[entry->second];
    if (duplicates_.size() < options_.max_duplicates) {
      duplicates_.push_back(
          {path_, place,
           concat("the key \"", name, "\" stands twice in one object, on lines ",
                  before.name_position.line, " and ", place.line, "; remove one of them")});
    }
    before.value = std::move(item);
  }

  /// What has no end, or a text that took its brackets.
  [[noreturn]] void fail_open(std::size_t opened, const char* message) {
    if (!swallowed_) fail(opened, message);
    fail(*swallowed_,
         "a text without quotes goes on to the end of its line, and takes the brackets there with "
         "it; put quotes around it (NaN and Infinity are no numbers here)");
  }

  JsonValue array() {
    JsonValue result = JsonValue::make_array();
    const std::size_t opened = at_ - 1;
    while (true) {
      const char c = next();
      if (at_end()) fail_open(opened, "this list never ends: close it with ]");
      if (c == ']') break;
      result.push_back(value());
      if (next() == ',') ++at_;
    }
    ++at_;
    return result;
  }

  std::string key(std::size_t opened) {
    const char first = peek();
    if (!at_end() && (first == '"' || first == '\'')) return quoted_string();
    const std::size_t begin = at_;
    std::size_t end = std::string_view::npos;
    for (;; ++at_) {
      if (at_end()) {
        fail_open(depth_ > 0 ? opened : begin,
                  "the text ends inside the object that begins here: close it with }");
      }
      const char c = text_[at_];
      if (c == ':') break;
      if (is_space(c)) {
        if (end == std::string_view::npos) end = at_;
      } else if (kPunctuators.find(c) != std::string_view::npos) {
        fail(begin, concat("found '", c,
                           "' where a key was expected; check for a superfluous or "
                           "missing brace, or put quotes around the key"));
      } else if (end != std::string_view::npos) {
        fail(end,
             "a key without quotes ends at a blank, and ':' must follow; put quotes around a key "
             "that has blanks");
      }
    }
    if (at_ == begin) fail(begin, "found ':' without a key before it");
    return std::string(text_.substr(begin, (end == std::string_view::npos ? at_ : end) - begin));
  }

  std::string quoted_string() {
    const std::size_t begin = at_;
    const char quote = text_[at_++];
    std::string result;
    while (true) {
      if (at_end()) fail(begin, "this string never ends: close it with the same quote");
      const char c = text_[at_++];
      if (c == quote) return result;
      if (static_cast<unsigned char>(c) < 0x20) {
        if (is_eol(c))
          fail(begin, "this string does not end on its line: close it with the same quote");
        fail(at_ - 1, "a raw control character inside a string; write \\t or \\u00XX");
      }
      if (c == '\\') {
        escape(begin, result);
      } else {
        result.push_back(c);
      }
    }
  }

  void escape(std::size_t begin, std::string& out) {
    if (at_end()) fail(begin, "this string never ends: close it with the same quote");
    const char c = text_[at_++];
    switch (c) {
      case '"':
      case '\'':
      case '\\':
      case '/':
        out.push_back(c);
        return;
      case 'b':
        out.push_back('\b');
        return;
      case 'f':
        out.push_back('\f');
        return;
      case 'n':
        out.push_back('\n');
        return;
      case 'r':
        out.push_back('\r');
        return;
      case 't':
        out.push_back('\t');
        return;
      case 'u':
        break;
      default:
        fail(at_ - 2, "an unknown escape; a backslash itself is written \\\\");
    }
    std::uint32_t code = hex4();
    if ((code & 0xFC00) == 0xD800 && text_.substr(at_, 2) == "\\u") {
      const std::size_t back = at_;
      at_ += 2;
      const std::uint32_t low = hex4();
      if ((low & 0xFC00) == 0xDC00) {
        code = 0x10000 + (((code - 0xD800) << 10) | (low - 0xDC00));
      } else {
        at_ = back;
      }
    }
    append_utf8(out, code);
  }

  std::uint32_t hex4() {
    const std::string_view digits = text_.substr(at_, 4);
    std::uint32_t code = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != 4 || error != std::errc() || end != digits.data() + 4) {
      fail(at_ - 2, "\\u needs four hexadecimal digits");
    }
    at_ += 4;
    return code;
  }

  /// ''' strings: the indentation of the opening quotes is cut from every line.
  std::string multiline_string() {
    const std::size_t begin = at_;
    const std::size_t line = text_.rfind('\n', begin);
    const std::size_t indent = line == std::string_view::npos ? begin : begin - line - 1;
    const auto skip_indent = [&](std::size_t count) {
      while (count > 0 && !at_end() && (peek() == ' ' || peek() == '\t' || peek() == '\r')) {
        ++at_;
        --count;
      }
    };
    at_ += 3;
    skip_indent(text_.size());
    if (peek() == '\n') {
      ++at_;
      skip_indent(indent);
    }
    std::string result;
    while (true) {
      if (at_end()) fail(begin, "this string never ends: close it with '''");
      if (text_.substr(at_, 3) == "'''") break;
      const char c = text_[at_++];
      if (c != '\r') result.push_back(c);
      if (c == '\n') skip_indent(indent);
    }
    at_ += 3;
    if (!result.empty() && result.back() == '\n') result.pop_back();
    return result;
  }

  /// true, false, null, a number, or a text that runs to the end of the line.
  JsonValue quoteless() {
    const std::size_t begin = at_;
    if (at_end()) fail(begin, "the text ends where a value was expected");
    if (kPunctuators.find(peek()) != std::string_view::npos) {
      fail(begin,
           concat("found '", peek(), "' where a value was expected; write the value before it"));
    }
    // The first place where a literal could end decides; a text goes on to the end of the line.
    bool possible = true;
    for (;; ++at_) {
      const char c = peek();
      const bool eol = at_end() || is_eol(c);
      if (eol || c == ',' || c == '}' || c == ']' || c == '#' ||
          (c == '/' && (peek(1) == '/' || peek(1) == '*'))) {
        const std::string_view token = strip_blanks(text_.substr(begin, at_ - begin));
        if (possible) {
          if (auto literal = parse_literal(token, begin)) return *literal;
          // What a longer token could only add is not part of any literal.
          possible = false;
        }
        if (eol) {
          if (!swallowed_ && token.find_first_of("}]") != std::string_view::npos)
            swallowed_ = begin;
          JsonValue text{std::string(token)};
          text.set_quoteless();
          return text;
        }
      }
    }
  }

  std::optional<JsonValue> parse_literal(std::string_view token, std::size_t begin) {
    if (token == "null") return JsonValue();
    if (token == "true") return JsonValue(true);
    if (token == "false") return JsonValue(false);
    auto number = parse_hjson_number(token);
    if (number.too_large) {
      fail(begin, concat(token.substr(0, 40),
                         " is larger than any number a computer holds here; the largest is about "
                         "1.8e308"));
    }
    return std::move(number.value);
  }

  std::string_view text_;
  std::string_view name_;
  std::vector<HjsonProblem>& duplicates_;
  HjsonOptions options_;
  PositionIndex positions_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::optional<std::size_t> swallowed_;  ///< Where a text without quotes took a bracket.
  std::string path_;
};

}  // namespace

JsonValue parse_hjson(std::string_view text, std::string_view name,
                      std::vector<HjsonProblem>& duplicates, const HjsonOptions& options) {
  return Parser(text, name, duplicates, options).document();
}

}  // namespace zero3d
