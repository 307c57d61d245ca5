#include "zero3d/engine/memory_fit.h"

#include <utility>

#include "zero3d/engine/checkpoint/checkpoint.h"

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

RunPlanner::RunPlanner(const TrainSettings& settings, const Module& module, const Mesh& mesh,
                       const EngineOptions& options)
    : mesh_(mesh),
      options_(options),
      setup_(settings.optimizer, settings.schedule, options.groups),
      blocks_(declared_parameters(module, options)) {
  options_.block_names = names_of_blocks(module);
  const ZeroPlan made = plan(settings);
  elements_ = made.layout.padded();
  const std::int64_t rows = settings.micro_batch, sequence = options.sequence_length;
  if (sequence == 0) return;
  const TensorParallel tp(mesh.rank(Axis::tp), mesh.size(Axis::tp), {}, settings.split_rows);
  sp_ = sequence_parallel_of(settings, mesh);
  activations_ = peak_activation_bytes(
      module, made.layout, made.training, made.dtype(), rows, sequence,
      {tp, settings.split_kept, sp_}, made.stage, borders_of(module, made, tp, sp_, rows, sequence),
      borders_of(module, made, tp.with_whole_sequences(), sp_, rows, sequence));
}

ZeroPlan RunPlanner::plan(const TrainSettings& settings) const {
  return plan_zero(settings, setup_, blocks_, mesh_, options_);
}

MemoryEstimate RunPlanner::memory(const TrainSettings& settings, std::int64_t device_budget) const {
  const ZeroPlan made = plan(settings);
  made.memory.require_within(device_budget, TrackingResource::kUnlimited);
  const PassPlans passes =
      plan_passes(made, made.memory.total() + activations_.device, device_budget);
  MemoryEstimate memory = with_passes(made.memory, made, passes, activations_, sp_,
                                      settings.micro_batch, options_.sequence_length);
  memory.require_within(device_budget, TrackingResource::kUnlimited);
  return memory;
}

MemoryEstimate RunPlanner::least_memory(const TrainSettings& settings) const {
  ZeroPlan made = plan(settings);
  made.fetches = {.prefetch_elements = 0, .max_live_elements = 0, .max_reuse_distance = 0};
  const PassPlans passes = plan_passes(made, 0, TrackingResource::kUnlimited);
  MemoryEstimate memory = with_passes(made.memory, made, passes, activations_, sp_,
                                      settings.micro_batch, options_.sequence_length);
  memory[Tier::pinned][Category::other] += least_checkpoint_bytes(made, options_.checkpoints);
  return memory;
}

MemoryEstimate plan_memory(const TrainSettings& settings, const Module& module, const Mesh& mesh,
                           const EngineOptions& options, std::int64_t device_budget) {
  return RunPlanner(settings, module, mesh, options).memory(settings, device_budget);
}

}  // namespace zero3d
