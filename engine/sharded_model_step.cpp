// The end of an accumulation window: norm, overflow decision, clipping, update; or a step skipped
// and said why.
#include <limits>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/sharded_model.h"
#include "zero3d/optim/clip.h"

namespace zero3d {

StepOutcome ShardedModel::step() {
  times_.mark(compute(), StepPhase::reduce);
  reducer_->finish(compute());
  const std::vector<GroupSettings> settings = this->settings();
  const UpdateInputs inputs{*reducer_, settings, state_.optimizer_steps + 1, state_.scaler.scale};
  const StepOutcome outcome = decide(inputs);
  if (outcome.applied) update(inputs, outcome);
  times_.stop(compute());
  return outcome;
}

/// From the norm: whether the step is applied, and how far its gradients are clipped.
StepOutcome ShardedModel::decide(const UpdateInputs& inputs) {
  StepReport report = reporter_->exchange(compute(), reducer_->square_sums());
  StepOutcome outcome;
  outcome.loss = report.loss;
  outcome.losses = report.losses;
  outcome.loss_scale = inputs.loss_scale;
  outcome.lr = inputs.groups.front().lr;
  if (report.finite && transforms_) {
    if (optimizer_->transforms()) {
      optimizer_->transform(inputs);
      reducer_->refresh_square_sums(compute());
    }
    report = reporter_->exchange(compute(), reducer_->square_sums());
  }
  if (!settings_.gradients.take_norm)
    report.gradient_norm = std::numeric_limits<double>::quiet_NaN();
  outcome.gradient_norm = report.gradient_norm / outcome.loss_scale;
  outcome.applied = report.finite || !settings_.gradients.skip_non_finite;
  scaler_.update(state_.scaler, !outcome.applied);
  ++state_.steps;
  if (!outcome.applied) {
    skip(report, outcome);
  } else {
    state_.consecutive_skips = 0;
    outcome.clip_factor = clip_coefficient(outcome.gradient_norm, settings_.gradients.max_norm);
  }
  return outcome;
}

void ShardedModel::update(UpdateInputs inputs, const StepOutcome& outcome) {
  times_.mark(compute(), StepPhase::optimizer);
  inputs.gradient_factor =
      gradient_factor(outcome.gradient_norm, settings_.gradients.max_norm, outcome.loss_scale);
  ++state_.optimizer_steps;
  ++state_.schedule_steps;
  optimizer_->update(inputs);
}

void ShardedModel::flush_updates() {
  require_made();
  optimizer_->flush();
}

/// Counts and reports a skipped step; too many in a row end the run.
void ShardedModel::skip(const StepReport& report, const StepOutcome& outcome) {
  ++state_.skipped_steps;
  const std::string cause = concat(
      report.bad_is_nan ? "NaN" : "inf", " in the averaged gradient of ",
      report.bad_parameter < 0 ? std::string("a parameter")
                               : part_.names[static_cast<std::size_t>(report.bad_parameter)],
      ", in the shard of ", mesh_.describe(report.bad_rank),
      report.bad_loss_rank < 0 ? std::string()
                               : concat("; the loss of ", mesh_.describe(report.bad_loss_rank),
                                        " is not finite either"));
  const std::string scale =
      scaler_.dynamic() ? concat("; loss scale ", outcome.loss_scale, " -> ", state_.scaler.scale)
                        : "";
  if (mesh_.leads()) {
    log_warning(concat("step ", state_.steps, " skipped: ", cause, scale));
  }
  if (++state_.consecutive_skips >= options_.max_consecutive_skips) {
    throw Error(
        ErrorKind::kNumeric,
        concat(state_.consecutive_skips, " steps in a row were skipped; the last one for ", cause,
               ". Lower the learning rate, check the data, or raise max_consecutive_skips "
               "(--max-skipped-steps)"));
  }
}

}  // namespace zero3d
