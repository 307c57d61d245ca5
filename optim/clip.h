// The factor that brings gradients to at most a maximum global norm. The norm itself is summed by
// the engine.
#pragma once

#include <algorithm>

namespace zero3d {

/// 1 / max(1, (norm + 1e-6) / max_norm): the rule of DeepSpeed's ZeRO stages, used at every stage.
/// `norm` is the global L2 norm of the unscaled gradient, finite; max_norm <= 0 turns clipping off.
inline double clip_coefficient(double norm, double max_norm) {
  if (max_norm <= 0) return 1.0;
  return 1.0 / std::max(1.0, (norm + 1e-6) / max_norm);
}

/// StepContext::gradient_factor: unscales and clips in one multiplication.
inline float gradient_factor(double norm, double max_norm, double loss_scale) {
  return static_cast<float>(clip_coefficient(norm, max_norm) / loss_scale);
}

}  // namespace zero3d
