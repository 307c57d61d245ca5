// A JSON value as the configuration reader yields it: a plain tree that remembers where in the text
// each value stood, so that a message found much later still names the line. Objects keep the order
// of their members. Not meant for bulk data.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace zero3d {

/// A place in a text, counted from 1 in lines and in characters; 0:0 is "made by the program".
struct TextPosition {
  int line = 0;
  int column = 0;
};

struct JsonMember;

class JsonValue {
 public:
  enum class Kind : std::uint8_t { null, boolean, integer, number, string, array, object };

  JsonValue() = default;
  explicit JsonValue(bool value);
  explicit JsonValue(std::int64_t value);
  explicit JsonValue(int value) : JsonValue(static_cast<std::int64_t>(value)) {}
  explicit JsonValue(double value);
  explicit JsonValue(std::string value);
  explicit JsonValue(const char* value) : JsonValue(std::string(value)) {}
  static JsonValue make_array();
  static JsonValue make_object();
  JsonValue(const JsonValue&);
  JsonValue(JsonValue&&) noexcept;
  JsonValue& operator=(const JsonValue&);
  JsonValue& operator=(JsonValue&&) noexcept;
  ~JsonValue();

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::null; }
  bool is_bool() const { return kind_ == Kind::boolean; }
  bool is_integer() const { return kind_ == Kind::integer; }
  /// An integer or a number with a fraction, an exponent or more digits than 64 bits hold.
  bool is_number() const { return kind_ == Kind::integer || kind_ == Kind::number; }
  bool is_string() const { return kind_ == Kind::string; }
  bool is_array() const { return kind_ == Kind::array; }
  bool is_object() const { return kind_ == Kind::object; }
  /// The string "auto", which front ends write for "decide for me".
  bool is_auto() const { return kind_ == Kind::string && text_ == "auto"; }

  /// The accessors below need the matching kind; as_number() takes both kinds of number.
  bool as_bool() const;
  std::int64_t as_integer() const;
  double as_number() const;
  const std::string& as_string() const;

  /// Elements of an array; empty for every other kind.
  const std::vector<JsonValue>& items() const { return items_; }
  std::vector<JsonValue>& items() { return items_; }
  /// Members of an object in order; empty for every other kind.
  const std::vector<JsonMember>& members() const { return members_; }
  std::vector<JsonMember>& members() { return members_; }
  /// The member's value, null when absent or when this is no object.
  const JsonValue* find(std::string_view name) const;
  JsonValue* find(std::string_view name);
  /// The value at a dotted path; this one for "", null when a part of it is absent.
  const JsonValue* find_path(std::string_view path) const;
  JsonValue* find_path(std::string_view path);
  /// Sets or appends a member. Turns a null value into an object.
  JsonValue& set(std::string_view name, JsonValue value);
  /// Removes the member when there.
  void erase(std::string_view name);
  void push_back(JsonValue value);

  /// A string written without quotes; the dialect runs it to the end of its line.
  bool is_quoteless() const { return quoteless_; }
  void set_quoteless() { quoteless_ = true; }

  TextPosition position() const { return position_; }
  void set_position(TextPosition position) { position_ = position; }

  /// JSON text that parses back to the same value: the shortest digits that give the number, and a
  /// ".0" on integral ones of kind number. `indent` < 0: one line; otherwise spaces per level.
  std::string dump(int indent = -1) const;
  /// As dump(), cut to about `limit` characters: for messages.
  std::string excerpt(std::size_t limit = 60) const;

  /// Same kind and value; positions do not count. 1 and 1.0 are equal.
  friend bool operator==(const JsonValue& a, const JsonValue& b);

 private:
  Kind kind_ = Kind::null;
  bool boolean_ = false;
  bool quoteless_ = false;
  TextPosition position_;
  std::int64_t integer_ = 0;
  double number_ = 0;
  std::string text_;
  std::vector<JsonValue> items_;
  std::vector<JsonMember> members_;
};

struct JsonMember {
  std::string name;
  TextPosition name_position;
  JsonValue value;
};

/// "null", "a boolean", "an integer", "a number", "a string", "a list", "an object".
std::string_view describe_kind(JsonValue::Kind kind);

}  // namespace zero3d
