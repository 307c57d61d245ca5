// The loss scale of fp16 training: static, or dynamic as DeepSpeed's. The rules of a state machine;
// who keeps its state, detects the overflow and skips the step is the engine.
#pragma once

#include <cstdint>

namespace zero3d {

struct LossScalerOptions {
  double static_scale = 0;  ///< > 0: fixed. 0: dynamic.
  int initial_scale_power = 16;
  std::int64_t window = 1000;  ///< Clean steps between growths; > 0.
  std::int64_t hysteresis =
      2;  ///< Overflows borne before the scale shrinks; 0 or less: it never shrinks.
  bool consecutive_hysteresis =
      false;             ///< A clean step refills the hysteresis; else only growth does.
  double min_scale = 1;  ///< > 0.
  /// ZeRO stages 1-3: an overflow at the floor is an error. Stage 0: none, and no hysteresis.
  bool stage0 = false;
};

class LossScaler {
 public:
  /// `last_overflow` is -1 before the first.
  struct State {
    /// Multiplies the loss of the step under way. Gradients are divided by the scale that produced
    /// them: read it before update(). (DeepSpeed divides by the scale after the update, so its
    /// update is halved when the scale grows.)
    double scale = 1;
    std::int64_t iteration = 0;
    std::int64_t last_overflow = -1;
    std::int64_t hysteresis = 0;
    friend bool operator==(const State&, const State&) = default;
  };

  /// Always 1: fp32 and bf16.
  LossScaler() = default;
  /// Throws Error(kInvalid) on a scale, window or minimum out of range.
  explicit LossScaler(const LossScalerOptions& options);

  bool dynamic() const { return dynamic_; }
  const State& initial() const { return initial_; }

  /// Once per optimizer step, skipped ones included. Throws Error(kNumeric) on an overflow at the
  /// minimum scale (not at stage 0); the state is then as before.
  void update(State& state, bool overflow) const;

  /// Throws Error(kInvalid) for a scale that is not positive and finite.
  static void require_valid(const State& state);

 private:
  void shrink(State& state) const;

  LossScalerOptions options_;
  bool dynamic_ = false;
  State initial_;
};

}  // namespace zero3d
