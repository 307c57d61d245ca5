// What moves and adds bytes in a task of a stream: the host's processors or the GPU behind it.
// Internal to the thread communicator.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "zero3d/device/cuda/cuda_stream.h"
#include "zero3d/device/parallel.h"
#include "zero3d/parallel/comm/reduce_sum.h"

namespace zero3d::detail {

class Mover {
 public:
  virtual ~Mover() = default;
  virtual void copy(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  virtual void sum(const kernels::ReduceSumArgs& args) = 0;
  /// Blocks until all it was given is over, where it does not do that at once.
  virtual void settle() = 0;
  /// What follows comes after `event`, which is done or has been handed to the device.
  virtual void wait(const Event& event) = 0;
};

class CpuMover final : public Mover {
 public:
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    constexpr std::int64_t kGrain = 1 << 20;  // bytes; an L2's worth
    if (bytes == 0 || to == from) return;
    const auto body = [=](std::int64_t begin, std::int64_t end) {
      std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
    };
    if (bytes <= kGrain) return body(0, bytes);
    parallel_for(bytes, kGrain, body);
  }
  void sum(const kernels::ReduceSumArgs& args) override { kernels::cpu::reduce_sum(args); }
  void settle() override {}
  void wait(const Event&) override {}  // a CPU stream's events are done when its peers have met
};

/// Between GPUs as between memory and memory of one. Never called in a build without CUDA.
std::unique_ptr<Mover> make_cuda_mover(CudaStreamHandle stream);

/// Enqueues work(mover).
template <typename Work>
void launch_moves(Stream& stream, const char* what, std::span<const Access> touched, Work work) {
  if (stream.kind() == DeviceKind::cuda) {
    enqueue_cuda(stream, what, touched, [work = std::move(work)](CudaStreamHandle queue) {
      work(*make_cuda_mover(queue));
    });
  } else {
    stream.launch(what, touched, [work = std::move(work)] {
      CpuMover mover;
      work(mover);
    });
  }
}

}  // namespace zero3d::detail
