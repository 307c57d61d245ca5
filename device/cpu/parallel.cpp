// parallel_for: chunk boundaries are arithmetic on (count, grain) alone.
#include "zero3d/device/parallel.h"

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/cpu/arena.h"

namespace zero3d {
namespace {

thread_local CpuArena* current_arena = nullptr;

}  // namespace

CpuArena* CpuArena::current() { return current_arena; }

CpuArenaScope::CpuArenaScope(CpuArena* arena) : before_(current_arena) { current_arena = arena; }
CpuArenaScope::~CpuArenaScope() { current_arena = before_; }

void parallel_for(std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (grain <= 0)
    throw_invalid(concat("parallel_for with a grain of ", grain, "; expected 1 or more"));
  if (count <= 0) return;
  const std::int64_t chunks = (count - 1) / grain + 1;
  const auto run_chunk = [&](std::int64_t chunk) {
    const std::int64_t begin = chunk * grain;
    body(begin, begin + std::min(grain, count - begin));
  };
  CpuArena* arena = CpuArena::current();
  if (arena == nullptr || arena->threads() == 1 || chunks == 1) {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) run_chunk(chunk);
  } else {
    arena->run(chunks, run_chunk);
  }
}

int arena_threads() {
  const CpuArena* arena = CpuArena::current();
  return arena == nullptr ? 1 : arena->threads();
}

}  // namespace zero3d
