// Looks after points that a device passes by itself and that a sleeping thread, or a call that is
// to follow, waits for. One thread for the process, started by the first such wait. Internal to
// events.
#pragma once

#include <memory>

#include "zero3d/device/event_state.h"

namespace zero3d {

/// Polls `event` until it is done.
void watch_point(std::shared_ptr<const EventState> event);

}  // namespace zero3d
