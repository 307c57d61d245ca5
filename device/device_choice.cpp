#include "zero3d/device/device_choice.h"

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/cuda/cuda_device.h"

namespace zero3d {

DeviceChoice parse_device_choice(const std::string& word) {
  if (word == "cpu") return DeviceChoice::cpu;
  if (word == "cuda") return DeviceChoice::cuda;
  if (word == "auto") return DeviceChoice::automatic;
  throw_invalid(concat("device ", word, "; expected cpu, cuda or auto"));
}

DeviceKind device_kind(DeviceChoice choice) {
  if (choice == DeviceChoice::cpu) return DeviceKind::cpu;
  if (choice == DeviceChoice::automatic)
    return cuda_device_count() > 0 ? DeviceKind::cuda : DeviceKind::cpu;
  cuda_device_of(0);  // throws where there is none
  return DeviceKind::cuda;
}

std::unique_ptr<Device> make_device(DeviceKind kind, const CpuDeviceOptions& options,
                                    int local_rank) {
  if (kind == DeviceKind::cpu) return make_cpu_device(options);
  if (kind != DeviceKind::cuda) throw_invalid("a rank trains on a CPU or on a GPU");
  CudaDeviceOptions gpu;
  gpu.rank = options.rank;
  gpu.device = cuda_device_of(local_rank);
  gpu.threads = options.threads;
  gpu.budget_bytes = options.budget_bytes;
  gpu.host_budget_bytes = options.host_budget_bytes;
  gpu.check_hazards = options.check_hazards;
  gpu.jitter_seed = options.jitter_seed;
  return make_cuda_device(gpu);
}

}  // namespace zero3d
