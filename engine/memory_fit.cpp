#include "zero3d/engine/memory_fit.h"

#include <utility>

namespace zero3d {

std::vector<std::vector<ParameterSpec>> declared_parameters(const Module& module,
                                                            const EngineOptions& options) {
  std::vector<std::vector<ParameterSpec>> blocks;
  for (const auto& block : module.blocks()) {
    blocks.push_back(block->parameters());
    if (!options.adjust) continue;
    for (ParameterSpec& spec : blocks.back()) options.adjust(spec);
  }
  if (blocks.empty()) throw_invalid("the module has no blocks: nothing to train");
  return blocks;
}

std::vector<std::string> names_of_blocks(const Module& module) {
  std::vector<std::string> names;
  for (const auto& block : module.blocks()) names.push_back(block->name());
  return names;
}

SequenceParallel sequence_parallel_of(const TrainSettings& settings, const Mesh& mesh) {
  const std::int64_t grain =
      settings.split_rows ? mesh.size(Axis::tp) : 1;  // who shares rows again
  return {mesh.rank(Axis::sp), mesh.size(Axis::sp), nullptr, grain};
}

Borders borders_of(const Module& module, const ZeroPlan& plan, const TensorParallel& tp,
                   const SequenceParallel& sp, std::int64_t batch, std::int64_t sequence) {
  if (!plan.pipeline.whole) return {};
  return infer_borders(module, *plan.pipeline.whole, plan.pipeline.borders(), plan.dtype(),
                       tp.without_links(), sp, batch, sequence);
}

MemoryEstimate with_passes(MemoryEstimate memory, const ZeroPlan& plan, const PassPlans& passes,
                           const ActivationBytes& activations, const SequenceParallel& sp,
                           std::int64_t batch, std::int64_t sequence) {
  if (!sp.alone()) sequence = sp.of(sequence).mine().count;
  memory[Tier::device][Category::gathered_parameters] +=
      bytes_of(passes.arena_elements(), plan.dtype());
  memory[Tier::device][Category::activations] = activations.device;
  memory[Tier::pinned][Category::activations] = activations.pinned;
  memory[Tier::pinned][Category::batches] =  // tokens or targets, on their way to the device
      bytes_of(batch * sequence, DType::i32);
  return memory;
}

MemoryEstimate plan_memory(const TrainSettings& settings, const Module& module, const Mesh& mesh,
                           const EngineOptions& options, std::int64_t device_budget) {
  const OptimizerSetup setup(settings.optimizer, settings.schedule, options.groups);
  EngineOptions named = options;
  named.block_names = names_of_blocks(module);
  const ZeroPlan plan =
      plan_zero(settings, setup, declared_parameters(module, options), mesh, named);
  plan.memory.require_within(device_budget, TrackingResource::kUnlimited);
  const std::int64_t rows = settings.micro_batch, sequence = options.sequence_length;
  const TensorParallel tp(mesh.rank(Axis::tp), mesh.size(Axis::tp), {}, settings.split_rows);
  const SequenceParallel sp = sequence_parallel_of(settings, mesh);
  const ActivationBytes activations = peak_activation_bytes(
      module, plan.layout, plan.training, plan.dtype(), rows, sequence,
      {tp, settings.split_kept, sp}, plan.stage, borders_of(module, plan, tp, sp, rows, sequence));
  const PassPlans passes =
      plan_passes(plan, plan.memory.total() + activations.device, device_budget);
  MemoryEstimate memory = with_passes(plan.memory, plan, passes, activations, sp, rows, sequence);
  memory.require_within(device_budget, TrackingResource::kUnlimited);
  return memory;
}

}  // namespace zero3d
