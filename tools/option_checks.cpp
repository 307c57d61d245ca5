#include "option_checks.h"

#include <charconv>
#include <cmath>
#include <string>

#include "zero3d/core/text.h"

namespace zero3d::tools {
namespace {

/// The number that is all of `text`.
template <typename T>
bool parse(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end;
}

std::string excerpt(const std::string& text) {
  constexpr std::size_t kLongest = 60;
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

}  // namespace

CLI::Validator whole_number(std::uint64_t low, std::uint64_t high) {
  const auto check = [low, high](const std::string& text) -> std::string {
    std::uint64_t value = 0;
    const bool octal = text.size() > 1 && text[0] == '0';  // to the parser of options
    if (!octal && parse(text, value) && value >= low && value <= high) return "";
    return concat("expected a whole number from ", low, " to ", high, " in decimal digits, found ",
                  excerpt(text));
  };
  return CLI::Validator(check, "", "whole number");
}

CLI::Validator real_number(double low) {
  const auto check = [low](const std::string& text) -> std::string {
    double value = 0;
    if (parse(text, value) && std::isfinite(value) && value >= low) return "";
    return concat("expected a number", std::isfinite(low) ? concat(" of at least ", low) : "",
                  ", found ", excerpt(text));
  };
  return CLI::Validator(check, "", "number");
}

}  // namespace zero3d::tools
