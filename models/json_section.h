// An object of a config.json with its place in it: keys are read by kind, and what is wrong is an
// IoError that names the key, what was found and what was expected. Internal to models: it names
// the JSON library.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace zero3d {

using ConfigJson = nlohmann::ordered_json;

/// The text of a file from outside, at most 64 levels deep. Throws IoError with the place.
ConfigJson parse_config_json(const std::string& text, const std::string& path);

class JsonSection {
 public:
  /// `json` must outlive this; `prefix` comes before keys in messages.
  JsonSection(const ConfigJson& json, std::string path, std::string prefix = "");

  const std::string& path() const { return path_; }
  [[noreturn]] void fail(const std::string& message) const;
  /// "key" is <found>; expected <expected>.
  [[noreturn]] void fail_at(const char* key, const std::string& expected) const;
  void refuse_if(bool present, const char* key, const std::string& expected) const {
    if (present) fail_at(key, expected);
  }

  /// Null stands for absent, as in transformers; only states() tells them apart.
  const ConfigJson* find(const char* key) const;
  bool has(const char* key) const { return find(key) != nullptr; }
  bool states(const char* key) const;

  /// The keys that nobody has asked for so far, but for those whose value says nothing (null,
  /// false, empty).
  std::vector<std::string> unread() const;

  std::int64_t integer(const char* key, std::int64_t fallback) const;
  std::int64_t size(const char* key) const;  ///< Must be there.
  double number(const char* key, double fallback) const;
  bool boolean(const char* key, bool fallback) const;
  std::string text(const char* key, const std::string& fallback) const;
  std::vector<double> numbers(const char* key) const;         ///< Must be there.
  std::vector<std::int64_t> integers(const char* key) const;  ///< A list of them, or a single one.

 private:
  const ConfigJson& json_;
  std::string path_;
  std::string prefix_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace zero3d
