#include "zero3d/engine/sharded_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/optim/clip.h"

namespace zero3d {
namespace {

int shard_group_size(const ShardingSettings& sharding, int ranks) {
  if (!sharding.what.optimizer_state) return 1;
  return sharding.ranks > 0 ? sharding.ranks : ranks;
}

LayoutOptions layout_options(const ShardingSettings& sharding, const OptimizerSetup& setup,
                             int shards) {
  LayoutOptions options;
  options.shards = shards;
  options.persistence = sharding.what.parameters;
  options.param_persistence_threshold = sharding.persistent_parameter;
  options.model_persistence_threshold = sharding.persistent_total;
  options.group_of = [&setup](const ParameterSpec& spec) { return setup.group_of(spec); };
  return options;
}

GradientReducerOptions reducer_options(const TrainSettings& settings,
                                       bool reduce_each_micro_batch) {
  const ShardingPolicy& policy = settings.sharding.what;
  GradientReducerOptions options;
  options.gradient_dtype = settings.precision.parameters;
  options.accumulation_dtype = settings.precision.accumulation;
  options.reduce_each_micro_batch = policy.gradients || reduce_each_micro_batch;
  options.reduce_scatter = settings.gradients.reduce_scatter;
  options.shard_accumulators = policy.gradients;
  options.slots_needed = options.reduce_each_micro_batch || settings.accumulation > 1 ||
                         options.gradient_dtype != options.accumulation_dtype;
  options.mean = settings.gradients.mean;
  options.prescale = settings.gradients.prescale;
  options.predivide_factor = settings.gradients.predivide_factor;
  // Without the norm, 16-bit gradients must still be looked at for overflow.
  options.square_sums = settings.gradients.take_norm || is_16bit(options.gradient_dtype);
  if (settings.precision.communication != DType::f32)
    options.wire = settings.precision.communication;
  return options;
}

}  // namespace

ShardedModel::ShardedModel(const TrainSettings& settings,
                           const std::vector<std::vector<ParameterSpec>>& blocks, const Mesh& mesh,
                           Device& device, const ShardedModelOptions& options)
    : settings_(settings),
      device_(device),
      mesh_(mesh),
      options_(options),
      policy_(settings.sharding.what),
      setup_(settings.optimizer, settings.schedule, options.groups),
      scaler_(settings.precision.loss_scale ? LossScaler(*settings.precision.loss_scale)
                                            : LossScaler()),
      compute_(device.create_stream("compute")),
      gather_(device.create_stream("gather")),
      reduce_(device.create_stream("reduce")) {
  state_.scaler = scaler_.initial();
  state_.seed = options.seed;
  const ShardingSettings& sharding = settings.sharding;
  const int shards = shard_group_size(sharding, mesh.size(Axis::zero));
  const int secondary = policy_.parameters ? std::min(sharding.secondary_ranks, shards) : 1;
  groups_ = make_zero_groups(mesh, {.shard = shards, .secondary = std::max(secondary, 1)});
  layout_ = std::make_unique<ParamLayout>(blocks, layout_options(sharding, setup_, shards));
  part_ = find_model_part(*layout_, mesh, groups_);
  stage_ = stage_of(*layout_);
  if (options.schedule) {
    const auto micro_batches = static_cast<int>(settings.accumulation);
    training_ops_ = options.schedule(stage_, micro_batches);
    require_step(training_ops_, stage_, micro_batches);
  } else {
    training_ops_ = plan_step(stage_, 1);
  }
  buckets_ = plan_buckets(
      *layout_, training_ops_,
      {settings.gradients.reduce_bucket, settings.gradients.overlap_reduction ? 2 : 1});
  static_memory().require_within(device.memory().budget(), device.memory(Tier::pinned).budget());
  store_ = std::make_unique<ParameterStore>(
      device, *layout_, groups_,
      ParameterStoreOptions{dtype(), policy_.parameters, sharding.gather_bucket}, *compute_,
      *gather_);
  const auto source =
      options.source == nullptr ? make_initial_values_source(options.seed) : nullptr;
  store_->load(options.source == nullptr ? *source : *options.source);
  reducer_ = std::make_unique<GradientReducer>(
      device, *layout_, buckets_, groups_,
      reducer_options(settings, options.reduce_each_micro_batch), *compute_, *reduce_);
  reporter_ = std::make_unique<StepReporter>(device, *layout_, part_);
  optimizer_ = std::make_unique<ShardedOptimizer>(device, *layout_, part_, groups_, *store_, setup_,
                                                  optimizer_options(), *compute_, *reduce_);
}

ShardedOptimizerOptions ShardedModel::optimizer_options() const {
  ShardedOptimizerOptions options;
  options.tile_elements = settings_.optimizer_tile;
  options.parameter_dtype = dtype();
  options.master_dtype = settings_.precision.masters;
  options.moment_dtype = setup_.bf16_states() ? DType::bf16 : DType::f32;
  options.store = options_.state_store;
  return options;
}

ShardedModel::~ShardedModel() = default;

void ShardedModel::synchronize() {
  for (Stream* stream : {compute_.get(), reduce_.get(), gather_.get()}) stream->synchronize();
}

MemoryInputs ShardedModel::memory_inputs() const {
  const GradientReducerOptions reducer =
      reducer_options(settings_, options_.reduce_each_micro_batch);
  MemoryInputs inputs;
  inputs.shard_parameters = policy_.parameters;
  inputs.shard_accumulators = reducer.shard_accumulators;
  inputs.reduce_each_micro_batch = reducer.reduce_each_micro_batch;
  inputs.slots_needed = reducer.slots_needed;
  inputs.all_reduces_copies = all_reduces_copies(reducer, layout_->shards());
  inputs.parameter_dtype = dtype();
  inputs.accumulation_dtype = reducer.accumulation_dtype;
  inputs.secondary_ranks = groups_.secondary ? groups_.secondary->size() : 1;
  inputs.ranks = mesh_.world().size();
  for (const RecordLayout& records : plan_records(*layout_, setup_, optimizer_options()))
    inputs.state_bytes += records.bytes();
  return inputs;
}

/// What is allocated for the life of the run, whatever the batches: all but gathered parameters and
/// activations.
MemoryEstimate ShardedModel::static_memory() const {
  MemoryEstimate estimate = estimate_static_memory(*layout_, buckets_, memory_inputs());
  estimate[Tier::device][Category::optimizer_workspace] =
      MatrixTransform::workspace_bytes(*layout_, setup_) +
      TensorNormStep::workspace_bytes(*layout_, setup_, mesh_.size(Axis::stage));
  return estimate;
}

MemoryEstimate ShardedModel::memory_estimate(std::int64_t activation_bytes) const {
  MemoryEstimate estimate = static_memory();
  estimate[Tier::device][Category::gathered_parameters] =
      training_plan_.arena_elements * static_cast<std::int64_t>(size_of(dtype()));
  estimate[Tier::device][Category::activations] = activation_bytes;
  return estimate;
}

FetchOptions ShardedModel::fetch_options(std::int64_t activation_bytes) const {
  FetchOptions options;
  options.prefetch_elements = settings_.sharding.prefetch;
  options.max_live_elements = settings_.sharding.max_live;
  options.max_reuse_distance = settings_.sharding.max_reuse_distance;
  const std::int64_t budget = device_.memory().budget();
  if (budget != TrackingResource::kUnlimited) {
    const std::int64_t rest = budget - static_memory().total() - activation_bytes;
    options.budget_elements =
        std::max<std::int64_t>(0, rest) / static_cast<std::int64_t>(size_of(dtype()));
  }
  return options;
}

void ShardedModel::plan(std::int64_t activation_bytes) {
  planned_ = true;
  if (!policy_.parameters || layout_->shards() == 1) return;
  const FetchOptions options = fetch_options(activation_bytes);
  training_plan_ = plan_fetches(*layout_, training_ops_, options);
  FetchPlan forward = plan_fetches(*layout_, plan_evaluation(stage_), options);
  training_plan_.arena_elements = std::max(training_plan_.arena_elements, forward.arena_elements);
  if (mesh_.leads()) {
    for (const std::string& line : training_plan_.clipped) log_warning(line);
  }
  synchronize();  // the arena is exchanged
  store_->set_plans(training_plan_, std::move(forward));
}

void ShardedModel::require_block(const Op& op) const {
  if (op.block >= 0 && op.block < layout_->block_count()) return;
  throw_invalid(
      concat("block ", op.block, " of a model with blocks 0 to ", layout_->block_count() - 1));
}

void ShardedModel::begin_training(int first_micro_batch) {
  if (!planned_) plan(0);
  store_->begin_pass(false, first_micro_batch);
}

void ShardedModel::begin_evaluation() {
  if (!planned_) plan(0);
  store_->begin_pass(true, 0);
}

std::vector<ConstView> ShardedModel::acquire(const Op& op) {
  require_block(op);
  return store_->acquire(op);
}

std::vector<GradientTarget> ShardedModel::gradients(const Op& op) {
  std::vector<GradientTarget> targets;
  for (int index : layout_->block_parameters(op.block)) {
    const LayoutParameter& parameter = layout_->parameter(index);
    GradientTarget& target = targets.emplace_back();
    target.trains = !parameter.spec.frozen;
    if (!writes_gradient(*layout_, index, op)) continue;
    const View unit = reducer_->open(parameter.unit, op.micro_batch);
    target.view = unit.flat(parameter.offset, parameter.numel()).reshaped(parameter.spec.shape);
    target.accumulate = op.block != parameter.blocks.back();
  }
  return targets;
}

void ShardedModel::release(const Op& op) {
  require_block(op);
  if (ends_gradients(op.kind)) {
    const std::vector<int>& units = layout_->block_units(op.block);
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      const Unit& entry = layout_->unit(*unit);
      if (!entry.frozen && entry.blocks.front() == op.block) reducer_->ready(*unit, op.micro_batch);
    }
  }
  store_->release(op);
}

double ShardedModel::loss_seed(int micro_batches) const {
  return state_.scaler.scale / micro_batches;
}

std::string ShardedModel::precision_line() const {
  const GradientReducerOptions reducer =
      reducer_options(settings_, options_.reduce_each_micro_batch);
  return concat("precision: parameters ", name_of(dtype()), ", gradients ",
                name_of(reducer.gradient_dtype), ", accumulation ",
                name_of(reducer.accumulation_dtype), ", communication ",
                name_of(settings_.precision.communication), ", masters ",
                name_of(settings_.precision.masters), ", moments ",
                name_of(setup_.bf16_states() ? DType::bf16 : DType::f32));
}

}  // namespace zero3d
