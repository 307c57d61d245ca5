// Division and multiples of numbers that are not negative, rounded up.
#pragma once

namespace zero3d {

template <typename T>
constexpr T ceil_div(T value, T divisor) {
  return (value + divisor - 1) / divisor;
}

template <typename T>
constexpr T round_up(T value, T multiple) {
  return ceil_div(value, multiple) * multiple;
}

}  // namespace zero3d
