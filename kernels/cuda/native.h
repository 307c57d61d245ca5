// A CUDA stream as headers without CUDA's own name it: what every body on a GPU gets beside its
// arguments.
#pragma once

struct CUstream_st;

namespace zero3d::kernels::cuda {

/// cudaStream_t.
using NativeStream = CUstream_st*;

}  // namespace zero3d::kernels::cuda
