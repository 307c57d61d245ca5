// Turns JSON values into typed ones for the section descriptions of field.h, as leniently as
// DeepSpeed's own reader, and gathers every fault of a file instead of stopping at the first.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/ds_config/load.h"

namespace zero3d::config {

struct Field;
struct Section;

/// What a file says of a key; `path` is spelt as there.
struct Stated {
  const Field& field;
  const std::string& path;
  const JsonValue& value;
};

class Reader {
 public:
  explicit Reader(LoadResult& result) : result_(result) {}

  void error(const std::string& path, const std::string& message, TextPosition position = {});
  void warning(const std::string& path, const std::string& message, TextPosition position = {});
  /// Accepted by the reader, refused at engine start.
  void train_error(const std::string& path, const std::string& message, TextPosition position = {});

  /// Reads the members of `value` over the defaults that `out` holds and reports what does not fit.
  /// `path` is the section's own, "" for the root.
  void read_section(const Section& section, const JsonValue& value, JsonValue& out,
                    const std::string& path);

  /// A wrong value: an error where DeepSpeed checks, a train_error where it does not. Returns what
  /// a conversion makes of it: nothing.
  std::nullopt_t refuse(const Stated& stated, std::string_view expected, std::string_view fix = {});

  /// The conversions of DeepSpeed's strict sections; each reports through refuse() and then returns
  /// nothing.
  using Converted = std::optional<JsonValue>;
  Converted to_bool(const Stated& stated);
  Converted to_integer(const Stated& stated);
  Converted to_number(const Stated& stated);
  Converted to_text(const Stated& stated);
  Converted to_texts(const Stated& stated);

  /// Where the value at `path` of the resolved configuration comes from; `file_path` is the
  /// spelling in the file.
  void record(const std::string& path, const std::string& file_path, TextPosition position);
  void record(const std::string& path, ValueSource source, std::string note);
  /// Marks that the value at `file_path` was put in the tree by the resolution of "auto".
  void mark_origin(const std::string& file_path, ValueSource source, std::string note);

  bool strict_top_level = false;

 private:
  void read_field(const Field& field, const JsonMember& member, JsonValue& out,
                  const std::string& path);
  void read_value(const Stated& stated, JsonValue& out);
  Converted convert(const Stated& stated);
  void unknown_key(const Section& section, const JsonMember& member, const std::string& path);

  LoadResult& result_;
  std::map<std::string, Provenance> origins_;
};

/// "zero_optimization" + "stage"; the name alone at the root.
std::string join_path(const std::string& path, std::string_view name);

/// 'did you mean "x"?', or "" when no candidate is near.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates);
/// "; " and the hint, unless that is "".
std::string after(std::string_view hint);

/// A path as Python's pathlib writes it: one slash between names, none at the end, no ".".
std::string plain_path(std::string_view text);

/// What Python holds for false: null, false, 0, and whatever is empty.
bool is_falsy(const JsonValue& value);

}  // namespace zero3d::config
