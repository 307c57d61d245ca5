// The conversions of Reader: what DeepSpeed's sections take for a flag, a number or a text, and
// what they refuse, with the fix.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/reader.h"

namespace zero3d::config {

namespace {

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

/// What a value that is no text says as a number.
std::optional<double> plain_value(const Stated& stated) {
  const auto& [field, path, value] = stated;
  if (value.is_number()) return value.as_number();
  if (value.is_bool() && !field.plain_number) return value.as_bool() ? 1 : 0;
  return std::nullopt;
}

/// "an integer > 0".
std::string expected_number(std::string_view what, const Range& range) {
  const std::string bounds = range.text();
  return concat(what, bounds.empty() ? "" : " ", bounds);
}

bool is_one_of(std::string_view word, std::span<const std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// Why an unquoted word may stand where something else was meant.
std::string quoteless_hint(const JsonValue& value) {
  if (!value.is_quoteless()) return {};
  const std::string& text = value.as_string();
  const std::string word = text.substr(0, text.find_first_of(",}] "));
  if (word == "True" || word == "False") {
    return concat("write ", lower_case(word), ": JSON spells it in lower case");
  }
  if (word == "None") return "write null, or remove the key: JSON has no None";
  return "an unquoted word runs to the end of its line; if it is a placeholder of a template, put "
         "a value in its place";
}

}  // namespace

std::nullopt_t Reader::refuse(const Stated& stated, std::string_view expected,
                              std::string_view fix) {
  const JsonValue& value = stated.value;
  std::string found = value.excerpt();
  if (value.is_string() ||
      ((value.is_array() || value.is_object()) && found.find(" of ") == std::string::npos)) {
    found = concat(value.is_string() ? "the string" : describe_kind(value.kind()), " ", found);
  }
  const std::string hint = fix.empty() ? quoteless_hint(value) : std::string(fix);
  const std::string message = concat("expected ", expected, ", found ", found, after(hint));
  if (stated.field.checked) {
    error(stated.path, message, value.position());
  } else {
    const bool late = !stated.field.only_here;
    train_error(stated.path,
                message + (late ? " (DeepSpeed does not look at it before it is used)" : ""),
                value.position());
  }
  return std::nullopt;
}

Reader::Converted Reader::to_bool(const Stated& stated) {
  const auto& [field, path, value] = stated;
  if (value.is_bool()) return value;
  if (field.kind == Kind::bit && value.is_integer()) return JsonValue(value.as_integer() != 0);
  const bool quoted = value.is_string() && !value.is_quoteless();
  const char* unquote = quoted ? "write it without quotes" : "";
  if (field.kind == Kind::bit || (field.no_text && value.is_string()))
    return refuse(stated, "true or false", unquote);
  if (value == JsonValue(0) || value == JsonValue(1)) return JsonValue(value.as_number() == 1);
  if (value.is_string() && field.checked) {
    constexpr std::string_view kTrue[] = {"true", "t", "yes", "y", "on", "1"};
    constexpr std::string_view kFalse[] = {"false", "f", "no", "n", "off", "0"};
    const std::string word = lower_case(value.as_string());
    if (is_one_of(word, kTrue)) return JsonValue(true);
    if (is_one_of(word, kFalse)) return JsonValue(false);
  }
  if (field.checked) return refuse(stated, "true or false", unquote);
  refuse(stated, "true or false",
         quoted ? "any text counts as true here; write it without quotes" : "");
  // What Python makes of it, so that what depends on it is judged as DeepSpeed judges it.
  return JsonValue(!is_falsy(value));
}

Reader::Converted Reader::to_integer(const Stated& stated) {
  const auto& [field, path, value] = stated;
  const auto refused = [&](std::string_view fix) {
    return refuse(stated, expected_number("an integer", stated.field.range), fix);
  };
  std::optional<double> number = plain_value(stated);
  if (value.is_string()) {
    const std::string& text = value.as_string();
    if (field.no_text)
      return refused(value.is_quoteless() ? "" : "write the number without quotes");
    number = spelt_integer(text);
    if (field.plain_number && text.find('.') != std::string::npos) number.reset();
    const auto meant = spelt_number(text);
    if (!number && meant && *meant == std::floor(*meant))
      return refused(concat("write ", trim(text), " without the quotes"));
  }
  if (!number) {
    const std::vector<JsonValue>& items = value.items();
    if (items.size() == 1 && items[0].is_number())
      return refused(concat("write ", items[0].dump(), " without the brackets"));
    return refused(value.is_null() ? "remove the key for its default" : "");
  }
  const double asked = number.value_or(0);  // is there, which g++ 12 does not see in every build
  const double below = std::floor(asked);
  if (asked != below) {
    const auto whole = static_cast<std::int64_t>(below);  // fits, since it has a fraction
    return refused(concat("it has a fraction: write ", whole, " or ", whole + 1));
  }
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (!value.is_integer() && (asked >= kLimit || asked < -kLimit))
    return refused("the largest integer is 9223372036854775807");
  if (!field.range.contains(asked))
    return refused(value.is_string() ? "the number in it is out of that range" : "");
  return value.is_integer() ? value : JsonValue(static_cast<std::int64_t>(asked));
}

Reader::Converted Reader::to_number(const Stated& stated) {
  const auto& [field, path, value] = stated;
  const std::optional<double> number =
      value.is_string() ? spelt_number(value.as_string()) : plain_value(stated);
  if (number && field.range.contains(*number)) return JsonValue(*number);
  return refuse(stated, expected_number("a number", field.range),
                value.is_null() ? "remove the key for its default" : "");
}

Reader::Converted Reader::to_text(const Stated& stated) {
  const auto& [field, path, value] = stated;
  const std::vector<std::string_view> names = split_names(field.choices);
  const std::string expected =
      names.empty() ? "a string" : concat("one of \"", joined(names, "\", \""), "\"");
  if (!value.is_string()) {
    return refuse(stated, expected,
                  value.is_null() && !field.nullable ? "remove the key for its default" : "");
  }
  const std::string& word = value.as_string();
  if (names.empty()) return value;
  for (const std::string_view name : names) {
    if (name == word || (field.any_case && lower_case(name) == lower_case(word)))
      return JsonValue(std::string(name));
  }
  return refuse(stated, expected, did_you_mean(lower_case(word), names));
}

Reader::Converted Reader::to_texts(const Stated& stated) {
  const auto& [field, path, value] = stated;
  const std::vector<std::string_view> names = split_names(field.choices);
  const auto fits = [&](const JsonValue& item) {
    return item.is_string() && (names.empty() || is_one_of(item.as_string(), names));
  };
  if (value.is_array() && std::all_of(value.items().begin(), value.items().end(), fits))
    return value;
  return refuse(stated,
                names.empty() ? "a list of strings"
                              : concat("a list out of \"", joined(names, "\" \""), "\""),
                value.is_string() ? concat("write [", value.excerpt(), "]") : "");
}

}  // namespace zero3d::config
