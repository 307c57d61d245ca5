#include "zero3d/kernels/cuda/stream_state.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "zero3d/kernels/cuda/launch.cuh"

namespace zero3d::kernels::cuda {
namespace {

/// A word of device memory and its copy in the host's.
struct Word {
  std::uint64_t* device = nullptr;
  std::uint64_t* host = nullptr;
};

/// Words of checks, used again and again; checks keep it alive, on whichever thread they end.
class Words {
 public:
  Words() = default;
  ~Words() {
    for (const Word& chunk : chunks_) {
      cudaFree(chunk.device);
      cudaFreeHost(chunk.host);
    }
  }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;

  Word take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) grow();
    const Word word = free_.back();
    free_.pop_back();
    return word;
  }
  void give_back(const Word& word) {
    const std::lock_guard lock(mutex_);
    free_.push_back(word);
  }

 private:
  void grow() {
    constexpr std::size_t kChunk = 64;
    Word& chunk = chunks_.emplace_back();
    check_cuda(cudaMalloc(&chunk.device, kChunk * sizeof(std::uint64_t)), "memory of checks");
    check_cuda(cudaMallocHost(&chunk.host, kChunk * sizeof(std::uint64_t)), "memory of checks");
    for (std::size_t i = 0; i < kChunk; ++i) free_.push_back({chunk.device + i, chunk.host + i});
  }

  std::mutex mutex_;
  std::vector<Word> chunks_, free_;
};

class State final : public StreamState {
 public:
  explicit State(NativeStream stream) : stream_(stream), spare_(words_->take()) { clear(spare_); }
  // At the end of the process, when the driver may be gone: whether calls succeed is no matter.
  ~State() override { cudaFree(scratch_); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

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

  std::uint64_t* bad_word() override { return checked_.device ? checked_.device : spare_.device; }
  std::shared_ptr<const std::uint64_t> begin_check() override {
    const Word word = words_->take();
    std::shared_ptr<const std::uint64_t> copy(
        word.host, [words = words_, word](const std::uint64_t*) { words->give_back(word); });
    *word.host = kNoBadElement;
    clear(word);
    checked_ = word;
    return copy;
  }
  void end_check() override {
    const Word word = std::exchange(checked_, {});
    check_cuda(cudaMemcpyAsync(word.host, word.device, sizeof(*word.host), cudaMemcpyDeviceToHost,
                               stream_),
               "end a check");
  }

  void* products(const std::function<std::shared_ptr<void>()>& make) override {
    if (products_ == nullptr) products_ = make();
    return products_.get();
  }

 private:
  void clear(const Word& word) const {
    check_cuda(cudaMemsetAsync(word.device, 0xff, sizeof(*word.device), stream_), "begin a check");
  }

  NativeStream stream_;
  std::byte* scratch_ = nullptr;
  std::size_t bytes_ = 0;
  const std::shared_ptr<Words> words_ = std::make_shared<Words>();
  Word spare_, checked_;
  std::shared_ptr<void> products_;
};

}  // namespace

StreamState& state_of(NativeStream stream) {
  static std::mutex mutex;
  static std::map<std::pair<int, NativeStream>, std::unique_ptr<State>> states;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "the thread's device");
  const std::lock_guard lock(mutex);
  std::unique_ptr<State>& state = states[{device, stream}];
  if (state == nullptr) state = std::make_unique<State>(stream);
  return *state;
}

}  // namespace zero3d::kernels::cuda
