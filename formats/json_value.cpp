#include "zero3d/formats/json_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "zero3d/core/error.h"

namespace zero3d {

namespace {

[[noreturn]] void wrong_kind(JsonValue::Kind found, std::string_view wanted) {
  std::string message = "expected ";
  message.append(wanted).append(", found ").append(describe_kind(found));
  throw_invalid(message);
}

void append_escaped(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out.push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (byte < 0x20 || byte == 0x7f) {
          out += "\\u00";
          out.push_back(kHex[byte >> 4]);
          out.push_back(kHex[byte & 15]);
        } else {
          out.push_back(c);
        }
    }
  }
  out.push_back('"');
}

void append_number(std::string& out, double value) {
  // JSON has no spelling for these; the reader never yields them, but a program can.
  if (std::isnan(value)) {
    out += "\"nan\"";
    return;
  }
  if (std::isinf(value)) {
    out += value > 0 ? "\"inf\"" : "\"-inf\"";
    return;
  }
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  const std::string_view digits(buffer, static_cast<std::size_t>(end - buffer));
  out += digits;
  if (digits.find_first_of(".e") == std::string_view::npos) out += ".0";
}

void append_break(std::string& out, int indent, int level) {
  if (indent < 0) return;
  out.push_back('\n');
  out.append(static_cast<std::size_t>(indent) * static_cast<std::size_t>(level), ' ');
}

// Recursion is bounded by the depth limit of the reader that made the tree.
void append_value(std::string& out, const JsonValue& value, int indent, int level) {
  const char* separator = indent < 0 ? ", " : ",";
  bool first = true;
  switch (value.kind()) {
    case JsonValue::Kind::null:
      out += "null";
      return;
    case JsonValue::Kind::boolean:
      out += value.as_bool() ? "true" : "false";
      return;
    case JsonValue::Kind::integer:
      out += std::to_string(value.as_integer());
      return;
    case JsonValue::Kind::number:
      append_number(out, value.as_number());
      return;
    case JsonValue::Kind::string:
      append_escaped(out, value.as_string());
      return;
    case JsonValue::Kind::array:
      // Lists stay on one line: they hold a few numbers or names.
      out.push_back('[');
      for (const JsonValue& item : value.items()) {
        if (!first) out += ", ";
        first = false;
        append_value(out, item, -1, level);
      }
      out.push_back(']');
      return;
    case JsonValue::Kind::object:
      out.push_back('{');
      for (const JsonMember& member : value.members()) {
        if (!first) out += separator;
        first = false;
        append_break(out, indent, level + 1);
        append_escaped(out, member.name);
        out += ": ";
        append_value(out, member.value, indent, level + 1);
      }
      if (!first) append_break(out, indent, level);
      out.push_back('}');
      return;
  }
}

}  // namespace

JsonValue::JsonValue(bool value) : kind_(Kind::boolean), boolean_(value) {}
JsonValue::JsonValue(std::int64_t value) : kind_(Kind::integer), integer_(value) {}
JsonValue::JsonValue(double value) : kind_(Kind::number), number_(value) {}
JsonValue::JsonValue(std::string value) : kind_(Kind::string), text_(std::move(value)) {}
JsonValue::JsonValue(const JsonValue&) = default;
JsonValue::JsonValue(JsonValue&&) noexcept = default;
JsonValue& JsonValue::operator=(const JsonValue&) = default;
JsonValue& JsonValue::operator=(JsonValue&&) noexcept = default;
JsonValue::~JsonValue() = default;

JsonValue JsonValue::make_array() {
  JsonValue value;
  value.kind_ = Kind::array;
  return value;
}

JsonValue JsonValue::make_object() {
  JsonValue value;
  value.kind_ = Kind::object;
  return value;
}

bool JsonValue::as_bool() const {
  if (!is_bool()) wrong_kind(kind_, "a boolean");
  return boolean_;
}

std::int64_t JsonValue::as_integer() const {
  if (!is_integer()) wrong_kind(kind_, "an integer");
  return integer_;
}

double JsonValue::as_number() const {
  if (kind_ == Kind::number) return number_;
  if (!is_integer()) wrong_kind(kind_, "a number");
  return static_cast<double>(integer_);
}

const std::string& JsonValue::as_string() const {
  if (!is_string()) wrong_kind(kind_, "a string");
  return text_;
}

const JsonValue* JsonValue::find(std::string_view name) const {
  for (const JsonMember& member : members_) {
    if (member.name == name) return &member.value;
  }
  return nullptr;
}

JsonValue* JsonValue::find(std::string_view name) {
  return const_cast<JsonValue*>(static_cast<const JsonValue*>(this)->find(name));
}

const JsonValue* JsonValue::find_path(std::string_view path) const {
  const JsonValue* node = this;
  while (node != nullptr && !path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    node = node->find(path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return node;
}

JsonValue* JsonValue::find_path(std::string_view path) {
  return const_cast<JsonValue*>(static_cast<const JsonValue*>(this)->find_path(path));
}

JsonValue& JsonValue::set(std::string_view name, JsonValue value) {
  if (is_null()) kind_ = Kind::object;
  if (!is_object()) wrong_kind(kind_, "an object");
  if (JsonValue* old = find(name)) {
    *old = std::move(value);
    return *old;
  }
  members_.push_back({std::string(name), {}, std::move(value)});
  return members_.back().value;
}

void JsonValue::erase(std::string_view name) {
  std::erase_if(members_, [&](const JsonMember& member) { return member.name == name; });
}

void JsonValue::push_back(JsonValue value) {
  if (is_null()) kind_ = Kind::array;
  if (!is_array()) wrong_kind(kind_, "a list");
  items_.push_back(std::move(value));
}

std::string JsonValue::dump(int indent) const {
  std::string out;
  append_value(out, *this, indent, 0);
  return out;
}

std::string JsonValue::excerpt(std::size_t limit) const {
  if (kind_ == Kind::string && text_.size() > limit) {
    return JsonValue(text_.substr(0, limit)).excerpt(2 * limit) + "...";
  }
  if (is_object() && members_.size() > 4) return "an object of " + std::to_string(members_.size());
  if (is_array() && items_.size() > 16) return "a list of " + std::to_string(items_.size());
  std::string text = dump();
  if (text.size() <= limit) return text;
  // Never cut inside a UTF-8 sequence.
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
  return text.substr(0, limit) + "...";
}

bool operator==(const JsonValue& a, const JsonValue& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer_ == b.integer_;
    return a.as_number() == b.as_number();
  }
  if (a.kind_ != b.kind_) return false;
  switch (a.kind_) {
    case JsonValue::Kind::boolean:
      return a.boolean_ == b.boolean_;
    case JsonValue::Kind::string:
      return a.text_ == b.text_;
    case JsonValue::Kind::array:
      return a.items_ == b.items_;
    case JsonValue::Kind::object: {
      if (a.members_.size() != b.members_.size()) return false;
      for (const JsonMember& member : a.members_) {
        const JsonValue* other = b.find(member.name);
        if (other == nullptr || !(*other == member.value)) return false;
      }
      return true;
    }
    default:
      return true;
  }
}

std::string_view describe_kind(JsonValue::Kind kind) {
  switch (kind) {
    case JsonValue::Kind::null:
      return "null";
    case JsonValue::Kind::boolean:
      return "a boolean";
    case JsonValue::Kind::integer:
      return "an integer";
    case JsonValue::Kind::number:
      return "a number";
    case JsonValue::Kind::string:
      return "a string";
    case JsonValue::Kind::array:
      return "a list";
    case JsonValue::Kind::object:
      return "an object";
  }
  return "";
}

}  // namespace zero3d
