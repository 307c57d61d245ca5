#include "zero3d/device/wait_clock.h"

#include "zero3d/core/trace.h"

namespace zero3d {

void WaitClock::wait(Stream& stream, const Event& event) {
  if (event.done()) return stream.wait(event);
  const auto begin = std::make_shared<std::int64_t>(0);
  stream.host_task("wait begins", {}, [begin] { *begin = now_ns(); });
  stream.wait(event);
  stream.host_task("wait ends", {},
                   [state = state_, begin] { state->nanoseconds += now_ns() - *begin; });
}

}  // namespace zero3d
