// A seeded permutation as a pure function: no table, so that any rank finds its samples in constant
// memory and a run is resumed from one integer.
#pragma once

#include <cstdint>

namespace zero3d {

/// Where `index` of [0, count) goes in permutation number `epoch` of `seed`: a bijection of [0,
/// count). A Feistel network over the next power of four, walked until it falls into range (Black
/// and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002); fewer than four steps on average.
std::int64_t permuted(std::uint64_t seed, std::uint64_t epoch, std::int64_t index,
                      std::int64_t count);

}  // namespace zero3d
