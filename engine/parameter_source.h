// Where a parameter's first value comes from: its declared initial values, or a folder of weights.
// The engine asks only for the slices that its rank holds.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "zero3d/core/view.h"
#include "zero3d/engine/module.h"
#include "zero3d/engine/zero/placement.h"

namespace zero3d {

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  /// Writes runs of the global parameter, each to its offset of host memory `dst` (f32, bf16 or
  /// f16; converted with one rounding). Called concurrently for different ranks. Throws IoError.
  virtual void read(const ParameterSpec& parameter, std::span<const GlobalRun> runs,
                    const View& dst) const = 0;
};

/// Draws `spec.initial` with `seed`.
std::unique_ptr<ParameterSource> make_initial_values_source(std::uint64_t seed);

}  // namespace zero3d
