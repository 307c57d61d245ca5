// What activations and dropout get. Plain pointers and extents, the same for every back end.
#pragma once

#include <cstdint>

#include "zero3d/core/dtype.h"
#include "zero3d/core/random.h"
#include "zero3d/kernels/args/rows.h"

namespace zero3d::kernels {

/// dy == nullptr: out = gelu(x), else out = dy * gelu'(x).
struct GeluArgs {
  DType dtype = DType::f32;
  std::int64_t count = 0;
  const void* x = nullptr;
  const void* dy = nullptr;
  void* out = nullptr;
};

/// What the gate of a gated activation goes through.
enum class GateFunction : std::uint8_t { silu, gelu };

/// `y` is written by forward; dy read, and dgate and dup written, by backward.
struct GatedArgs {
  GateFunction function = GateFunction::silu;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  ConstRows gate;
  ConstRows up;
  void* y = nullptr;
  const void* dy = nullptr;
  Rows dgate;
  Rows dup;
};

struct DropoutArgs {
  DType dtype = DType::f32;
  std::int64_t samples = 0;
  std::int64_t per_sample = 0;     ///< Elements.
  std::int64_t first_element = 0;  ///< Of each sample's, which the whole sample has before these.
  float p = 0;
  RandomKey key;
  const void* x = nullptr;
  const void* residual = nullptr;  ///< May be null.
  void* y = nullptr;
};

}  // namespace zero3d::kernels
