// What the activations of a step take, found by running its operations on a device that only
// counts: the same blocks, runner and order as the real run, so that no block needs to say its
// bytes.
#pragma once

#include <cstdint>
#include <span>

#include "zero3d/engine/module.h"
#include "zero3d/engine/schedule.h"
#include "zero3d/engine/zero/layout.h"

namespace zero3d {

struct ActivationBytes {
  std::int64_t device = 0;
  std::int64_t pinned = 0;  ///< Of inputs that are kept on the host.
};

/// What rank runs them.
struct DryRunRank {
  TensorParallel tp = {};
  bool splits_kept = false;
};

/// The highest sum of bytes that blocks and runner hold at once, for each tier by itself, over the
/// steps of a run: `training` again and again, and evaluation, on micro-batches of [batch,
/// sequence], on such a tensor-parallel rank. What blocks throw for such batches goes on.
ActivationBytes peak_activation_bytes(const Module& module, const ParamLayout& layout,
                                      std::span<const Op> training, DType dtype, std::int64_t batch,
                                      std::int64_t sequence, const DryRunRank& rank = {});

}  // namespace zero3d
