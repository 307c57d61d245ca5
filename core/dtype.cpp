#include "zero3d/core/dtype.h"

#include <array>

namespace zero3d {
namespace {

struct Info {
  std::size_t bytes;
  std::string_view name;
  bool floating;
};
constexpr std::array<Info, 8> kInfo = {{{4, "fp32", true},
                                        {2, "bf16", true},
                                        {2, "fp16", true},
                                        {8, "fp64", true},
                                        {4, "int32", false},
                                        {8, "int64", false},
                                        {2, "uint16", false},
                                        {1, "uint8", false}}};

const Info& info(DType dtype) { return kInfo[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::size_t size_of(DType dtype) { return info(dtype).bytes; }
std::string_view name_of(DType dtype) { return info(dtype).name; }
bool is_floating(DType dtype) { return info(dtype).floating; }

}  // namespace zero3d
