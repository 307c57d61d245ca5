// A GPU as a device. A stream is a thread of the host in front of a CUDA stream: it hands kernels
// and copies on without waiting, waits itself for what only the host can know of (points of CPU
// streams and of I/O), and runs host tasks once the GPU has done what was enqueued before. Events
// between CUDA streams stay on the GPU.
#pragma once

#include <cstdint>
#include <memory>

#include "zero3d/device/device.h"

namespace zero3d {

/// Whether this build has the CUDA back end (-DZERO3D_CUDA=ON).
bool built_with_cuda();

/// GPUs that the process may use (CUDA_VISIBLE_DEVICES); 0 when there is no driver, or this build
/// has no CUDA.
int cuda_device_count();

/// Bytes of the GPU's memory that nobody holds now.
std::int64_t cuda_free_memory(int device);

struct CudaDeviceOptions {
  int rank = 0;     ///< Shown in traces and errors.
  int device = 0;   ///< Below cuda_device_count().
  int threads = 1;  ///< Threads that run one kernel of a host stream.
  std::int64_t budget_bytes = TrackingResource::kUnlimited;
  std::int64_t host_budget_bytes = TrackingResource::kUnlimited;  ///< Pinned and pageable together.
  bool check_hazards = CpuDeviceOptions::default_checks();
  std::uint64_t jitter_seed = 0;  ///< Nonzero: random sub-millisecond delays before tasks.
};

/// Throws Error(kInvalid) when the device is not there, or when this build has no CUDA.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options);

/// The GPU of the rank that is the `local_rank`th on its machine: ranks take GPUs in turn. Throws
/// as make_cuda_device() does when there is none.
int cuda_device_of(int local_rank);

}  // namespace zero3d
