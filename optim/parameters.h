// Named parameters of an optimizer or a schedule, as a configuration gives them, and a reader that
// holds them to what known_types.h says of them. Knows nothing of the file they came from but the
// JSON path put before each message.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace zero3d {

/// null, true, 3, 3.0, "text", [0.9, 0.999]: an integer keeps being one.
using ParameterValue =
    std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<double>>;
using ParameterMap = std::map<std::string, ParameterValue, std::less<>>;

struct KnownParam;
struct KnownType;

/// Reads parameters of `type` key by key; what the map lacks has the default that the type states.
/// Throws ConfigError at "<path>.<key>" for a value of another kind or out of bounds. The map must
/// outlive the reader.
class ParameterReader {
 public:
  /// `path` is where the map stands in the configuration: "optimizer.params".
  ParameterReader(const ParameterMap& map, std::string path, const KnownType& type);

  bool has(std::string_view key) const { return map_.find(key) != map_.end(); }
  double number(std::string_view key);
  /// With another default.
  double number(std::string_view key, double fallback);
  std::int64_t integer(std::string_view key);
  /// Absent or null: nothing.
  std::optional<std::int64_t> optional_integer(std::string_view key);
  bool flag(std::string_view key);
  std::string text(std::string_view key);
  std::pair<double, double> pair(std::string_view key);
  /// A number, or a list of numbers; absent or null: the default, empty when that is in words.
  std::vector<double> numbers(std::string_view key);

  /// Holds every parameter given to the type: throws for those that it, in the variant at hand,
  /// does not have (with the nearest that it has) or refuses. Returns those that it drops.
  std::vector<std::string> finish(bool torch = false, bool offloaded = false);
  [[noreturn]] void fail(std::string_view key, const std::string& message) const;
  /// Holds one parameter, if given, to its kind and bounds, as reading it does.
  void check(std::string_view key) const { given(key); }
  const std::string& path() const { return path_; }

 private:
  const KnownParam& known(std::string_view key) const;
  /// Null when absent, or null where that says the same. Throws for another kind and out of bounds.
  const ParameterValue* given(std::string_view key) const;
  void require_within(const KnownParam& param, double value) const;

  const ParameterMap& map_;
  std::string path_;
  const KnownType& type_;
};

}  // namespace zero3d
