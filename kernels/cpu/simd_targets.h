// Which instruction sets the CPU kernels are compiled for; included before any Highway header. The
// best one the machine has is chosen at run time: AVX-512, AVX2 or plain scalar code on x86.
// Each one costs a third of the time that the kernels take to compile. Left out are sets that would
// only add code: AVX-512's later extensions, and SSE, which CPUs without AVX2, a decade old, would
// gain from; and SVE, whose vectors have no size and so cannot be held in arrays.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ZERO3D_UNSANITIZED_TARGETS HWY_AVX3  // the same loops as AVX2's, with longer vectors
#else
#define ZERO3D_UNSANITIZED_TARGETS 0
#endif

#define HWY_DISABLED_TARGETS                                                              \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | \
   ZERO3D_UNSANITIZED_TARGETS)
