// Which instruction set the update loops of the CPU run with. Every one gives the same bits; the
// choice is for speed and for tests.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace zero3d::kernels {

enum class Isa { scalar, neon, avx2, avx512 };

std::string_view name_of(Isa isa);
/// "scalar", "neon", "avx2", "avx512"; throws Error(kInvalid) otherwise.
Isa parse_isa(std::string_view name);

/// Compiled in and supported by this CPU, slowest first: scalar code on x86.
std::vector<Isa> available_isas();

/// `forced` if given, else the environment's ZERO3D_ISA, else the fastest available. Throws
/// Error(kInvalid) for one that this CPU or build lacks.
Isa choose_isa(std::optional<Isa> forced = std::nullopt);

}  // namespace zero3d::kernels
