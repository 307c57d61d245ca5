#include "zero3d/engine/step_times.h"

#include <mutex>
#include <utility>

#include "zero3d/core/trace.h"

namespace zero3d {

struct StepTimes::State {
  std::mutex mutex;
  std::array<double, kPhases> seconds{};
  int phase = -1;
  std::int64_t since_ns = 0;

  void enter(int next) {
    std::lock_guard lock(mutex);
    const std::int64_t now = now_ns();
    if (phase >= 0)
      seconds[static_cast<std::size_t>(phase)] += static_cast<double>(now - since_ns) * 1e-9;
    phase = next;
    since_ns = now;
  }
};

StepTimes::StepTimes() : state_(std::make_shared<State>()) {}

void StepTimes::mark(Stream& stream, StepPhase phase) {
  stream.host_task("mark", {}, [state = state_, phase] { state->enter(static_cast<int>(phase)); });
}

void StepTimes::stop(Stream& stream) {
  stream.host_task("mark", {}, [state = state_] { state->enter(-1); });
}

std::array<double, StepTimes::kPhases> StepTimes::take() {
  std::lock_guard lock(state_->mutex);
  return std::exchange(state_->seconds, {});
}

}  // namespace zero3d
