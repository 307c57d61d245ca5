#include "zero3d/optim/parameters.h"

#include <cmath>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

std::string type_of(const ParameterValue& value) {
  struct Namer {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(std::int64_t v) const { return concat("the integer ", v); }
    std::string operator()(double v) const { return concat("the number ", v); }
    std::string operator()(const std::string& v) const { return concat("the string \"", v, "\""); }
    std::string operator()(const std::vector<double>& v) const {
      return concat("a list of ", v.size(), " numbers");
    }
  };
  return std::visit(Namer{}, value);
}

std::optional<double> as_number(const ParameterValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return static_cast<double>(*integer);
  if (const auto* number = std::get_if<double>(&value); number && std::isfinite(*number))
    return *number;
  return std::nullopt;
}

}  // namespace

ParameterReader::ParameterReader(const ParameterMap& map, std::string path)
    : map_(map), path_(std::move(path)) {}

const ParameterValue* ParameterReader::find(std::string_view key) {
  known_.emplace(key);
  const auto found = map_.find(key);
  return found == map_.end() ? nullptr : &found->second;
}

bool ParameterReader::has(std::string_view key) const { return map_.find(key) != map_.end(); }

void ParameterReader::ignore(std::string_view key) { known_.emplace(key); }

void ParameterReader::fail(std::string_view key, const std::string& message) const {
  throw ConfigError(concat(path_, ".", key), message);
}

double ParameterReader::number(std::string_view key, double fallback) {
  const ParameterValue* value = find(key);
  if (!value) return fallback;
  if (const auto number = as_number(*value)) return *number;
  fail(key, concat("expected a finite number, found ", type_of(*value)));
}

double ParameterReader::required_number(std::string_view key) {
  if (!has(key)) fail(key, "is required");
  return number(key, 0);
}

std::optional<double> ParameterReader::optional_number(std::string_view key) {
  const ParameterValue* value = find(key);
  if (!value || std::holds_alternative<std::monostate>(*value)) return std::nullopt;
  return number(key, 0);
}

std::int64_t ParameterReader::integer(std::string_view key, std::int64_t fallback) {
  const ParameterValue* value = find(key);
  if (!value) return fallback;
  if (const auto* integer = std::get_if<std::int64_t>(value)) return *integer;
  fail(key,
       concat("expected an integer (without quotes or decimal point), found ", type_of(*value)));
}

std::optional<std::int64_t> ParameterReader::optional_integer(std::string_view key) {
  const ParameterValue* value = find(key);
  if (!value || std::holds_alternative<std::monostate>(*value)) return std::nullopt;
  return integer(key, 0);
}

bool ParameterReader::flag(std::string_view key, bool fallback) {
  const ParameterValue* value = find(key);
  if (!value) return fallback;
  if (const auto* flag = std::get_if<bool>(value)) return *flag;
  fail(key, concat("expected true or false, found ", type_of(*value)));
}

std::string ParameterReader::text(std::string_view key, const std::string& fallback) {
  const ParameterValue* value = find(key);
  if (!value) return fallback;
  if (const auto* text = std::get_if<std::string>(value)) return *text;
  fail(key, concat("expected a string, found ", type_of(*value)));
}

std::vector<double> ParameterReader::numbers(std::string_view key) {
  const ParameterValue* value = find(key);
  if (!value || std::holds_alternative<std::monostate>(*value)) return {};
  if (const auto number = as_number(*value)) return {*number};
  const auto* list = std::get_if<std::vector<double>>(value);
  if (!list || list->empty())
    fail(key, concat("expected a number or a list of numbers, found ", type_of(*value)));
  for (const double number : *list)
    if (!std::isfinite(number)) fail(key, "expected finite numbers");
  return *list;
}

std::pair<double, double> ParameterReader::pair(std::string_view key,
                                                std::pair<double, double> fallback) {
  const ParameterValue* value = find(key);
  if (!value) return fallback;
  const auto* list = std::get_if<std::vector<double>>(value);
  if (!list || list->size() != 2 || !std::isfinite((*list)[0]) || !std::isfinite((*list)[1]))
    fail(key, concat("expected a list of two numbers, found ", type_of(*value)));
  return {(*list)[0], (*list)[1]};
}

std::vector<std::string> ParameterReader::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : map_)
    if (!known_.count(key)) keys.push_back(key);
  return keys;
}

void ParameterReader::finish(std::string_view owner) const {
  for (const std::string& key : unread()) {
    const std::vector<std::string_view> names(known_.begin(), known_.end());
    const std::string nearest = nearest_name(key, names.data(), names.size());
    fail(key, concat(owner, " has no such parameter",
                     nearest.empty() ? "" : concat("; did you mean \"", nearest, "\"?")));
  }
}

}  // namespace zero3d
