// CpuArena over a TBB task arena.
#include <sched.h>
#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>
#include <tbb/task_scheduler_observer.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "zero3d/device/cpu/arena.h"

namespace zero3d {
namespace {

/// TBB keeps one pool of workers for the process and by default no more than the CPUs of the thread
/// that first uses it, which may be bound to a few. The pool is given all cores, and grows to the
/// widest arena seen.
void admit_threads(int threads) {
  static std::mutex mutex;
  static int admitted = 0;
  static tbb::global_control* control = nullptr;  // leaked: arenas may outlive statics
  std::lock_guard lock(mutex);
  const int wanted = std::max(threads, static_cast<int>(std::thread::hardware_concurrency()));
  if (wanted <= admitted) return;
  admitted = wanted;
  delete control;  // of several controls TBB obeys the smallest
  control = new tbb::global_control(tbb::global_control::max_allowed_parallelism,
                                    static_cast<std::size_t>(wanted));
}

/// The CPUs a thread may run on. Undefined where there are more of them than cpu_set_t holds.
struct Affinity {
  cpu_set_t cpus;
  bool defined = false;

  static Affinity of_this_thread() {
    Affinity affinity;
    CPU_ZERO(&affinity.cpus);
    affinity.defined = sched_getaffinity(0, sizeof affinity.cpus, &affinity.cpus) == 0;
    return affinity;
  }
};

/// Workers of TBB's pool go from arena to arena: each takes on the CPUs of the arena it enters.
class Binder final : public tbb::task_scheduler_observer {
 public:
  explicit Binder(tbb::task_arena& arena) : task_scheduler_observer(arena) {
    if (affinity_.defined) observe(true);
  }
  ~Binder() override { observe(false); }

  void on_scheduler_entry(bool) override {
    thread_local Affinity current = Affinity::of_this_thread();
    if (!current.defined || CPU_EQUAL(&current.cpus, &affinity_.cpus)) return;
    if (sched_setaffinity(0, sizeof affinity_.cpus, &affinity_.cpus) == 0) current = affinity_;
  }

 private:
  const Affinity affinity_ = Affinity::of_this_thread();
};

}  // namespace

struct CpuArena::Impl {
  explicit Impl(int threads) : arena(threads, 1), binder(arena) { admit_threads(threads); }
  tbb::task_arena arena;
  Binder binder;
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
