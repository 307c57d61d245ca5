#include "zero3d/optim/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {

LossScaler::LossScaler(const LossScalerOptions& options)
    : options_(options), dynamic_(options.static_scale == 0) {
  if (!std::isfinite(options.static_scale) || options.static_scale < 0)
    throw_invalid(concat("loss scale: expected 0 (dynamic) or a positive number, found ",
                         options.static_scale));
  if (!dynamic_) {
    initial_.scale = options.static_scale;
    return;
  }
  if (options.window <= 0)
    throw_invalid(
        concat("loss scale window: expected a positive count of steps, found ", options.window));
  if (!(options.min_scale > 0))
    throw_invalid(
        concat("minimum loss scale: expected a positive number, found ", options.min_scale));
  initial_.scale = std::ldexp(1.0, options.initial_scale_power);
  if (!std::isfinite(initial_.scale) || initial_.scale == 0)
    throw_invalid(concat("initial loss scale 2^", options.initial_scale_power, " is out of range"));
  initial_.hysteresis = options.hysteresis;
}

void LossScaler::shrink(State& state) const {
  if (!options_.stage0 && options_.hysteresis != 1 && state.hysteresis != 1) {
    --state.hysteresis;
    return;
  }
  if (!options_.stage0 && state.scale == options_.min_scale)
    throw Error(ErrorKind::kNumeric,
                concat("the loss scale is at its minimum ", options_.min_scale,
                       " and gradients still overflow; the training has diverged (or lower "
                       "min_loss_scale, or train in bf16)"));
  state.scale = std::max(state.scale / 2, options_.min_scale);
}

void LossScaler::update(State& state, bool overflow) const {
  if (!dynamic_) return;
  if (overflow) {
    shrink(state);
    state.last_overflow = state.iteration;
  } else {
    if (options_.consecutive_hysteresis) state.hysteresis = options_.hysteresis;
    const std::int64_t interval = state.iteration - state.last_overflow - 1;
    if (interval > 0 && interval % options_.window == 0) {
      state.hysteresis = options_.hysteresis;
      state.scale *= 2;
    }
  }
  ++state.iteration;
}

void LossScaler::require_valid(const State& state) {
  if (!std::isfinite(state.scale) || state.scale <= 0)
    throw_invalid(
        concat("loss scaler state: expected a positive finite scale, found ", state.scale));
}

}  // namespace zero3d
