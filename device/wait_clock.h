// How long streams stood still for what they wait for, as tasks on them read the clock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "zero3d/device/stream.h"

namespace zero3d {

class WaitClock {
 public:
  /// Work enqueued on `stream` from here on comes after `event`; the time until then counts. An
  /// event that is passed already takes none.
  void wait(Stream& stream, const Event& event);
  /// So far.
  double seconds() const { return static_cast<double>(state_->nanoseconds.load()) * 1e-9; }

 private:
  struct State {
    std::atomic<std::int64_t> nanoseconds{0};
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace zero3d
