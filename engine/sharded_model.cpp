#include "zero3d/engine/sharded_model.h"

#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/budget_fit.h"
#include "zero3d/optim/clip.h"
#include "zero3d/parallel/agree.h"

namespace zero3d {
ShardedModel::ShardedModel(const TrainSettings& settings,
                           const std::vector<std::vector<ParameterSpec>>& blocks, const Mesh& mesh,
                           Device& device, const ShardedModelOptions& options)
    : settings_(settings),
      blocks_(blocks),
      device_(device),
      mesh_(mesh),
      options_(options),
      source_(options.source == nullptr ? make_initial_values_source(options.seed) : nullptr),
      setup_(settings.optimizer, settings.schedule, options.groups),
      plan_(plan_zero(settings, setup_, blocks, mesh, options)),
      memory_(plan_.memory),
      late_(plan_.late),
      scaler_(settings.precision.loss_scale ? LossScaler(*settings.precision.loss_scale)
                                            : LossScaler()),
      groups_(make_zero_groups(mesh, plan_.groups, plan_.pipeline.tied)),
      part_(find_model_part(plan_.layout, plan_.pipeline.names, plan_.stage.ends_model(), mesh,
                            groups_)),
      budget_(smallest_budget(mesh, device.memory())),
      host_budget_(smallest_budget(mesh, device.memory(Tier::pinned))),
      streams_(device, {.offloads = settings.offload.on(),
                        .overlaps_updates =
                            settings.delayed_updates.on() && settings.delayed_updates.overlap,
                        .transfers = plan_.pipeline.whole.has_value(),
                        .sums = settings.overlap_tp && mesh.size(Axis::tp) > 1}) {
  if (mesh.leads()) {
    for (const std::string& warning : setup_.warnings()) log_warning(warning);
  }
  state_.scaler = scaler_.initial();
  state_.seed = options.seed;
  const auto require_memory = [&] {
    plan_.memory.require_within(budget_, host_budget_);
    if (options.approve_memory) options.approve_memory(plan_.memory);
  };
  if (plan_.pipeline.whole) {  // stages take different amounts
    fail_together(mesh.world(), require_memory);
  } else {
    require_memory();
  }
  if (!options.plan_only) fail_together(mesh.world(), [this] { build(); });
}

void ShardedModel::build() {
  store_ =
      std::make_unique<ParameterStore>(device_, plan_.layout, groups_, plan_.parameters, streams_);
  store_->load(options_.source == nullptr ? *source_ : *options_.source);
  if (plan_.optimizer.offloads()) {
    offloaded_gradients_ = std::make_unique<OffloadedGradients>(
        device_, plan_.layout, plan_.optimizer.offloaded, plan_.offloaded_gradients, streams_);
  }
  reporter_ = std::make_unique<StepReporter>(device_, plan_.layout, part_);
  optimizer_ = std::make_unique<ShardedOptimizer>(device_, plan_.layout, part_, groups_, *store_,
                                                  setup_, plan_.optimizer, streams_);
  transforms_ = optimizer_->transforms();
  if (plan_.pipeline.whole) transforms_ = maximum(mesh_.world(), transforms_ ? 1 : 0) > 0;
  make_reducer();
}

void ShardedModel::make_reducer() {
  reducer_.reset();  // before its successor's memory is taken
  reducer_ =
      std::make_unique<GradientReducer>(device_, plan_.layout, plan_.buckets, groups_,
                                        plan_.gradients, streams_, offloaded_gradients_.get());
  if (!may_update_early()) return;
  reducer_->on_offloaded([this](int unit) {
    const std::vector<GroupSettings> groups = settings();
    const double scale = state_.scaler.scale;
    optimizer_->update_early(
        unit, {*reducer_, groups, state_.optimizer_steps + 1, scale, gradient_factor(0, 0, scale)});
  });
}

ShardedModel::~ShardedModel() = default;

/// Whether units are updated while backward of others runs: no step is skipped, nothing of the norm
/// goes into the update, and whole parameters lie on every rank, or would be gathered meanwhile.
bool ShardedModel::may_update_early() const {
  return plan_.optimizer.offloads() && !plan_.parameters.shard_parameters &&
         !settings_.gradients.skip_non_finite && settings_.gradients.max_norm <= 0 &&
         optimizer_->updates_units_alone();
}

void ShardedModel::begin_backward(int micro_batch, bool last) {
  reducer_->begin_backward(micro_batch, last);
  if (last && plan_.optimizer.offloads() && !may_update_early()) optimizer_->read_ahead(*reducer_);
}

void ShardedModel::reserve_activations(std::int64_t bytes) {
  planned_ = true;
  activations_ = bytes;
  if (!plan_.gathers()) return;
  const std::int64_t agreed = maximum(mesh_.group(Axis::zero), bytes);
  passes_ = plan_passes(plan_, memory_.total() + agreed, budget_);
  if (mesh_.leads()) {
    for (const std::string& line : passes_.training.clipped) log_warning(line);
  }
  if (options_.plan_only) return;
  synchronize();  // the arena is exchanged
  store_->resize_arena(passes_.arena_elements());
}

void ShardedModel::add_activations(std::int64_t bytes) {
  const std::int64_t budget = device_.memory().budget();
  const std::int64_t gathered =
      passes_.arena_elements() * static_cast<std::int64_t>(size_of(plan_.dtype()));
  const std::int64_t room = budget - memory_.total() - gathered;
  if (budget >= 0 && plan_.gathers() && bytes > room) {
    throw OutOfMemory(
        bytes, "device",
        concat("a micro-batch of this shape needs ", format_bytes(bytes),
               " for activations, and the gathers, planned for smaller ones, leave it ",
               format_bytes(room), " of the device's budget of ", format_bytes(budget),
               "; state the longest sequence when the engine is made, or raise the budget"));
  }
  activations_ = std::max(activations_, bytes);
}

void ShardedModel::require_block(const Op& op) const {
  if (op.block < 0 || op.block >= plan_.layout.block_count()) {
    throw_invalid(concat("block ", op.block, " of a model with blocks 0 to ",
                         plan_.layout.block_count() - 1));
  }
  if (op.tile < 0 || op.tile >= plan_.layout.tiles(op.block)) {
    throw_invalid(concat("tile ", op.tile, " of block ", op.block, ", which has tiles 0 to ",
                         plan_.layout.tiles(op.block) - 1));
  }
}

/// `bytes` are asked for after all: they join the plan, and gathers get what is left beside them.
void ShardedModel::plan_late(Category category, std::int64_t& bytes) {
  if (bytes == 0) return;
  PerTier<PerCategory<std::int64_t>> more;
  more[Tier::device][category] = bytes;
  plan_late(more);
  bytes = 0;
}

void ShardedModel::plan_late(const PerTier<PerCategory<std::int64_t>>& more) {
  MemoryEstimate grown = memory_;
  grown += more;
  grown.require_within(budget_, host_budget_);
  const bool device_grows = grown.total() > memory_.total();
  memory_ = grown;
  if (planned_ && device_grows) reserve_activations(activations_);
}

/// Whole parameters are asked for. Stages of a pipeline may take different amounts.
void ShardedModel::plan_exports() {
  if (exports_planned_) return;
  if (plan_.pipeline.whole) {
    fail_together(mesh_.world(), [&] { plan_late(late_.exports); });
  } else {
    plan_late(late_.exports);
  }
  exports_planned_ = true;
}

/// Planned for what is over, or does not go on meanwhile: loading, and, where training waits,
/// exports.
std::int64_t ShardedModel::spare_bytes(bool asynchronous) const {
  const std::int64_t staging = ParameterStore::staging_elements(plan_.layout, plan_.parameters);
  return bytes_of(staging, plan_.dtype()) + (asynchronous ? 0 : export_host_bytes());
}

std::int64_t ShardedModel::checkpoint_room(bool asynchronous) const {
  if (host_budget_ < 0) return std::numeric_limits<std::int64_t>::max();
  const std::int64_t others = memory_.total(kHostTiers) - checkpoints_ - spare_bytes(asynchronous);
  return std::max<std::int64_t>(0, host_budget_ - others);
}

void ShardedModel::plan_checkpoints(std::int64_t bytes, bool asynchronous) {
  const std::int64_t beside = bytes - spare_bytes(asynchronous);
  if (beside <= checkpoints_) return;
  MemoryEstimate grown = memory_;
  grown[Tier::pinned][Category::other] += beside - checkpoints_;
  grown.require_within(budget_, host_budget_);
  memory_ = grown;
  checkpoints_ = beside;
}

void ShardedModel::set_accumulation(std::int64_t micro_batches) {
  if (micro_batches == settings_.accumulation) return;
  fail_together(mesh_.world(), [&] {
    TrainSettings settings = settings_;
    settings.accumulation = micro_batches;
    ZeroPlan next = plan_zero(settings, setup_, blocks_, mesh_, options_);
    next.memory[Tier::pinned][Category::other] += checkpoints_;
    next.memory.require_within(budget_, host_budget_);
    synchronize();
    settings_ = std::move(settings);
    plan_.training = std::move(next.training);
    plan_.buckets = std::move(next.buckets);
    plan_.gradients = next.gradients;
    plan_.memory = memory_ = next.memory;
    plan_.late = late_ = next.late;
    exports_planned_ = false;
    planned_ = false;
    if (reducer_) make_reducer();
  });
}

void ShardedModel::begin_coalescing() {
  plan_late(Category::gradients, late_.coalesced);
  reducer_->begin_coalescing();
}

void ShardedModel::require_made() const {
  if (options_.plan_only) throw_invalid("a model of plan_only was made to plan, not to run");
  if (moved_.any()) {
    throw_invalid(
        "states are in host memory, where offload_states() moved them: call reload_states() before "
        "anything that computes with them or reads them");
  }
}

void ShardedModel::begin_training(int first_micro_batch) {
  require_made();
  if (first_micro_batch > 0) plan_late(Category::gradient_buckets, late_.buckets);
  if (!planned_) reserve_activations(0);
  store_->begin_pass(passes_.training, first_micro_batch);
}

void ShardedModel::begin_evaluation() {
  require_made();
  if (!planned_) reserve_activations(0);
  store_->begin_pass(passes_.evaluation, 0);
}

std::vector<ConstView> ShardedModel::acquire(const Op& op) {
  require_block(op);
  return store_->acquire(op);
}

std::vector<GradientTarget> ShardedModel::gradients(const Op& op) {
  return gradient_targets(plan_.layout, op, [&](const LayoutParameter& parameter, int) {
    return parameter.view_in(reducer_->open(parameter.unit, op.micro_batch));
  });
}

void ShardedModel::release(const Op& op) {
  require_block(op);
  if (ends_gradients(op.kind)) {
    const int part = plan_.layout.part(op.block, op.tile);
    const std::vector<int>& units = plan_.layout.part_units(part);
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      const Unit& entry = plan_.layout.unit(*unit);
      if (!entry.frozen && entry.parts.front() == part) reducer_->ready(*unit, op.micro_batch);
    }
  }
  store_->release(op);
}

OffloadUse ShardedModel::offload_use() const {
  const Device::CopiedBytes copied = device_.copied();
  OffloadUse use{.copied_in_bytes = copied.to_device,
                 .copied_out_bytes = copied.to_host,
                 .parameter_wait_seconds = store_->wait_seconds(),
                 .state_wait_seconds = optimizer_->wait_seconds()};
  const IoCounters gradients =
      offloaded_gradients_ ? offloaded_gradients_->counters() : IoCounters{};
  for (const IoCounters& drives : {store_->counters(), optimizer_->counters(), gradients}) {
    use.read_bytes += drives.read_bytes;
    use.written_bytes += drives.written_bytes;
  }
  return use;
}

double ShardedModel::loss_seed(std::int64_t micro_batches) const {
  return state_.scaler.scale / static_cast<double>(micro_batches);
}

}  // namespace zero3d
