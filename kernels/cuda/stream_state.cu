#include "zero3d/kernels/cuda/stream_state.h"

#include <map>
#include <mutex>
#include <utility>

#include "zero3d/kernels/cuda/launch.cuh"

namespace zero3d::kernels::cuda {
namespace {

class State : public StreamState {
 public:
  explicit State(NativeStream stream) : stream_(stream) {
    check_cuda(cudaMalloc(&bad_word_, sizeof(*bad_word_)), "memory of a stream");
    check_cuda(cudaMallocHost(&bad_copy_, sizeof(*bad_copy_)), "host memory of a stream");
    check_cuda(cudaMemsetAsync(bad_word_, 0xff, sizeof(*bad_word_), stream_), "clear a word");
    *bad_copy_ = kNoBadElement;
  }

  std::byte* scratch(std::size_t bytes) override {
    if (bytes > bytes_) {
      check_cuda(cudaStreamSynchronize(stream_), "grow a stream's scratch");
      check_cuda(cudaFree(std::exchange(scratch_, nullptr)), "grow a stream's scratch");
      bytes_ = 0;
      const std::size_t wanted = bytes + bytes / 4;
      check_cuda(cudaMalloc(&scratch_, wanted), "grow a stream's scratch");
      bytes_ = wanted;
    }
    return scratch_;
  }
  std::uint64_t* bad_word() override { return bad_word_; }
  const std::uint64_t* copy_bad_word() override {
    check_cuda(
        cudaMemcpyAsync(bad_copy_, bad_word_, sizeof(*bad_word_), cudaMemcpyDeviceToHost, stream_),
        "copy a word to the host");
    // Whoever gets this stream's handle next begins with a clean word.
    check_cuda(cudaMemsetAsync(bad_word_, 0xff, sizeof(*bad_word_), stream_), "clear a word");
    return bad_copy_;
  }
  void* products(const std::function<std::shared_ptr<void>()>& make) override {
    if (products_ == nullptr) products_ = make();
    return products_.get();
  }

 private:
  NativeStream stream_;
  std::byte* scratch_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint64_t* bad_word_ = nullptr;
  std::uint64_t* bad_copy_ = nullptr;
  std::shared_ptr<void> products_;
};

}  // namespace

StreamState& state_of(NativeStream stream) {
  // Never destroyed: the driver may be gone when the process ends. A stream that gets the handle of
  // one that has ended goes on with what that one left.
  static auto& states = *new std::map<std::pair<int, NativeStream>, std::unique_ptr<State>>;
  static std::mutex mutex;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "the thread's device");
  const std::lock_guard lock(mutex);
  std::unique_ptr<State>& state = states[{device, stream}];
  if (state == nullptr) state = std::make_unique<State>(stream);
  return *state;
}

}  // namespace zero3d::kernels::cuda
