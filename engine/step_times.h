// How long a step spent in each phase, measured on the compute stream: marks are tasks that read
// the clock when the stream gets there.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "zero3d/device/stream.h"

namespace zero3d {

enum class StepPhase { forward, backward, reduce, optimizer };

class StepTimes {
 public:
  static constexpr std::size_t kPhases = 4;

  StepTimes();
  /// From here on `stream`'s time counts towards `phase`, until the next mark.
  void mark(Stream& stream, StepPhase phase);
  /// Time stops counting.
  void stop(Stream& stream);
  /// Seconds per phase since the last call; read after the stream has passed its last mark.
  std::array<double, kPhases> take();

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< Shared with marks still on their way.
};

}  // namespace zero3d
