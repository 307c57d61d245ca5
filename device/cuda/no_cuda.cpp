// The CUDA back end of a build without it.
#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/cuda/cuda_device.h"
#include "zero3d/device/cuda/cuda_stream.h"

namespace zero3d {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw_invalid(
      concat(what,
             ": this build has no CUDA; configure it with -DZERO3D_CUDA=ON (or cmake --preset "
             "cuda), which needs the CUDA Toolkit, or train with --device cpu"));
}

}  // namespace

bool built_with_cuda() { return false; }
int cuda_device_count() { return 0; }

std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options) {
  refuse(concat("a CUDA device for rank ", options.rank));
}
std::int64_t cuda_free_memory(int device) { refuse(concat("the memory of GPU ", device)); }
int cuda_device_of(int local_rank) { refuse(concat("the GPU of local rank ", local_rank)); }

void enqueue_cuda(Stream& stream, std::string what, std::span<const Access>,
                  std::function<void(CudaStreamHandle)>) {
  refuse(concat(what, " on stream '", stream.name(), "'"));
}
void wait_on_cuda(CudaStreamHandle, const Event&) { refuse("a wait of a CUDA stream"); }
void check_at_points(const CudaCheck&) { refuse("a check of a CUDA stream"); }
void then_handed_on(Stream& stream, std::function<void(const std::exception_ptr&)>) {
  refuse(concat("a call after the work of stream '", stream.name(), "'"));
}

}  // namespace zero3d
