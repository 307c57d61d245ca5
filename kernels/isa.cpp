#include "zero3d/kernels/isa.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d::kernels {
namespace {

constexpr std::pair<Isa, std::string_view> kIsaNames[] = {
    {Isa::scalar, "scalar"}, {Isa::neon, "neon"}, {Isa::avx2, "avx2"}, {Isa::avx512, "avx512"}};

}  // namespace

std::string_view name_of(Isa isa) {
  for (const auto& [known, name] : kIsaNames)
    if (known == isa) return name;
  return "unknown";
}

Isa parse_isa(std::string_view name) {
  for (const auto& [isa, known] : kIsaNames)
    if (known == name) return isa;
  throw_invalid(concat("instruction set: expected scalar, neon, avx2 or avx512, found \"", name,
                       "\" (environment variable ZERO3D_ISA)"));
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
    for (const Isa isa : available) append_item(names, ", ", name_of(isa));
    throw_invalid(concat("instruction set ", name_of(*forced),
                         " is not available on this machine; available: ", names,
                         " (environment variable ZERO3D_ISA)"));
  }
  return *forced;
}

}  // namespace zero3d::kernels
