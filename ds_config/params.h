// The free-form parameters of an optimizer or a scheduler: an ordered map from name to value with
// typed look-ups. Which names a type knows is the business of whoever builds it; names nobody knows
// stay here and in the resolved configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/formats/json_value.h"

namespace zero3d {

class ConfigParams {
 public:
  ConfigParams() = default;
  /// `path` ("optimizer.params") leads the messages; `object` is an object or null.
  ConfigParams(std::string path, JsonValue object);

  bool has(std::string_view name) const { return find(name) != nullptr; }
  /// Null when absent.
  const JsonValue* find(std::string_view name) const { return object_.find(name); }
  std::vector<std::string> names() const;
  bool empty() const { return object_.members().empty(); }
  void set(std::string_view name, JsonValue value) { object_.set(name, std::move(value)); }

  /// The value, or `fallback` when the name is absent. A JSON null counts as absent. Each throws
  /// ConfigError with the full path when the value is of another type.
  double number(std::string_view name, double fallback) const;
  std::int64_t integer(std::string_view name, std::int64_t fallback) const;
  bool flag(std::string_view name, bool fallback) const;
  std::string text(std::string_view name, std::string_view fallback) const;
  /// A list of numbers; a lone number is a list of one.
  std::vector<double> numbers(std::string_view name, std::vector<double> fallback) const;
  std::optional<double> optional_number(std::string_view name) const;
  std::optional<std::int64_t> optional_integer(std::string_view name) const;

  const JsonValue& json() const { return object_; }
  const std::string& path() const { return path_; }

 private:
  const JsonValue* present(std::string_view name) const;

  std::string path_;
  JsonValue object_;
};

}  // namespace zero3d
