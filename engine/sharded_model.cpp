#include "zero3d/engine/sharded_model.h"

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"

namespace zero3d {

ShardedModel::ShardedModel(const TrainSettings& settings,
                           const std::vector<std::vector<ParameterSpec>>& blocks, const Mesh& mesh,
                           Device& device, const ShardedModelOptions& options)
    : settings_(settings),
      device_(device),
      mesh_(mesh),
      options_(options),
      setup_(settings.optimizer, settings.schedule, options.groups),
      plan_(plan_zero(settings, setup_, blocks, mesh, options)),
      memory_(plan_.memory),
      late_(plan_.late),
      scaler_(settings.precision.loss_scale ? LossScaler(*settings.precision.loss_scale)
                                            : LossScaler()),
      groups_(make_zero_groups(mesh, plan_.groups)),
      part_(find_model_part(plan_.layout, mesh, groups_)),
      streams_(device) {
  state_.scaler = scaler_.initial();
  state_.seed = options.seed;
  plan_.memory.require_within(device.memory().budget(), device.memory(Tier::pinned).budget());
  store_ =
      std::make_unique<ParameterStore>(device, plan_.layout, groups_, plan_.parameters, streams_);
  const auto source =
      options.source == nullptr ? make_initial_values_source(options.seed) : nullptr;
  store_->load(options.source == nullptr ? *source : *options.source);
  reducer_ = std::make_unique<GradientReducer>(device, plan_.layout, plan_.buckets, groups_,
                                               plan_.gradients, streams_);
  reporter_ = std::make_unique<StepReporter>(device, plan_.layout, part_);
  optimizer_ = std::make_unique<ShardedOptimizer>(device, plan_.layout, part_, groups_, *store_,
                                                  setup_, plan_.optimizer, streams_);
}

ShardedModel::~ShardedModel() = default;

void ShardedModel::reserve_activations(std::int64_t bytes) {
  planned_ = true;
  activations_ = bytes;
  if (!plan_.gathers()) return;
  passes_ = plan_passes(plan_, memory_.total() + bytes, device_.memory().budget());
  if (mesh_.leads()) {
    for (const std::string& line : passes_.training.clipped) log_warning(line);
  }
  synchronize();  // the arena is exchanged
  store_->resize_arena(passes_.arena_elements());
}

void ShardedModel::require_block(const Op& op) const {
  if (op.block >= 0 && op.block < plan_.layout.block_count()) return;
  throw_invalid(
      concat("block ", op.block, " of a model with blocks 0 to ", plan_.layout.block_count() - 1));
}

/// `bytes` are asked for after all: they join the plan, and gathers get what is left beside them.
void ShardedModel::plan_late(Category category, std::int64_t& bytes) {
  if (bytes == 0) return;
  MemoryEstimate grown = memory_;
  grown[Tier::device][category] += bytes;
  grown.require_within(device_.memory().budget(), device_.memory(Tier::pinned).budget());
  memory_ = grown;
  bytes = 0;
  if (planned_) reserve_activations(activations_);
}

void ShardedModel::begin_coalescing() {
  plan_late(Category::gradients, late_.coalesced);
  reducer_->begin_coalescing();
}

void ShardedModel::begin_training(int first_micro_batch) {
  if (first_micro_batch > 0) plan_late(Category::gradient_buckets, late_.buckets);
  if (!planned_) reserve_activations(0);
  store_->begin_pass(passes_.training, first_micro_batch);
}

void ShardedModel::begin_evaluation() {
  if (!planned_) reserve_activations(0);
  store_->begin_pass(passes_.evaluation, 0);
}

std::vector<ConstView> ShardedModel::acquire(const Op& op) {
  require_block(op);
  return store_->acquire(op);
}

std::vector<GradientTarget> ShardedModel::gradients(const Op& op) {
  std::vector<GradientTarget> targets;
  for (int index : plan_.layout.block_parameters(op.block)) {
    const LayoutParameter& parameter = plan_.layout.parameter(index);
    GradientTarget& target = targets.emplace_back();
    target.trains = !parameter.spec.frozen;
    if (!writes_gradient(plan_.layout, index, op)) continue;
    target.view = parameter.view_in(reducer_->open(parameter.unit, op.micro_batch));
    target.accumulate = op.block != parameter.blocks.back();
  }
  return targets;
}

void ShardedModel::release(const Op& op) {
  require_block(op);
  if (ends_gradients(op.kind)) {
    const std::vector<int>& units = plan_.layout.block_units(op.block);
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      const Unit& entry = plan_.layout.unit(*unit);
      if (!entry.frozen && entry.blocks.front() == op.block) reducer_->ready(*unit, op.micro_batch);
    }
  }
  store_->release(op);
}

double ShardedModel::loss_seed(int micro_batches) const {
  return state_.scaler.scale / micro_batches;
}

}  // namespace zero3d
