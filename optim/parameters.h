// Named parameters of an optimizer or a schedule, as a configuration gives them, and a reader that
// checks types and reports what nobody read. Knows nothing of the file they came from but the JSON
// path put before each message.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace zero3d {

/// null, true, 3, 3.0, "text", [0.9, 0.999]: an integer keeps being one.
using ParameterValue =
    std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<double>>;
using ParameterMap = std::map<std::string, ParameterValue, std::less<>>;

/// Reads a map key by key. Every reader throws ConfigError at "<path>.<key>" when the value has
/// another type; null counts as absent only where a reader says so. The map must outlive the
/// reader.
class ParameterReader {
 public:
  /// `path` is where the map stands in the configuration: "optimizer.params".
  ParameterReader(const ParameterMap& map, std::string path);

  bool has(std::string_view key) const;
  /// A finite integer or floating number.
  double number(std::string_view key, double fallback);
  double required_number(std::string_view key);
  /// Absent or null: nothing.
  std::optional<double> optional_number(std::string_view key);
  /// An integer; 2.0 is refused, as DeepSpeed does.
  std::int64_t integer(std::string_view key, std::int64_t fallback);
  std::optional<std::int64_t> optional_integer(std::string_view key);
  bool flag(std::string_view key, bool fallback);
  std::string text(std::string_view key, const std::string& fallback);
  /// A number, or a list of numbers; absent or null: empty.
  std::vector<double> numbers(std::string_view key);
  /// A list of exactly two numbers.
  std::pair<double, double> pair(std::string_view key, std::pair<double, double> fallback);
  /// Marks a key as known without reading it.
  void ignore(std::string_view key);

  /// Keys of the map that nothing has read or ignored so far.
  std::vector<std::string> unread() const;
  /// Throws ConfigError naming the first key that nothing read, with the nearest known one.
  void finish(std::string_view owner) const;
  [[noreturn]] void fail(std::string_view key, const std::string& message) const;
  const std::string& path() const { return path_; }

 private:
  const ParameterValue* find(std::string_view key);

  const ParameterMap& map_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace zero3d
