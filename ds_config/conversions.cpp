// The conversions of Reader: what DeepSpeed's sections take for a flag, a number or a text, and
// what they refuse, with the fix.
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/reader.h"

namespace zero3d::config {

namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\n\r\v\f";
  const auto first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

/// The number a string spells ("500", " 5 ", "+5", "1_000"), when it does.
std::optional<double> spelt_number(std::string_view text) {
  std::string digits;
  for (const char c : trim(text)) {
    if (c == '_' && !digits.empty() && std::isdigit(static_cast<unsigned char>(digits.back()))) {
      continue;
    }
    digits.push_back(c);
  }
  std::string_view rest = digits;
  if (rest.substr(0, 1) == "+") rest.remove_prefix(1);
  if (rest.empty() || rest.substr(0, 2) == "+-") return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (error != std::errc() || end != rest.data() + rest.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

/// As spelt_number, but only what DeepSpeed takes for an integer: no exponent, a fraction of zeros.
std::optional<double> spelt_integer(std::string_view text) {
  const auto value = spelt_number(text);
  if (!value || *value != std::floor(*value)) return std::nullopt;
  if (text.find_first_of("eE") != std::string_view::npos) return std::nullopt;
  return value;
}

std::string integral_text(double value) {
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed, 0).ptr;
  return std::string(buffer, end);
}

/// Why an unquoted word may stand where something else was meant.
std::string quoteless_hint(const JsonValue& value) {
  if (!value.is_quoteless()) return {};
  const std::string& text = value.as_string();
  const std::string word = text.substr(0, text.find_first_of(",}] "));
  if (word == "True" || word == "False") {
    return concat("write ", lower(word), ": JSON spells it in lower case");
  }
  if (word == "None") return "write null, or remove the key: JSON has no None";
  return "an unquoted word runs to the end of its line; if it is a placeholder of a template, put "
         "a value in its place";
}

}  // namespace

void Reader::refuse(const Field& field, const std::string& path, const JsonValue& value,
                    std::string_view expected, std::string_view fix) {
  std::string found = value.is_string() ? concat("the string ", value.excerpt())
                      : value.is_null() || value.is_bool() || value.is_number()
                          ? value.excerpt()
                          : concat(describe_kind(value.kind()), " ", value.excerpt());
  if (!value.is_string() && !value.is_null() && !value.is_bool() && !value.is_number() &&
      found.find(" of ") != std::string::npos) {
    found = value.excerpt();
  }
  std::string message = concat("expected ", expected, ", found ", found);
  std::string hint = value.is_string() && fix.empty() ? quoteless_hint(value) : std::string(fix);
  if (!hint.empty()) message += concat("; ", hint);
  if (field.checked) {
    error(path, std::move(message), value.position());
  } else {
    train_error(path, message + " (DeepSpeed does not look at it before it is used)",
                value.position());
  }
}

std::optional<bool> Reader::to_bool(const Field& field, const std::string& path,
                                    const JsonValue& value) {
  if (value.is_bool()) return value.as_bool();
  if (field.kind == Kind::bit && value.is_integer()) return value.as_integer() != 0;
  if (field.kind == Kind::bit || (field.no_text && value.is_string())) {
    refuse(field, path, value, "true or false",
           value.is_string() && !value.is_quoteless() ? "write it without quotes" : "");
    return std::nullopt;
  }
  if (value.is_number() && (value.as_number() == 0 || value.as_number() == 1)) {
    return value.as_number() == 1;
  }
  if (value.is_string() && field.checked) {
    const std::string word = lower(value.as_string());
    constexpr std::array kTrue = {"true", "t", "yes", "y", "on", "1"};
    constexpr std::array kFalse = {"false", "f", "no", "n", "off", "0"};
    if (std::find(kTrue.begin(), kTrue.end(), word) != kTrue.end()) return true;
    if (std::find(kFalse.begin(), kFalse.end(), word) != kFalse.end()) return false;
  }
  refuse(field, path, value, "true or false",
         !value.is_string() || value.is_quoteless() ? ""
         : field.checked                            ? "write it without quotes"
                         : "any text counts as true here; write it without quotes");
  if (field.checked) return std::nullopt;
  // What Python makes of it, so that what depends on it is judged as DeepSpeed judges it.
  return value.is_object()   ? !value.members().empty()
         : value.is_array()  ? !value.items().empty()
         : value.is_string() ? !value.as_string().empty()
                             : value.is_number();
}

std::optional<std::int64_t> Reader::to_integer(const Field& field, const std::string& path,
                                               const JsonValue& value) {
  const std::string bounds = field.range.text();
  const std::string expected = concat("an integer", bounds.empty() ? "" : " ", bounds);
  std::optional<double> number;
  if (value.is_bool() && !field.plain_number) number = value.as_bool() ? 1 : 0;
  if (value.is_number()) number = value.as_number();
  if (value.is_string() && field.no_text) {
    refuse(field, path, value, expected,
           value.is_quoteless() ? "" : "write the number without quotes");
    return std::nullopt;
  }
  if (value.is_string()) {
    number = spelt_integer(value.as_string());
    if (field.plain_number && value.as_string().find('.') != std::string::npos) number.reset();
    if (!number) {
      const auto meant = spelt_number(value.as_string());
      std::string fix = value.is_quoteless() ? quoteless_hint(value) : std::string();
      if (meant && *meant == std::floor(*meant)) {
        fix = concat("write ", trim(value.as_string()), " without the quotes");
      }
      refuse(field, path, value, expected, fix);
      return std::nullopt;
    }
  }
  if (!number) {
    std::string fix;
    if (value.is_array() && value.items().size() == 1 && value.items()[0].is_number()) {
      fix = concat("write ", value.items()[0].dump(), " without the brackets");
    }
    if (value.is_null()) fix = "remove the key for its default";
    refuse(field, path, value, expected, fix);
    return std::nullopt;
  }
  if (*number != std::floor(*number)) {
    refuse(field, path, value, expected,
           concat("it has a fraction: write ", integral_text(std::floor(*number)), " or ",
                  integral_text(std::ceil(*number))));
    return std::nullopt;
  }
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (!value.is_integer() && (*number >= kLimit || *number < -kLimit)) {
    refuse(field, path, value, expected, "the largest integer is 9223372036854775807");
    return std::nullopt;
  }
  if (!field.range.contains(*number)) {
    refuse(field, path, value, expected,
           value.is_number() || value.is_bool() ? "" : "the number in it is out of that range");
    return std::nullopt;
  }
  return value.is_integer() ? value.as_integer() : static_cast<std::int64_t>(*number);
}

std::optional<double> Reader::to_number(const Field& field, const std::string& path,
                                        const JsonValue& value) {
  const std::string bounds = field.range.text();
  const std::string expected = concat("a number", bounds.empty() ? "" : " ", bounds);
  std::optional<double> number;
  if (value.is_bool() && !field.plain_number) number = value.as_bool() ? 1 : 0;
  if (value.is_number()) number = value.as_number();
  if (value.is_string()) number = spelt_number(value.as_string());
  if (!number) {
    refuse(field, path, value, expected, value.is_null() ? "remove the key for its default" : "");
    return std::nullopt;
  }
  if (!field.range.contains(*number)) {
    refuse(field, path, value, expected);
    return std::nullopt;
  }
  return number;
}

std::optional<std::string> Reader::to_text(const Field& field, const std::string& path,
                                           const JsonValue& value) {
  const std::vector<std::string_view> names = split_names(field.choices);
  std::string list;
  for (const std::string_view name : names)
    list += concat(list.empty() ? "" : ", ", "\"", name, "\"");
  if (!value.is_string()) {
    refuse(field, path, value, list.empty() ? std::string("a string") : concat("one of ", list),
           value.is_null() && !field.nullable ? "remove the key for its default" : "");
    return std::nullopt;
  }
  if (names.empty()) return value.as_string();
  for (const std::string_view name : names) {
    if (name == value.as_string() || (field.any_case && lower(name) == lower(value.as_string())))
      return std::string(name);
  }
  std::string fix = did_you_mean(lower(value.as_string()), names);
  if (value.is_quoteless() && fix.empty()) fix = quoteless_hint(value);
  refuse(field, path, value, concat("one of ", list), fix);
  return std::nullopt;
}

std::optional<JsonValue> Reader::to_texts(const Field& field, const std::string& path,
                                          const JsonValue& value) {
  const std::vector<std::string_view> names = split_names(field.choices);
  const bool fits =
      value.is_array() &&
      std::all_of(value.items().begin(), value.items().end(), [&](const JsonValue& item) {
        return item.is_string() && (names.empty() || std::find(names.begin(), names.end(),
                                                               item.as_string()) != names.end());
      });
  if (fits) return value;
  std::string expected = names.empty() ? "a list of strings" : "a list out of";
  for (const std::string_view name : names) expected += concat(" \"", name, "\"");
  refuse(field, path, value, expected,
         value.is_string() ? concat("write [", value.excerpt(), "]") : std::string());
  return std::nullopt;
}

}  // namespace zero3d::config
