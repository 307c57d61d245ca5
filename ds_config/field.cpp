#include "zero3d/ds_config/field.h"

#include <cmath>

#include "zero3d/core/text.h"

namespace zero3d::config {

bool Range::contains(double value) const {
  return (open_low ? value > low : value >= low) && (open_high ? value < high : value <= high);
}

std::string Range::text() const {
  const bool has_low = std::isfinite(low);
  const bool has_high = std::isfinite(high);
  if (!has_low && !has_high) return {};
  if (!has_high) return concat(open_low ? "> " : ">= ", low);
  if (!has_low) return concat(open_high ? "< " : "<= ", high);
  return open_low ? concat("strictly between ", low, " and ", high)
                  : concat("from ", low, " to ", high);
}

std::vector<std::string_view> split_names(std::string_view names) {
  std::vector<std::string_view> list;
  while (!names.empty()) {
    const std::size_t end = names.find('|');
    list.push_back(names.substr(0, end));
    names = end == std::string_view::npos ? std::string_view() : names.substr(end + 1);
  }
  return list;
}

JsonValue default_value(const Field& field) {
  if (field.kind == Kind::section) return field.absent ? JsonValue() : field.nested->defaults();
  if (field.kind == Kind::object) return JsonValue::make_object();
  const auto* names = std::get_if<std::string_view>(&field.fallback);
  if (names != nullptr && field.kind == Kind::texts) {
    JsonValue list = JsonValue::make_array();
    for (const std::string_view name : split_names(*names))
      list.push_back(JsonValue(std::string(name)));
    return list;
  }
  if (names != nullptr) return JsonValue(std::string(*names));
  if (const auto* value = std::get_if<bool>(&field.fallback)) return JsonValue(*value);
  if (const auto* value = std::get_if<std::int64_t>(&field.fallback)) return JsonValue(*value);
  if (const auto* value = std::get_if<double>(&field.fallback)) return JsonValue(*value);
  return JsonValue();
}

const Field* Section::find(std::string_view key) const {
  for (const Field& field : fields) {
    if (field.name == key || (!field.alias.empty() && field.alias == key)) return &field;
  }
  return nullptr;
}

std::vector<std::string_view> Section::spellings() const {
  std::vector<std::string_view> names;
  for (const Field& field : fields) {
    if (!field.hidden) names.push_back(field.name);
  }
  return names;
}

JsonValue Section::defaults() const {
  JsonValue result = JsonValue::make_object();
  for (const Field& field : fields) {
    if (!field.hidden)
      result.members().push_back({std::string(field.name), {}, default_value(field)});
  }
  return result;
}

}  // namespace zero3d::config
