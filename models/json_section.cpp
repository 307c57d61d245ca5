#include "zero3d/models/json_section.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/lfs_pointer.h"
#include "zero3d/formats/problem_list.h"

namespace zero3d {
namespace {

std::optional<std::int64_t> integer_of(const ConfigJson& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && !std::in_range<std::int64_t>(value.get<std::uint64_t>()))
    return std::nullopt;
  return value.get<std::int64_t>();
}

/// "line 3, column 7" of a byte, counted from 1.
std::string place_of(const std::string& text, std::size_t byte) {
  const std::string_view before = std::string_view(text).substr(0, byte > 0 ? byte - 1 : 0);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  return concat("line ", line, ", column ", before.size() - (before.rfind('\n') + 1) + 1);
}

}  // namespace

ConfigJson parse_config_json(const std::string& text, const std::string& path) {
  constexpr int kDeepest = 64;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto look = [&](int depth, ConfigJson::parse_event_t event, const ConfigJson& parsed) {
    using enum ConfigJson::parse_event_t;
    if (depth > kDeepest)
      throw IoError(path, 0, concat("is nested deeper than the ", kDeepest, " levels allowed"));
    if (event == object_start) keys.emplace_back();
    if (event == object_end) keys.pop_back();
    if (event == key && !keys.back().insert(parsed.get<std::string>()).second)
      throw IoError(path, 0,
                    concat(printable(parsed.get<std::string>()),
                           " stands twice in one object; expected each key once: remove one"));
    return true;
  };
  if (is_lfs_pointer(text)) throw IoError(path, 0, std::string(kIsLfsPointer));
  try {
    return ConfigJson::parse(text, look);
  } catch (const ConfigJson::parse_error& error) {
    throw IoError(path, 0,
                  concat("is no JSON: it cannot be read at ", place_of(text, error.byte),
                         "; expected the config.json that save_pretrained writes"));
  } catch (const ConfigJson::exception&) {  // the only other one of parsing
    throw IoError(path, 0, "holds a number too large for 64 bits");
  }
}

JsonSection::JsonSection(const ConfigJson& json, std::string path, std::string prefix)
    : json_(json), path_(std::move(path)), prefix_(std::move(prefix)) {}

void JsonSection::fail(const std::string& message) const { throw IoError(path_, 0, message); }

void JsonSection::fail_at(const char* key, const std::string& expected) const {
  const ConfigJson* value = find(key);
  std::string found = value == nullptr
                          ? (states(key) ? "null" : "absent")
                          : value->dump(-1, ' ', true, ConfigJson::error_handler_t::replace);
  if (found.size() > 80) found = found.substr(0, 77) + "...";
  fail(concat("\"", prefix_, key, "\" is ", found, "; expected ", expected));
}

const ConfigJson* JsonSection::find(const char* key) const {
  asked_.emplace(key);
  const auto it = json_.find(key);
  return it == json_.end() || it->is_null() ? nullptr : &*it;
}

bool JsonSection::states(const char* key) const {
  asked_.emplace(key);
  return json_.contains(key);
}

std::vector<std::string> JsonSection::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json_.items()) {
    const bool says_something = !value.is_null() && value != false && value != "" &&
                                !(value.is_structured() && value.empty());
    if (says_something && !asked_.contains(key)) keys.push_back(key);
  }
  return keys;
}

std::int64_t JsonSection::integer(const char* key, std::int64_t fallback) const {
  const ConfigJson* value = find(key);
  if (value == nullptr) return fallback;
  const std::optional<std::int64_t> integer = integer_of(*value);
  if (!integer) fail_at(key, "an integer of 64 bits");
  return *integer;
}

std::int64_t JsonSection::size(const char* key) const {
  if (!has(key)) fail_at(key, "the model's size");
  return integer(key, 0);
}

double JsonSection::number(const char* key, double fallback) const {
  const ConfigJson* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number()) fail_at(key, "a number");
  return value->get<double>();
}

bool JsonSection::boolean(const char* key, bool fallback) const {
  const ConfigJson* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail_at(key, "true or false");
  return value->get<bool>();
}

std::string JsonSection::text(const char* key, const std::string& fallback) const {
  const ConfigJson* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) fail_at(key, "a string");
  return value->get<std::string>();
}

std::vector<double> JsonSection::numbers(const char* key) const {
  const ConfigJson* value = find(key);
  if (value == nullptr || !value->is_array()) fail_at(key, "a list of numbers");
  std::vector<double> numbers;
  for (const ConfigJson& item : *value) {
    if (!item.is_number()) fail_at(key, "a list of numbers");
    numbers.push_back(item.get<double>());
  }
  return numbers;
}

std::vector<std::int64_t> JsonSection::integers(const char* key) const {
  const ConfigJson* value = find(key);
  if (value == nullptr) return {};
  const ConfigJson list = value->is_array() ? *value : ConfigJson::array({*value});
  std::vector<std::int64_t> integers;
  for (const ConfigJson& item : list) {
    const std::optional<std::int64_t> integer = integer_of(item);
    if (!integer) fail_at(key, "a token or a list of tokens");
    integers.push_back(*integer);
  }
  return integers;
}

}  // namespace zero3d
