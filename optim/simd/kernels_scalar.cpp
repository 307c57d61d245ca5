// The update loops on plain floats: the path of a CPU without a vector target, and what the others
// are compared with.
#include <hwy/base.h>

#include "zero3d/optim/simd/kernels.h"
#include "zero3d/optim/simd/scalar_lanes.h"

namespace zero3d::simd {
namespace scalar_lanes {
#include "zero3d/optim/simd/bodies-inl.h"
}  // namespace scalar_lanes

const KernelTable& scalar_kernels() { return scalar_lanes::table(); }

}  // namespace zero3d::simd
