// Trains a module on ranks that are threads, under a ds_config, and returns all that the numerics
// contract speaks of: losses, norms, parameters, masters, moments and gradients as bytes by name
// (whatever the sharding was), what travelled, and the device memory it took.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "zero3d/core/trace.h"
#include "zero3d/engine/engine.h"
#include "zero3d/parallel/comm/decorators.h"
#include "zero3d/tests/support/probe_module.h"

namespace zero3d::test {

/// Whether a sanitizer slows this build down: loops over scenarios then take fewer.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Of JSON text loaded for `ranks` ranks; throws what the loader finds.
TrainSettings settings_of(const std::string& json, int ranks);

/// Tokens of a batch in host memory.
class TokenBatch {
 public:
  TokenBatch(std::int64_t rows, std::int64_t sequence, std::int32_t fill = 0);
  MicroBatch view() const;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;

 private:
  std::int64_t rows_;
  std::int64_t sequence_;
};

/// Where a run is.
struct Moment {
  int rank = 0;  ///< Data-parallel: of the world, where settings ask for no other degrees.
  int step = 0;
  int micro_batch = 0;
};

using CommWrapper =
    std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator> world)>;

struct RunOptions {
  int ranks = 1;  ///< Of the world; what the settings' degrees leave of it is data-parallel.
  int threads = 1;
  int steps = 3;
  std::uint64_t jitter_seed = 0;
  std::int64_t budget_bytes = TrackingResource::kUnlimited;
  std::int64_t host_budget_bytes = TrackingResource::kUnlimited;
  EngineOptions engine;
  bool exports = true;   ///< Is in the plan from the start: collecting the state is one.
  bool collects = true;  ///< The state, after the last step.
  CommWrapper wrap;      ///< Puts decorators around each rank's world.
  std::chrono::milliseconds timeout{20'000};
  std::function<std::unique_ptr<Module>(int rank)> make_module;
  std::function<TokenBatch(const Moment&)> batch;
  std::function<void(Module&, const Moment&)> before_forward;
  /// Replaces the default loop of train_batch; `rank` is that of the calling thread.
  std::function<void(Engine&, Module&, int rank)> body;
  /// Called on every rank after each step of the default loop.
  std::function<void(Engine&, int rank, int step)> after_step;
  /// Called on every rank after the last step, before state is collected.
  std::function<void(Engine&, int rank)> after;
};

/// One parameter's state, put together from the shards of all ranks.
struct ParameterState {
  std::vector<std::byte> value;                ///< In the training dtype.
  std::vector<std::byte> master;               ///< Empty when the parameter is its own master.
  std::vector<std::vector<std::byte>> states;  ///< Moments, in the rule's order.
  std::vector<std::byte> gradient;             ///< The last step's averaged gradient.
  friend bool operator==(const ParameterState&, const ParameterState&) = default;

  /// As fp32; `bytes` must hold fp32 values.
  static std::vector<float> floats(const std::vector<std::byte>& bytes);
};
using ModelState = std::map<std::string, ParameterState>;

struct RunResult {
  std::vector<StepResult> steps;  ///< The same on every rank (checked).
  ModelState state;
  /// Averaged gradients after every step, filled when the loop is the default one.
  std::vector<std::map<std::string, std::vector<float>>> gradients;
  std::vector<CommVolume> volumes;        ///< Per step, of rank 0 (of all without a pipeline).
  CommVolume setup_volume;                ///< Before the first step.
  std::vector<MemoryUse> memory;          ///< Per rank, after the last step.
  std::vector<MemoryUse> pinned_memory;   ///< The same.
  std::vector<MemoryEstimate> estimates;  ///< Per rank, for the batches of the run.
  std::vector<Span> spans;                ///< When the test enabled the Tracer.
};

/// Throws what the first rank to fail threw.
RunResult run_engine(const std::string& json, const RunOptions& options);
RunResult run_engine(const TrainSettings& settings, const RunOptions& options);

/// Probe of `sizes` whose gradient is `gradient(rank, parameter, step, micro_batch)`.
using ProbeValues = std::function<float(int parameter, const Moment&)>;
RunOptions probe_options(const std::vector<std::int64_t>& sizes, ProbeValues gradient, int ranks);
RunOptions probe_options(std::function<std::vector<ProbeBlockSpec>(int rank)> blocks, int ranks);

/// Bit for bit: losses, norms and state. Says what differs first.
::testing::AssertionResult same_bits(const RunResult& expected, const RunResult& actual);
/// Losses and norms within a relative tolerance.
::testing::AssertionResult close(const RunResult& expected, const RunResult& actual,
                                 double relative);
::testing::AssertionResult same_state(const ModelState& expected, const ModelState& actual);

}  // namespace zero3d::test
