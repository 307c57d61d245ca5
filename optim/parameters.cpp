#include "zero3d/optim/parameters.h"

#include <charconv>

#include "zero3d/core/error.h"
#include "zero3d/core/narrow.h"
#include "zero3d/core/text.h"
#include "zero3d/optim/known_types.h"

namespace zero3d {
namespace {

/// A double tells such counts apart, and no sum of a few of them overflows.
constexpr std::int64_t kLargestCount = std::int64_t{1} << 53;

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

bool is_number(const ParameterValue& value) {
  return std::holds_alternative<std::int64_t>(value) || std::holds_alternative<double>(value);
}

double as_number(const ParameterValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return static_cast<double>(*integer);
  return std::get<double>(value);
}

/// The number at the start of a default of the tables, which moves behind it; nothing for words.
template <typename T>
std::optional<T> stated(std::string_view& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool applies(Taken taken, bool torch, bool offloaded) {
  switch (taken) {
    case Taken::always:
      return true;
    case Taken::by_torch:
      return torch;
    case Taken::not_by_torch:
      return !torch;
    case Taken::offloaded:
      return offloaded;
    case Taken::on_device:
      return !offloaded;
  }
  return false;
}

}  // namespace

ParameterReader::ParameterReader(const ParameterMap& map, std::string path, const KnownType& type)
    : map_(map), path_(std::move(path)), type_(type) {}

const KnownParam& ParameterReader::known(std::string_view key) const {
  const KnownParam* param = type_.find(key);
  if (param == nullptr) throw_invalid(concat(type_.name, " states no parameter ", key));
  return *param;
}

const ParameterValue* ParameterReader::given(std::string_view key) const {
  const KnownParam& param = known(key);
  const auto found = map_.find(key);
  if (found == map_.end()) return nullptr;
  if (!param.accepts(found->second))
    fail(key, concat("expected ", describe(param.kind), ", found ", type_of(found->second)));
  if (std::holds_alternative<std::monostate>(found->second)) return nullptr;
  if (const auto* list = std::get_if<std::vector<double>>(&found->second)) {
    for (const double number : *list) require_within(param, number);
  } else if (is_number(found->second)) {
    require_within(param, as_number(found->second));
  }
  const auto* count = std::get_if<std::int64_t>(&found->second);
  if (count != nullptr && (*count < -kLargestCount || *count > kLargestCount))
    fail(key, concat("expected at most ", kLargestCount, ", found ", *count));
  return &found->second;
}

void ParameterReader::fail(std::string_view key, const std::string& message) const {
  throw ConfigError(concat(path_, ".", key), message);
}

void ParameterReader::require_within(const KnownParam& param, double value) const {
  const char* expected = param.bound == Bound::not_negative && value < 0 ? "at least 0"
                         : param.bound == Bound::positive && value <= 0  ? "at least 1"
                         : param.bound == Bound::fraction && (value < 0 || value >= 1)
                             ? "at least 0 and below 1"
                             : nullptr;
  if (expected != nullptr) fail(param.name, concat("expected ", expected, ", found ", value));
  if (!fits<float>(value))  // what the loops compute with
    fail(param.name, concat("expected ", range_of<float>(), ", found ", value));
}

double ParameterReader::number(std::string_view key) {
  if (has(key)) return number(key, 0);
  std::string_view text = known(key).default_value;
  return stated<double>(text).value();
}

double ParameterReader::number(std::string_view key, double fallback) {
  const ParameterValue* value = given(key);
  return value == nullptr ? fallback : as_number(*value);
}

std::int64_t ParameterReader::integer(std::string_view key) {
  const KnownParam& param = known(key);
  if (const ParameterValue* value = given(key)) return std::get<std::int64_t>(*value);
  if (param.default_value == "required") fail(key, "is required");
  std::string_view text = param.default_value;
  return stated<std::int64_t>(text).value();
}

std::optional<std::int64_t> ParameterReader::optional_integer(std::string_view key) {
  if (given(key) == nullptr) return std::nullopt;
  return integer(key);
}

bool ParameterReader::flag(std::string_view key) {
  const ParameterValue* value = given(key);
  if (value == nullptr) return known(key).default_value == "true";
  const auto* flag = std::get_if<bool>(value);
  return flag != nullptr ? *flag : std::get<std::int64_t>(*value) == 1;
}

std::string ParameterReader::text(std::string_view key) {
  const std::string_view quoted = known(key).default_value;
  const ParameterValue* value = given(key);
  return value != nullptr ? std::get<std::string>(*value)
                          : std::string(quoted.substr(1, quoted.size() - 2));
}

std::pair<double, double> ParameterReader::pair(std::string_view key) {
  const KnownParam& param = known(key);
  std::pair<double, double> result;
  if (const ParameterValue* value = given(key)) {
    const auto& list = std::get<std::vector<double>>(*value);
    result = {list[0], list[1]};
  } else {
    std::string_view text = param.default_value.substr(1);
    result.first = stated<double>(text).value();
    text.remove_prefix(2);  // ", "
    result.second = stated<double>(text).value();
  }
  return result;
}

std::vector<double> ParameterReader::numbers(std::string_view key) {
  const ParameterValue* value = given(key);
  if (value == nullptr) {
    std::string_view text = known(key).default_value;
    if (text == "required") fail(key, "is required");
    const std::optional<double> number = stated<double>(text);
    return number ? std::vector<double>{*number} : std::vector<double>{};
  }
  const auto* list = std::get_if<std::vector<double>>(value);
  return list != nullptr ? *list : std::vector<double>{as_number(*value)};
}

std::vector<std::string> ParameterReader::finish(bool torch, bool offloaded) {
  std::vector<std::string> dropped;
  for (const auto& [key, value] : map_) {
    const KnownParam* param = type_.find(key);
    if (param != nullptr && applies(param->taken, torch, offloaded)) {
      given(key);  // of its kind, though nobody may read it
      if (!param->refusal.empty() && flag(key)) fail(key, std::string(param->refusal));
    } else if (type_.drops_unknown) {
      dropped.push_back(key);
    } else {
      std::vector<std::string_view> names;
      for (const KnownParam& other : type_.params) names.push_back(other.name);
      const std::string nearest = param != nullptr ? "" : nearest_name(key, names);
      fail(key, concat(type_.name, " has no such parameter",
                       nearest.empty() ? std::string("; remove it")
                                       : concat("; did you mean \"", nearest, "\"?")));
    }
  }
  return dropped;
}

}  // namespace zero3d
