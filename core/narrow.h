// The conversion of a number from outside (a configuration, an option, a file) to a narrower type:
// it stays the number that was given, or is refused.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {

/// Whether `value` is one of a To: whole numbers keep their value, finite ones stay finite.
template <typename To, typename From>
bool fits(From value) {
  static_assert(std::is_integral_v<To> == std::is_integral_v<From>, "rounding is said in words");
  if constexpr (std::is_integral_v<To>) {
    return std::in_range<To>(value);
  } else {
    return !std::isfinite(value) || std::isfinite(static_cast<To>(value));
  }
}

/// "a number from -128 to 127": what fits a To.
template <typename To>
std::string range_of() {
  using Limits = std::numeric_limits<To>;
  return concat("a number from ", +Limits::lowest(), " to ", +Limits::max());
}

/// `value` as a To, rounded to the nearest; where it does not fit, Error(kInvalid) naming `what`:
/// "fp16.initial_scale_power".
template <typename To, typename From>
To narrow(From value, std::string_view what) {
  if (!fits<To>(value)) throw_invalid(concat(what, " is ", value, "; expected ", range_of<To>()));
  return static_cast<To>(value);
}

}  // namespace zero3d
