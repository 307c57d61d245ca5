// Before a model is made: whether its plan fits the budgets of device and host memory, with sizes
// that cost memory and change no result made smaller where the budgets ask for it. Told with the
// budget that is enough where nothing does.
#pragma once

#include <cstdint>

#include "zero3d/engine/engine.h"

namespace zero3d {

/// Of all ranks' budgets for such memory, for they plan alike; kUnlimited when none has one.
/// Collective.
std::int64_t smallest_budget(const Mesh& mesh, const TrackingResource& memory);

/// `settings` with the reduce bucket, buffers, tiles on their way to drives and what drives leave
/// in host memory at most as large as the budgets (negative: none) allow beside everything else; as
/// they are where they fit. One warning names what is clipped. Activations count where
/// options.sequence_length is known, gathers with the least they need: those are clipped when they
/// are planned. Throws OutOfMemory where no size fits, with budgets that are enough; asks
/// options.approve_memory of what fits. Collective: the same on every rank.
TrainSettings fit_to_budgets(const TrainSettings& settings, const Module& module, const Mesh& mesh,
                             const EngineOptions& options, std::int64_t device_budget,
                             std::int64_t host_budget);

}  // namespace zero3d
