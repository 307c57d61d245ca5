#include "zero3d/ds_config/params.h"

#include <cmath>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {

namespace {

[[noreturn]] void wrong_type(const std::string& path, std::string_view name,
                             std::string_view wanted, const JsonValue& found) {
  throw ConfigError(concat(path, ".", name),
                    concat("expected ", wanted, ", found ", found.excerpt()));
}

/// The integral number `value` holds, when it holds one that fits.
std::optional<std::int64_t> integral(const JsonValue& value) {
  if (value.is_integer()) return value.as_integer();
  if (!value.is_number()) return std::nullopt;
  const double number = value.as_number();
  if (std::abs(number) >= 9.2e18 || number != std::floor(number)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

}  // namespace

ConfigParams::ConfigParams(std::string path, JsonValue object)
    : path_(std::move(path)), object_(std::move(object)) {
  if (!object_.is_object()) object_ = JsonValue::make_object();
}

const JsonValue* ConfigParams::present(std::string_view name) const {
  const JsonValue* value = find(name);
  return value != nullptr && value->is_null() ? nullptr : value;
}

std::vector<std::string> ConfigParams::names() const {
  std::vector<std::string> names;
  for (const JsonMember& member : object_.members()) names.push_back(member.name);
  return names;
}

std::optional<double> ConfigParams::optional_number(std::string_view name) const {
  const JsonValue* value = present(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) wrong_type(path_, name, "a number", *value);
  return value->as_number();
}

std::optional<std::int64_t> ConfigParams::optional_integer(std::string_view name) const {
  const JsonValue* value = present(name);
  if (value == nullptr) return std::nullopt;
  const auto number = integral(*value);
  if (!number) wrong_type(path_, name, "an integer", *value);
  return number;
}

double ConfigParams::number(std::string_view name, double fallback) const {
  return optional_number(name).value_or(fallback);
}

std::int64_t ConfigParams::integer(std::string_view name, std::int64_t fallback) const {
  return optional_integer(name).value_or(fallback);
}

bool ConfigParams::flag(std::string_view name, bool fallback) const {
  const JsonValue* value = present(name);
  if (value == nullptr) return fallback;
  if (value->is_integer() && (value->as_integer() == 0 || value->as_integer() == 1)) {
    return value->as_integer() == 1;
  }
  if (!value->is_bool()) wrong_type(path_, name, "true or false", *value);
  return value->as_bool();
}

std::string ConfigParams::text(std::string_view name, std::string_view fallback) const {
  const JsonValue* value = present(name);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) wrong_type(path_, name, "a string", *value);
  return value->as_string();
}

std::vector<double> ConfigParams::numbers(std::string_view name,
                                          std::vector<double> fallback) const {
  const JsonValue* value = present(name);
  if (value == nullptr) return fallback;
  if (value->is_number()) return {value->as_number()};
  std::vector<double> result;
  for (const JsonValue& item : value->items()) {
    if (!item.is_number()) wrong_type(path_, name, "a list of numbers", *value);
    result.push_back(item.as_number());
  }
  if (!value->is_array()) wrong_type(path_, name, "a list of numbers", *value);
  return result;
}

}  // namespace zero3d
