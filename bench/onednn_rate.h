// What oneDNN alone reaches on the matrix products of a GPT-2 step, one whole private copy of each
// product on every core at the same time.
#pragma once

#include <cstdint>

#include "zero3d/core/dtype.h"
#include "zero3d/models/model_config.h"

namespace zero3d::bench {

/// GFLOP/s of all threads together over forward, input-gradient and weight-gradient products, each
/// weighted by how often a step does it. f32 or bf16.
double onednn_rate(const ModelConfig& model, std::int64_t tokens, DType dtype, int threads);

}  // namespace zero3d::bench
