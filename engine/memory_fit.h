// What a run will take of each tier, as a pure function of settings and module: for who looks for a
// shape of the module, or settings, that fit before an engine is made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zero3d/engine/dry_run.h"
#include "zero3d/engine/engine.h"
#include "zero3d/engine/memory_estimate.h"

namespace zero3d {

/// What each block declares, changed as the options ask.
std::vector<std::vector<ParameterSpec>> declared_parameters(const Module& module,
                                                            const EngineOptions& options);

/// For PlanOptions.
std::vector<std::string> names_of_blocks(const Module& module);

/// Between the stages of a pipeline, for micro-batches of [batch, sequence]; of a model that is in
/// one piece: none.
Borders borders_of(const Module& module, const ZeroPlan& plan, const TensorParallel& tp,
                   const SequenceParallel& sp, std::int64_t batch, std::int64_t sequence);

/// This rank among those that share sequences; nothing travels.
SequenceParallel sequence_parallel_of(const TrainSettings& settings, const Mesh& mesh);

/// `memory` of the model's life with what passes over micro-batches of [batch, sequence] add, of
/// which such a rank has its part.
MemoryEstimate with_passes(MemoryEstimate memory, const ZeroPlan& plan, const PassPlans& passes,
                           const ActivationBytes& activations, const SequenceParallel& sp,
                           std::int64_t batch, std::int64_t sequence);

/// Plans what a rank of `mesh` takes, again and again for settings that differ in sizes which no
/// operation of a step depends on. Micro-batches have settings.micro_batch samples of
/// options.sequence_length tokens; activations are left out where that is 0.
class RunPlanner {
 public:
  /// What is referred to must outlive this. Throws what making the engine would throw.
  RunPlanner(const TrainSettings& settings, const Module& module, const Mesh& mesh,
             const EngineOptions& options);

  /// What Engine::memory_estimate would tell. Throws OutOfMemory where a device of `device_budget`
  /// bytes (negative: no limit) does not hold it.
  MemoryEstimate memory(const TrainSettings& settings, std::int64_t device_budget) const;
  /// With as little as gathers and checkpoints can do with.
  MemoryEstimate least_memory(const TrainSettings& settings) const;
  /// Of the model's part on this rank.
  std::int64_t elements() const { return elements_; }

 private:
  ZeroPlan plan(const TrainSettings& settings) const;

  const Mesh& mesh_;
  EngineOptions options_;
  OptimizerSetup setup_;
  std::vector<std::vector<ParameterSpec>> blocks_;
  SequenceParallel sp_;
  ActivationBytes activations_;
  std::int64_t elements_ = 0;
};

/// RunPlanner's memory() for settings once.
MemoryEstimate plan_memory(const TrainSettings& settings, const Module& module, const Mesh& mesh,
                           const EngineOptions& options, std::int64_t device_budget);

}  // namespace zero3d
