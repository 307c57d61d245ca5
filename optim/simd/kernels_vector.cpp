// The update loops compiled once per vector target by Highway, and the choice among them. Targets
// below AVX2 are left to the scalar path.
#include "zero3d/optim/simd/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero3d/optim/simd/kernels_vector.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace zero3d::simd::HWY_NAMESPACE {
// The bodies need the lanes.
// clang-format off
#include "zero3d/optim/simd/vector_lanes-inl.h"
#include "zero3d/optim/simd/bodies-inl.h"
// clang-format on
}  // namespace zero3d::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
#include <algorithm>
#include <cstdlib>
#include <string>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace simd {
namespace {

struct Target {
  Isa isa;
  std::int64_t highway_target;
  const KernelTable& (*table)();
};

/// Slowest first.
const std::vector<Target>& compiled_targets() {
  static const std::vector<Target> targets = {
#if HWY_TARGETS & HWY_NEON
    {Isa::neon, HWY_NEON, &N_NEON::table},
#endif
#if HWY_TARGETS & HWY_SVE
    {Isa::sve, HWY_SVE, &N_SVE::table},
#endif
#if HWY_TARGETS & HWY_AVX2
    {Isa::avx2, HWY_AVX2, &N_AVX2::table},
#endif
#if HWY_TARGETS & HWY_AVX3
    {Isa::avx512, HWY_AVX3, &N_AVX3::table},
#endif
  };
  return targets;
}

}  // namespace

const KernelTable& kernels(Isa isa) {
  for (const Target& target : compiled_targets())
    if (target.isa == isa) return target.table();
  ZERO3D_CHECK(isa == Isa::scalar, "an instruction set that is not compiled in");
  return scalar_kernels();
}

}  // namespace simd

std::vector<Isa> available_isas() {
  std::vector<Isa> isas = {Isa::scalar};
  for (const simd::Target& target : simd::compiled_targets())
    if (hwy::SupportedTargets() & target.highway_target) isas.push_back(target.isa);
  return isas;
}

namespace {
constexpr std::pair<Isa, std::string_view> kIsaNames[] = {{Isa::scalar, "scalar"},
                                                          {Isa::neon, "neon"},
                                                          {Isa::sve, "sve"},
                                                          {Isa::avx2, "avx2"},
                                                          {Isa::avx512, "avx512"}};
}  // namespace

std::string_view name_of(Isa isa) {
  for (const auto& [known, name] : kIsaNames)
    if (known == isa) return name;
  return "unknown";
}

Isa parse_isa(std::string_view name) {
  for (const auto& [isa, known] : kIsaNames)
    if (known == name) return isa;
  throw_invalid(concat("instruction set: expected scalar, neon, sve, avx2 or avx512, found \"",
                       name, "\" (environment variable ZERO3D_ISA)"));
}

Isa choose_isa(std::optional<Isa> forced) {
  const std::vector<Isa> available = available_isas();
  if (!forced) {
    const char* variable = std::getenv("ZERO3D_ISA");
    if (!variable || !*variable) return available.back();
    forced = parse_isa(variable);
  }
  if (std::find(available.begin(), available.end(), *forced) == available.end()) {
    std::string names;
    for (const Isa isa : available) names += concat(names.empty() ? "" : ", ", name_of(isa));
    throw_invalid(concat("instruction set ", name_of(*forced),
                         " is not available on this machine; available: ", names,
                         " (environment variable ZERO3D_ISA)"));
  }
  return *forced;
}

}  // namespace zero3d
#endif  // HWY_ONCE
