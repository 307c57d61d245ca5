// The port of kernels, containers and file systems without io_uring: pread and pwrite on threads.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/offload/io_port.h"

namespace zero3d {
namespace {

class ThreadPort final : public IoPort {
 public:
  explicit ThreadPort(const IoPortOptions& options) {
    const int count = std::max(1, std::min(options.threads, options.depth));
    try {
      for (int i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {
      end();
      throw;
    }
  }
  ~ThreadPort() override { end(); }

  std::string_view name() const override { return "threads"; }
  int attach_files(std::span<const int>) override { return 0; }
  int attach_buffers(std::span<const View>) override { return 0; }

  void start(std::span<const IoPiece> pieces) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.insert(queue_.end(), pieces.begin(), pieces.end());
    }
    pieces.size() == 1 ? filled_.notify_one() : filled_.notify_all();
  }

  void wait(std::vector<IoDone>& done, std::chrono::milliseconds limit) override {
    std::unique_lock lock(mutex_);
    over_.wait_until(lock, std::chrono::system_clock::now() + limit,
                     [this] { return woken_ || !done_.empty(); });
    woken_ = false;
    done.insert(done.end(), done_.begin(), done_.end());
    done_.clear();
  }

  void wake() override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    over_.notify_one();
  }

 private:
  static int move(const IoPiece& piece) {
    const ssize_t moved = piece.write
                              ? ::pwrite(piece.descriptor, piece.data, piece.bytes, piece.offset)
                              : ::pread(piece.descriptor, piece.data, piece.bytes, piece.offset);
    return moved < 0 ? -errno : static_cast<int>(moved);
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      filled_.wait(lock, [this] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const IoPiece piece = queue_.front();
      queue_.pop_front();
      lock.unlock();
      const int result = move(piece);
      lock.lock();
      done_.push_back({piece.tag, result});
      over_.notify_one();
    }
  }

  void end() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    filled_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::mutex mutex_;
  std::condition_variable filled_, over_;
  std::deque<IoPiece> queue_;
  std::vector<IoDone> done_;
  bool woken_ = false;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoPort> make_thread_port(const IoPortOptions& options) {
  return std::make_unique<ThreadPort>(options);
}

std::unique_ptr<IoPort> open_io_port(const IoPortOptions& options, const IoPortFactory& ring) {
  try {
    return ring(options);
  } catch (const IoError& error) {
    if (options.tells)
      log_once(LogLevel::info,
               concat("I/O on ", options.threads, options.threads == 1 ? " thread" : " threads",
                      " instead of io_uring: ", error.what()));
  }
  return make_thread_port(options);
}

}  // namespace zero3d
