// The threads that run the loops of one CPU stream. Each stream has an arena of its own, so that a
// stream waiting for its loop never picks up a piece of another stream's. Its threads run on the
// CPUs that the thread that made it may use, as threads inherit them. Two sources implement it:
// arena_tbb.cpp, and arena_threads.cpp for ThreadSanitizer builds, which cannot see into TBB.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace zero3d {

class CpuArena {
 public:
  explicit CpuArena(int threads);
  ~CpuArena();

  int threads() const { return threads_; }
  /// Runs body on the calling thread; parallel_for inside it spreads over this arena.
  void enter(const std::function<void()>& body);
  /// Calls chunk(0 .. chunks - 1), each once, on the arena's threads; from within enter(). Rethrows
  /// the first exception.
  void run(std::int64_t chunks, const std::function<void(std::int64_t)>& chunk);

  /// The arena that the calling thread has entered; null outside, and inside a chunk, where loops
  /// are serial: a thread that waits in an inner loop would start another chunk of the outer one,
  /// and find its thread-local scratch in use.
  static CpuArena* current();

 private:
  struct Impl;
  int threads_;
  std::unique_ptr<Impl> impl_;
};

/// Sets CpuArena::current() for a scope.
class CpuArenaScope {
 public:
  explicit CpuArenaScope(CpuArena* arena);
  ~CpuArenaScope();
  CpuArenaScope(const CpuArenaScope&) = delete;
  CpuArenaScope& operator=(const CpuArenaScope&) = delete;

 private:
  CpuArena* before_;
};

}  // namespace zero3d
