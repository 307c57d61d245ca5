// Philox4x32-10 counter-based random numbers (Salmon et al., SC'11): a value is a pure function of
// its key, so that dropout and initial values are the same whatever the rank, thread count or order
// of evaluation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace zero3d {

/// Four 32-bit words from a 128-bit counter and a 64-bit key.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

/// What a random number belongs to; together with an element index it names one value for the whole
/// run.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;   ///< Optimizer step, 0 for initial values.
  std::uint32_t layer = 0;  ///< Block index times 16 plus the site within the block.
  std::uint64_t sample =
      0;  ///< Global index of the sample within the step's batch (first row of a view).

  /// Uniform 32-bit word of element `element` of `sample`.
  std::uint32_t word(std::uint64_t sample_index, std::uint64_t element) const;
};

/// Uniform in (0, 1) from a word.
inline float to_uniform(std::uint32_t word) {
  return (static_cast<float>(word >> 8) + 0.5f) * (1.0f / 16777216.0f);
}

/// Standard normal value number `element` of the stream named by `key` (Box-Muller in double).
float random_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t element);

/// A 64-bit hash of a name (FNV-1a): the stream of a parameter's initial values.
std::uint64_t hash_name(const char* data, std::size_t size);

}  // namespace zero3d
