// CpuArena over plain threads: slower than TBB, and visible to ThreadSanitizer.
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "zero3d/device/cpu/arena.h"

namespace zero3d {

struct CpuArena::Impl {
  explicit Impl(int helpers);
  ~Impl();

  void help();
  /// Takes chunks until none is left; keeps the first exception.
  void take_chunks();

  std::mutex mutex;
  std::condition_variable started;
  std::condition_variable finished;
  std::uint64_t round = 0;
  std::size_t busy = 0;
  bool ending = false;
  std::int64_t chunks = 0;
  const std::function<void(std::int64_t)>* chunk = nullptr;
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error;
  std::vector<std::thread> threads;
};

CpuArena::Impl::Impl(int helpers) {
  for (int i = 0; i < helpers; ++i) threads.emplace_back([this] { help(); });
}

CpuArena::Impl::~Impl() {
  {
    std::lock_guard lock(mutex);
    ending = true;
  }
  started.notify_all();
  for (std::thread& thread : threads) thread.join();
}

void CpuArena::Impl::help() {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex);
  for (;;) {
    started.wait(lock, [&] { return ending || round != seen; });
    if (ending) return;
    seen = round;
    lock.unlock();
    take_chunks();
    lock.lock();
    if (--busy == 0) finished.notify_one();
  }
}

void CpuArena::Impl::take_chunks() {
  CpuArenaScope scope(nullptr);
  for (std::int64_t i = next++; i < chunks; i = next++) {
    try {
      (*chunk)(i);
    } catch (...) {
      std::lock_guard lock(mutex);
      if (error == nullptr) error = std::current_exception();
      next = chunks;
    }
  }
}

CpuArena::CpuArena(int threads)
    : threads_(threads), impl_(threads > 1 ? std::make_unique<Impl>(threads - 1) : nullptr) {}
CpuArena::~CpuArena() = default;

void CpuArena::enter(const std::function<void()>& body) {
  CpuArenaScope scope(this);
  body();
}

void CpuArena::run(std::int64_t chunks, const std::function<void(std::int64_t)>& chunk) {
  if (impl_ == nullptr) {
    for (std::int64_t i = 0; i < chunks; ++i) chunk(i);
    return;
  }
  {
    std::lock_guard lock(impl_->mutex);
    impl_->chunks = chunks;
    impl_->chunk = &chunk;
    impl_->next = 0;
    impl_->error = nullptr;
    impl_->busy = impl_->threads.size();
    ++impl_->round;
  }
  impl_->started.notify_all();
  impl_->take_chunks();
  std::unique_lock lock(impl_->mutex);
  impl_->finished.wait(lock, [this] { return impl_->busy == 0; });
  if (impl_->error != nullptr) std::rethrow_exception(std::exchange(impl_->error, nullptr));
}

}  // namespace zero3d
