#include "zero3d/data/permutation.h"

#include <array>

#include "zero3d/core/error.h"
#include "zero3d/core/random.h"

namespace zero3d {
namespace {

constexpr std::uint32_t kRounds = 8;

/// Half of the bits of a domain of 4^half that holds `count` values.
unsigned half_bits(std::int64_t count) {
  unsigned half = 1;
  while (half < 31 && (std::int64_t{1} << (2 * half)) < count) ++half;
  return half;
}

}  // namespace

std::int64_t permuted(std::uint64_t seed, std::uint64_t epoch, std::int64_t index,
                      std::int64_t count) {
  ZERO3D_CHECK(index >= 0 && index < count && count <= (std::int64_t{1} << 62),
               "permutation of an index outside its range");
  const unsigned half = half_bits(count);
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  const std::array<std::uint32_t, 2> key = {static_cast<std::uint32_t>(seed),
                                            static_cast<std::uint32_t>(seed >> 32)};
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half;
    std::uint64_t right = value & mask;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const auto words =
          philox4x32({static_cast<std::uint32_t>(right), round, static_cast<std::uint32_t>(epoch),
                      static_cast<std::uint32_t>(epoch >> 32)},
                     key);
      const std::uint64_t mixed = left ^ (words[0] & mask);
      left = right;
      right = mixed;
    }
    value = left << half | right;
  } while (value >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(value);
}

}  // namespace zero3d
