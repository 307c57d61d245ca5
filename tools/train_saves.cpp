#include "train_saves.h"

#include "train_resume.h"
#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"

namespace zero3d::tools {

void TrainSaves::after_step(std::int64_t step, bool stops) {
  const TrainRequest& request = plan_.request;
  if (request.save.empty()) return;
  const bool last = stops || step == request.steps;
  const bool due = request.save_interval > 0 && step % request.save_interval == 0;
  if (!last && !due) return;
  SaveCheckpointOptions options;
  options.client_state = run_facts(plan_);
  options.keep_last = request.keep_last;
  options.asynchronous = request.save_async && !last;
  try {
    engine_->save_checkpoint(request.save, options);
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    if (last)
      throw Error(error.kind(), concat("the checkpoint of step ", step,
                                       ", the last of the run, was not written: ", error.what()));
    if (engine_->leads())
      log_warning(concat("the checkpoint of step ", step, " was not written: ", error.what(),
                         "; training goes on, and the next one is tried"));
  }
}

void TrainSaves::finish() {
  if (!plan_.request.save.empty()) engine_->finish_checkpoint();
}

}  // namespace zero3d::tools
