// What the tests of the engine's calls share: a small configuration, the nano model's batches, and
// the message of a call that is refused.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {

inline std::string json_of(int stage, int accumulation, const std::string& top = "",
                           const std::string& zero = "") {
  return concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )",
                accumulation,
                R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})",
                top.empty() ? "" : ", ", top,
                R"(, "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )",
                stage, zero.empty() ? "" : ", ", zero, "}}");
}

inline std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid) << error.what();
    return error.what();
  }
  return "no error";
}

inline void expect_error(const std::function<void()>& call, const std::string& part) {
  const std::string message = message_of(call);
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

inline constexpr int kRanks = 2;
inline constexpr int kAccumulation = 3;

inline RunOptions nano(int accumulation = kAccumulation) {
  return nano_options(nano_gpt2(true), kRanks, accumulation);
}

inline TokenBatch batch_at(int rank, int step, int micro, int accumulation = kAccumulation) {
  return nano_batch({rank, step, micro}, kRanks, accumulation, 2);
}

/// Three steps of the default batches by train_batch.
inline void train_batches(Engine& engine, int rank, int steps = 3) {
  for (int step = 0; step < steps; ++step) {
    std::vector<TokenBatch> batches;
    std::vector<MicroBatch> views;
    for (int micro = 0; micro < kAccumulation; ++micro)
      batches.push_back(batch_at(rank, step, micro));
    for (const TokenBatch& batch : batches) views.push_back(batch.view());
    engine.train_batch(views);
  }
}

}  // namespace zero3d::test
