// The smallest configuration that trains, for tests in which only a key or two matters.
#pragma once

#include <string>

#include "zero3d/core/text.h"

namespace zero3d::test {

/// AdamW, micro-batches of two, every parameter sharded at stage 3; `top` and `zero` are further
/// members of the file and of its zero_optimization.
inline std::string json_of(int stage, int accumulation = 1, const std::string& top = "",
                           const std::string& zero = "") {
  return concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )",
                accumulation, R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}})",
                top.empty() ? "" : ", ", top,
                R"(, "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )",
                stage, zero.empty() ? "" : ", ", zero, "}}");
}

}  // namespace zero3d::test
