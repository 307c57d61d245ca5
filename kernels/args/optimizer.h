// What an update loop gets: plain pointers, extents and constants, the same for every back end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "zero3d/core/dtype.h"
#include "zero3d/kernels/isa.h"
#include "zero3d/kernels/optimizer.h"

namespace zero3d::kernels {

struct Array {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
};

/// One slice; f32, bf16 or f16 each. Which of them a rule touches is stated with its constants.
struct ElementArrays {
  std::int64_t numel = 0;
  Array master;
  Array gradient;
  std::array<Array, 3> states;
  Array copy;  ///< Gets the new master, rounded; no data: none.
};

template <typename Constants>
struct UpdateArgs {
  std::vector<ElementArrays> slices;
  Constants constants;
  Isa isa;  ///< Of the CPU's loops.
};

struct LambStepArgs {
  std::vector<ElementArrays> slices;
  std::vector<const double*> squares;  ///< Per slice: of the parameter and of its direction.
  LambStepConstants constants;
  Isa isa;
};

}  // namespace zero3d::kernels
