// When a run saves, and what becomes of a save that fails: training goes on, and the next one is
// tried; only where none follows does the run end with it.
#pragma once

#include <cstdint>
#include <memory>

#include "train_plan.h"
#include "zero3d/engine/engine.h"

namespace zero3d::tools {

class TrainSaves {
 public:
  /// Both must outlive this; the engine is made when it is first asked for.
  TrainSaves(const TrainPlan& plan, const std::unique_ptr<Engine>& engine)
      : plan_(plan), engine_(engine) {}

  /// Saves where the step is due, the last, or the run stops. Collective.
  void after_step(std::int64_t step, bool stops);
  /// Waits for what is under way; throws when the last checkpoint was not written.
  void finish();

 private:
  const TrainPlan& plan_;
  const std::unique_ptr<Engine>& engine_;
};

}  // namespace zero3d::tools
