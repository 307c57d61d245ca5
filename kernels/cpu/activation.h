// Activations and dropout on the CPU: the bodies behind kernels/activation.h, called from a
// stream's task.
#pragma once

#include <cstdint>

#include "zero3d/core/dtype.h"
#include "zero3d/core/random.h"
#include "zero3d/kernels/cpu/rows.h"

namespace zero3d::kernels::cpu {

/// dy == nullptr: out = gelu(x), else out = dy * gelu'(x).
struct GeluArgs {
  DType dtype = DType::f32;
  std::int64_t count = 0;
  const void* x = nullptr;
  const void* dy = nullptr;
  void* out = nullptr;
};
void gelu(const GeluArgs& args);

/// `y` is written by forward; dy read, and dgate and dup written, by backward.
struct SwigluArgs {
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
void swiglu_forward(const SwigluArgs& args);
void swiglu_backward(const SwigluArgs& args);

/// Elements for which dropout draws its numbers at a time.
inline constexpr std::int64_t kDropoutChunk = 4096;

struct DropoutArgs {
  DType dtype = DType::f32;
  std::int64_t samples = 0;
  std::int64_t per_sample = 0;  ///< Elements.
  float p = 0;
  RandomKey key;
  const void* x = nullptr;
  const void* residual = nullptr;  ///< May be null.
  void* y = nullptr;
};
void dropout(const DropoutArgs& args);

}  // namespace zero3d::kernels::cpu
