// What Newton-Schulz iterations' passes get. Plain pointers and extents, the same for every back
// end.
#pragma once

#include <cstdint>

namespace zero3d::kernels {

struct PolynomialArgs {
  const float* x = nullptr;
  float* y = nullptr;
  std::int64_t rows = 0;  ///< And columns.
  float a = 0, b = 0, c = 0;
};

struct RescaleArgs {
  const float* from = nullptr;
  float* to = nullptr;
  std::int64_t count = 0;
  float scale = 1;
  bool normalise = false;
};

}  // namespace zero3d::kernels
