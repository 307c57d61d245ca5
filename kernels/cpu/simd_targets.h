// Which instruction sets the CPU kernels are compiled for; included before any Highway header. The
// best one the machine has is chosen at run time. Left out are sets that would only add code: our
// loops gain little from the SSE steps above SSE2 or from AVX-512's later extensions, and SVE
// vectors, having no size, cannot be held in arrays.
#pragma once

#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
