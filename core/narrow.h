// The conversion of a number from outside (a configuration, an option, a file) to a narrower type:
// it stays the number that was given, or is refused.
#pragma once

#include <cmath>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {

/// `value` as a To. Whole numbers keep their value, finite ones round to the nearest and stay
/// finite; otherwise Error(kInvalid), naming `what`: "fp16.initial_scale_power".
template <typename To, typename From>
To narrow(From value, std::string_view what) {
  static_assert(std::is_integral_v<To> == std::is_integral_v<From>, "rounding is said in words");
  bool fits;
  if constexpr (std::is_integral_v<To>) {
    fits = std::in_range<To>(value);
  } else {
    fits = !std::isfinite(value) || std::isfinite(static_cast<To>(value));
  }
  if (!fits) {
    using Limits = std::numeric_limits<To>;
    throw_invalid(concat(what, " is ", value, "; expected a number from ", +Limits::lowest(),
                         " to ", +Limits::max()));
  }
  return static_cast<To>(value);
}

}  // namespace zero3d
