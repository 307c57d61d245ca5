// CpuArena over a TBB task arena.
#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include "zero3d/device/cpu/arena.h"

namespace zero3d {

struct CpuArena::Impl {
  explicit Impl(int threads) : arena(threads, 1) {}
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
