// The rate of fp32 fused multiply-adds that the machine reaches from registers alone: the ceiling
// of matrix products.
#pragma once

namespace zero3d::bench {

/// GFLOP/s of one thread, the best of several short runs of the widest vectors the CPU has.
double fma_peak();

}  // namespace zero3d::bench
