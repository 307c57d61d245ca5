// CpuArena over a TBB task arena.
#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "zero3d/device/cpu/arena.h"

namespace zero3d {
namespace {

/// TBB keeps one pool of workers for the process and by default no more than there are cores. An
/// arena that asks for more threads gets them (and TBB need not warn): the pool grows to the widest
/// arena seen, no further, however many arenas there are.
void admit_threads(int threads) {
  static std::mutex mutex;
  static int admitted = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  static tbb::global_control* control = nullptr;  // leaked: arenas may outlive statics
  std::lock_guard lock(mutex);
  if (threads <= admitted) return;
  admitted = threads;
  delete control;  // of several controls TBB obeys the smallest
  control = new tbb::global_control(tbb::global_control::max_allowed_parallelism,
                                    static_cast<std::size_t>(threads));
}

}  // namespace

struct CpuArena::Impl {
  explicit Impl(int threads) : arena(threads, 1) { admit_threads(threads); }
  tbb::task_arena arena;
};

CpuArena::CpuArena(int threads)
    : threads_(threads), impl_(threads > 1 ? std::make_unique<Impl>(threads) : nullptr) {}
CpuArena::~CpuArena() = default;

void CpuArena::enter(const std::function<void()>& body) {
  CpuArenaScope scope(this);
  if (impl_ == nullptr) {
    body();
  } else {
    impl_->arena.execute(body);
  }
}

void CpuArena::run(std::int64_t chunks, const std::function<void(std::int64_t)>& chunk) {
  if (impl_ == nullptr) {
    for (std::int64_t i = 0; i < chunks; ++i) chunk(i);
    return;
  }
  tbb::parallel_for(
      tbb::blocked_range<std::int64_t>(0, chunks, 1),
      [&chunk](const tbb::blocked_range<std::int64_t>& range) {
        CpuArenaScope scope(nullptr);
        for (std::int64_t i = range.begin(); i < range.end(); ++i) chunk(i);
      },
      tbb::auto_partitioner());
}

}  // namespace zero3d
