// What does not belong to a step is left out of its time.
#pragma once

#include <cstdint>

#include "zero3d/core/trace.h"
#include "zero3d/engine/sharded_model.h"

namespace zero3d {

/// Leaves its lifetime out of the time of a step that began at `begin_ns`, once what the streams
/// have of that step is done.
class Pause {
 public:
  Pause(Communicator& world, ShardedModel& model, std::int64_t& begin_ns)
      : step_begin_ns_(begin_ns) {
    fail_together(world, [&] { model.synchronize(); });
    begin_ns_ = now_ns();
  }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;
  ~Pause() { step_begin_ns_ += now_ns() - begin_ns_; }

 private:
  std::int64_t& step_begin_ns_;
  std::int64_t begin_ns_ = 0;
};

}  // namespace zero3d
