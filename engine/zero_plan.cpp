#include "zero3d/engine/zero_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/pipeline/timeline.h"
#include "zero3d/engine/tiling.h"
#include "zero3d/offload/offload_store.h"
#include "zero3d/optim/adam.h"

namespace zero3d {
namespace {

void require_degree(const Mesh& mesh, Axis axis, int wanted) {
  if (mesh.size(axis) == wanted) return;
  throw ConfigError(
      "", concat("the settings are for ", name_of(axis), " ", wanted, ", and the ",
                 mesh.world().size(), " ranks of the run have ", name_of(axis), " ",
                 mesh.size(axis), "; load the configuration for these ranks, or start others"));
}

/// Settings for other ranks have batch sizes and shards that are not those of this run.
void require_mesh_of(const TrainSettings& settings, const Mesh& mesh) {
  if (settings.dp > 0) require_degree(mesh, Axis::dp, settings.dp);
  require_degree(mesh, Axis::tp, settings.tp);
  require_degree(mesh, Axis::pp, settings.pp);
  require_degree(mesh, Axis::sp, settings.sp);
}

ZeroGroupSizes group_sizes(const ShardingSettings& sharding, int ranks) {
  ZeroGroupSizes sizes;
  if (sharding.what.optimizer_state) sizes.shard = sharding.ranks > 0 ? sharding.ranks : ranks;
  if (sharding.what.parameters)
    sizes.secondary = std::max(1, std::min(sharding.secondary_ranks, sizes.shard));
  return sizes;
}

using BlockParameters = std::vector<std::vector<ParameterSpec>>;
/// By name of a parameter: the stages that use it, ascending.
using StagesByName = std::map<std::string, std::set<int>>;

LayoutOptions layout_options(const TrainSettings& settings, const OptimizerSetup& setup,
                             const Mesh& mesh, int shards) {
  const ShardingSettings& sharding = settings.sharding;
  LayoutOptions options;
  options.splits_sequence = settings.split_rows;
  options.shards = shards;
  options.persistence = sharding.what.parameters;
  options.param_persistence_threshold = sharding.persistent_parameter;
  options.model_persistence_threshold = sharding.persistent_total;
  options.placement.tensor_parallel_rank = mesh.rank(Axis::tp);
  options.placement.tensor_parallel_size = mesh.size(Axis::tp);
  options.group_of = [&setup](const ParameterSpec& spec) { return setup.group_of(spec); };
  return options;
}

std::vector<PartitionBlock> blocks_to_deal(const BlockParameters& blocks,
                                           const PlanOptions& options) {
  std::vector<PartitionBlock> result;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    PartitionBlock& block = result.emplace_back();
    block.name = i < options.block_names.size() ? options.block_names[i] : std::to_string(i);
    for (const ParameterSpec& spec : blocks[i]) block.parameters += spec.declared_numel();
  }
  return result;
}

/// Of a mesh with one stage nothing but the names.
PipelinePlan plan_stages(const TrainSettings& settings, const BlockParameters& blocks,
                         const Mesh& mesh, const PlanOptions& options, StagesByName& users) {
  PipelinePlan plan;
  std::set<std::string> seen;
  for (const auto& block : blocks)
    for (const ParameterSpec& spec : block)
      if (seen.insert(spec.name).second) plan.names.push_back(spec.name);
  plan.bounds = {0, static_cast<int>(blocks.size())};
  const int stages = mesh.size(Axis::pp);
  if (stages == 1) return plan;
  plan.shape = pipeline_shape(settings.pipeline.schedule, stages, settings.pipeline.virtual_stages);
  plan.bounds = partition_blocks(settings.pipeline.partition, blocks_to_deal(blocks, options),
                                 plan.shape.segments());
  for (int segment = 0; segment < plan.shape.segments(); ++segment) {
    const auto at = static_cast<std::size_t>(segment);
    for (int block = plan.bounds[at]; block < plan.bounds[at + 1]; ++block)
      for (const ParameterSpec& spec : blocks[static_cast<std::size_t>(block)])
        users[spec.name].insert(plan.shape.stage_of(segment));
  }
  for (const auto& [name, by] : users)
    if (by.size() > 1) plan.tied.insert({by.begin(), by.end()});
  LayoutOptions whole;
  whole.placement.tensor_parallel_rank = mesh.rank(Axis::tp);
  whole.placement.tensor_parallel_size = mesh.size(Axis::tp);
  plan.whole.emplace(blocks, whole);
  return plan;
}

StageBlocks stage_here(const PipelinePlan& plan, const Mesh& mesh) {
  return stage_blocks(plan.shape, plan.bounds, stage_of(*plan.whole).backward_down_to,
                      mesh.rank(Axis::pp));
}

BlockParameters blocks_of(const StageBlocks& stage, const BlockParameters& blocks) {
  BlockParameters result;
  for (int block = 0; block < stage.blocks; ++block)
    result.push_back(blocks[static_cast<std::size_t>(stage.block_in_model(block))]);
  return result;
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
  options.overlap = settings.gradients.overlap_reduction;
  options.mean = settings.gradients.mean;
  options.prescale = settings.gradients.prescale;
  options.predivide_factor = settings.gradients.predivide_factor;
  // They also tell whether a gradient is not finite.
  // And which blocks have the largest.
  options.square_sums = settings.gradients.take_norm || settings.gradients.skip_non_finite ||
                        settings.delayed_updates.on();
  if (settings.precision.communication != DType::f32)
    options.wire = settings.precision.communication;
  return options;
}

/// Of the units that are updated on the host, or of the others.
std::vector<RecordLayout> records_of(const ZeroPlan& plan, const OptimizerSetup& setup,
                                     bool on_host) {
  std::vector<RecordLayout> records = plan_records(plan.layout, setup, plan.optimizer);
  for (int unit = 0; unit < plan.layout.unit_count(); ++unit)
    if (plan.optimizer.offloads(unit) != on_host) records[static_cast<std::size_t>(unit)] = {};
  return records;
}

std::int64_t total_bytes(const std::vector<RecordLayout>& records) {
  std::int64_t bytes = 0;
  for (const RecordLayout& unit : records) bytes += unit.bytes();
  return bytes;
}

/// What leaves the device with the optimizer's state: nothing at stage 0, where DeepSpeed's keys
/// have no effect either.
void plan_optimizer_offload(const TrainSettings& settings, int rank, ZeroPlan& plan) {
  const OptimizerOffload& offload = settings.offload.optimizer;
  if (!offload.on() || !settings.sharding.what.optimizer_state) return;
  const TileSizes tiles = tile_sizes(settings.optimizer_tile);
  plan.optimizer.offloaded = plan_offload(plan.layout, offload.ratio);
  plan.optimizer.host_tier = offload.tier();
  plan.optimizer.host_store = make_offload_store(
      settings.offload, {"optimizer state", Category::optimizer_states, tiles.tile, rank});
  plan.gradients.offloads = plan.optimizer.offloads();
  plan.offloaded_gradients = {
      .dtype = plan.gradients.accumulation_dtype,
      .tiles = tiles,
      .tier = offload.tier(),
      .square_sums = plan.gradients.square_sums,
      .store = make_offload_store(settings.offload,
                                  {"gradients", Category::gradients, tiles.tile, rank})};
  plan.optimizer.delayed = {settings.delayed_updates, plan.optimizer.offloaded, offload.tier(),
                            plan.gradients.accumulation_dtype};
}

/// Beside what is planned for the device: state and gradients of units that the host updates.
void plan_host_memory(const TrainSettings& settings, const OptimizerSetup& setup, ZeroPlan& plan) {
  if (!plan.optimizer.offloads()) return;
  const OptimizerOffload& offload = settings.offload.optimizer;
  const std::vector<bool>& offloaded = plan.optimizer.offloaded;
  const std::int64_t tile = plan.offloaded_gradients.tiles.tile;
  const std::vector<RecordLayout> states = records_of(plan, setup, true);
  const std::vector<RecordLayout> gradients =
      OffloadedGradients::plan_records(plan.layout, offloaded, plan.offloaded_gradients);
  if (offload.device == OffloadDevice::nvme) {
    plan.memory.drives[Category::optimizer_states] += total_bytes(states);
    plan.memory.drives[Category::gradients] += total_bytes(gradients);
  }
  PerCategory<std::int64_t>& host = plan.memory[offload.tier()];
  host[Category::optimizer_states] += offload_store_bytes(offload, states, tile);
  host[Category::gradients] += offload_store_bytes(offload, gradients, tile);
  host[Category::gradient_buckets] += OffloadedGradients::staging_bytes(gradients);
  host[Category::norm_workspace] += OffloadedGradients::square_sum_bytes(gradients);
  host[Category::optimizer_workspace] +=
      MatrixTransform::host_bytes(plan.layout, setup, offloaded) +
      TensorNormStep::host_bytes(plan.layout, setup, offloaded);
  if (plan.optimizer.parameters != OffloadDevice::cpu)
    host[Category::gathered_parameters] +=
        ParameterPieces::bytes(largest_record(states), plan.dtype());
}

/// Delayed updates are Adam's, of state in host memory.
void require_delayed_updates(const TrainSettings& settings, const OptimizerSetup& setup) {
  if (!settings.delayed_updates.on()) return;
  if (!settings.sharding.what.optimizer_state)
    throw_invalid(
        "TrainSettings::delayed_updates need a sharded optimizer state (stages 1 to 3): at stage 0 "
        "nothing is offloaded");
  for (int group = 0; group < setup.group_count(); ++group) {
    if (dynamic_cast<const Adam*>(&setup.rule(group)) == nullptr)
      throw_invalid(concat("TrainSettings::delayed_updates are Adam's and AdamW's, and the ",
                           "optimizer is ", setup.rule(group).name(), "; use one of those"));
  }
}

/// What delayed updates take beside the state of the units.
void plan_delayed_memory(const OptimizerSetup& setup, ZeroPlan& plan) {
  const DelayedUpdateOptions& delayed = plan.optimizer.delayed;
  if (!plan.optimizer.offloads() || !delayed.settings.on()) return;
  const std::vector<RecordLayout> states = records_of(plan, setup, true);
  const std::vector<RecordLayout> chosen =
      DelayedUpdates::plan_chosen(plan.layout, delayed, states);
  plan.memory[Tier::device][Category::optimizer_states] += total_bytes(chosen);
  plan.memory[Tier::device][Category::optimizer_workspace] +=
      DelayedUpdates::staging_bytes(chosen, delayed.gradient_dtype);
  plan.memory[delayed.host_tier][Category::gradients] +=
      DelayedUpdates::pending_sets(delayed.settings) *
      total_bytes(DelayedUpdates::plan_pending(delayed, states));
}

/// Elements of the units that an export has open at a time, and of a piece beside them.
std::int64_t open_elements(const ZeroPlan& plan) {
  const std::vector<int> units = units_to_export(plan);
  std::map<int, std::size_t> last;
  for (std::size_t i = 0; i < units.size(); ++i) last[units[i]] = i;
  std::int64_t open = 0, most = 0, piece = 0;
  std::set<int> opened;
  for (const Unit& unit : plan.layout.units()) most = std::max(most, unit.padded);
  for (const LayoutParameter& parameter : plan.layout.parameters())
    if (!parameter.spec.piece.whole())
      piece = std::max(piece, plan.layout.unit(parameter.unit).padded);
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (units[i] < 0) continue;
    const std::int64_t elements = plan.layout.unit(units[i]).padded;
    if (opened.insert(units[i]).second) open += elements;
    most = std::max(most, open + piece);
    if (last[units[i]] == i) open -= elements;
  }
  return most;
}

/// What exports take: whole units, memory where they put together what tensor parallelism and tiles
/// cut, and where they hear of what other stages hold.
void plan_exports(ZeroPlan& plan, bool from_the_start) {
  std::int64_t largest = 0, passing = 0;
  for (const LayoutParameter& parameter : plan.layout.parameters()) {
    const std::int64_t part = parameter.numel();
    const bool shared = plan.layout.placement().tensor_parallel_size > 1;
    if (shared) passing = std::max(passing, std::min(part, ZeroPlan::kPassingElements));
    if (!parameter.placement.whole())
      largest = std::max(largest, (shared ? part : 0) + parameter.spec.shape.numel());
  }
  std::int64_t told = 0;
  if (plan.pipeline.whole)
    for (const LayoutParameter& parameter : plan.pipeline.whole->parameters())
      told = std::max(told, parameter.spec.shape.numel());
  const DType dtype = plan.dtype();
  PerTier<PerCategory<std::int64_t>>& exports = plan.late.exports;
  exports[Tier::device][Category::gathered_parameters] = bytes_of(passing, dtype);
  // Beside what loading takes, which is over then.
  exports[Tier::pinned][Category::gathered_parameters] = bytes_of(
      std::max<std::int64_t>(0, open_elements(plan) + passing -
                                    ParameterStore::staging_elements(plan.layout, plan.parameters)),
      dtype);
  exports[Tier::pageable][Category::gathered_parameters] = bytes_of(largest + told, dtype);
  for (const Tier tier : kHostTiers)
    plan.export_host_bytes += exports[tier][Category::gathered_parameters];
  if (from_the_start) plan.memory += std::exchange(exports, {});
}

/// Of this stage's part of the pipeline that the settings ask for.
std::vector<Op> pipeline_ops(const PipelinePlan& pipeline, const StageBlocks& stage,
                             const TrainSettings& settings, int micro_batches) {
  const auto tasks = plan_pipeline(settings.pipeline.schedule, pipeline.shape, micro_batches);
  return stage_ops(tasks[static_cast<std::size_t>(stage.stage)], stage);
}

std::vector<Op> training_ops(const PipelinePlan& pipeline, const StageBlocks& stage,
                             const TrainSettings& settings, const PlanOptions& options) {
  const auto micro_batches = static_cast<int>(settings.accumulation);
  std::vector<Op> ops = options.schedule ? options.schedule(stage, micro_batches)
                        : pipeline.whole_steps()
                            ? pipeline_ops(pipeline, stage, settings, micro_batches)
                            : plan_step(stage, 1);
  if (options.schedule || pipeline.whole_steps()) require_step(ops, stage, micro_batches);
  const bool on_host = settings.offload.activations;
  for (const Op& op : ops) {
    if (op.keep == Keep::inputs_on_host && !on_host) {
      throw_invalid(
          concat("the schedule keeps inputs of block ", op.block,
                 " on the host, and TrainSettings::offload.activations is false; set it"));
    }
  }
  return with_recomputation(ops, stage, settings.recomputation, on_host);
}

/// What the settings do already, or what would not help.
MemoryHabits habits_of(const TrainSettings& settings, const ZeroPlan& plan,
                       const OptimizerSetup& setup, const Mesh& mesh) {
  const ShardingPolicy& what = settings.sharding.what;
  const auto count = [&](const auto& belongs) {
    return std::count_if(plan.training.begin(), plan.training.end(), belongs);
  };
  bool matrices = false;
  for (int group = 0; group < setup.group_count(); ++group)
    matrices = matrices || setup.rule(group).needs() == RuleNeeds::whole_matrices;
  MemoryHabits habits;
  habits.stage = what.parameters ? 3 : what.gradients ? 2 : what.optimizer_state ? 1 : 0;
  habits.trains = plan.pipeline.trains;
  habits.replicas = mesh.size(Axis::zero);
  habits.optimizer = settings.offload.optimizer;
  habits.parameters = settings.offload.parameters;
  habits.recomputes = count([](const Op& op) { return op.kind == OpKind::recompute; }) > 0;
  habits.kept_on_host = settings.offload.activations && habits.recomputes;
  const std::vector<int> cuts = plan.layout.tiles();
  const bool uncut = std::all_of(cuts.begin(), cuts.end(), [](int tiles) { return tiles == 1; });
  const bool stated = settings.tiles.linear > 0 || settings.tiles.head > 0;
  habits.can_tile = mesh.size(Axis::tp) == 1 && !matrices && (uncut || stated);
  habits.tiles = {settings.tiles.linear, settings.tiles.head};
  habits.delays_updates = settings.delayed_updates.on();
  habits.micro_batch = settings.micro_batch;
  return habits;
}

/// Rules that take whole matrices cannot have pieces of them.
void refuse_pieces(const ParamLayout& layout, const OptimizerSetup& setup) {
  for (const LayoutParameter& parameter : layout.parameters()) {
    const ParameterSpec& spec = parameter.spec;
    if (spec.piece.whole() || spec.frozen ||
        setup.rule(parameter.group).needs() != RuleNeeds::whole_matrices)
      continue;
    throw ConfigError("", concat("the optimizer takes ", spec.name,
                                 " as a whole matrix, and its layer is cut into tiles; set "
                                 "linear_tiles and head_tiles of the section zero3d to 1, or "
                                 "choose an optimizer that works by "
                                 "elements"));
  }
}

}  // namespace

std::vector<int> units_to_export(const ZeroPlan& plan) {
  std::vector<int> units;
  for (const ParameterSpec& spec : plan.model_layout().whole_parameters()) {
    const int index = plan.layout.find(spec.name);
    units.push_back(-1);
    if (index < 0 || plan.layout.pieces_of(index).size() > 1) continue;
    const LayoutParameter& parameter = plan.layout.parameter(index);
    if (parameter.stages.empty() || parameter.stages.front() == plan.stage.stage)
      units.back() = parameter.unit;
  }
  return units;
}

ZeroPlan plan_zero(const TrainSettings& settings, const OptimizerSetup& setup,
                   const std::vector<std::vector<ParameterSpec>>& blocks, const Mesh& mesh,
                   const PlanOptions& options) {
  require_in_range(settings);
  require_mesh_of(settings, mesh);
  require_delayed_updates(settings, setup);
  const ShardingSettings& sharding = settings.sharding;
  const ZeroGroupSizes groups = group_sizes(sharding, mesh.size(Axis::zero));
  StagesByName users;
  PipelinePlan pipeline = plan_stages(settings, blocks, mesh, options, users);
  const bool whole = !pipeline.whole.has_value();
  const StageBlocks here = whole ? StageBlocks{} : stage_here(pipeline, mesh);
  LayoutOptions layout = layout_options(settings, setup, mesh, groups.shard);
  layout.stage = here.stage;
  layout.stages_of = [&users](const ParameterSpec& spec) {
    const auto found = users.find(spec.name);
    return found == users.end() ? std::vector<int>{}
                                : std::vector<int>(found->second.begin(), found->second.end());
  };
  ZeroPlan plan{.groups = groups,
                .pipeline = std::move(pipeline),
                .layout = ParamLayout(whole ? blocks : blocks_of(here, blocks), layout)};
  refuse_pieces(plan.layout, setup);
  for (const Unit& unit : plan.layout.units())
    if (unit.sums_holders && !unit.frozen) plan.groups.holders.insert(unit.holders);
  plan.stage = whole ? stage_of(plan.layout) : here;
  const StageBlocks model = whole ? plan.stage : stage_of(*plan.pipeline.whole);
  plan.pipeline.trains = model.backward_down_to < model.blocks;
  const std::vector<int> tiles = plan.layout.tiles();
  plan.training = with_tiles(training_ops(plan.pipeline, plan.stage, settings, options), tiles);
  plan.evaluation = with_tiles(plan_evaluation(plan.stage), tiles);
  std::vector<int> ends;
  for (const Chunk& chunk : plan.stage.all_chunks()) ends.push_back(chunk.end);
  plan.buckets = plan_buckets(
      plan.layout, plan.training,
      {settings.gradients.reduce_bucket, settings.gradients.overlap_reduction ? 2 : 1}, ends);
  plan.parameters = {settings.precision.parameters, sharding.what.parameters,
                     sharding.gather_bucket};
  if (sharding.what.parameters) {
    plan.parameters.offload = {settings.offload.parameters, settings.offload.io,
                               settings.offload.checksums};
    plan.parameters.offload.io.rank = mesh.world().rank();
  }
  plan.parameters.host_holds_states = settings.offload.on();
  plan.gradients = reducer_options(settings, options.reduce_each_micro_batch);
  plan.optimizer = {.tile_elements = settings.optimizer_tile,
                    .parameter_dtype = settings.precision.parameters,
                    .master_dtype = settings.precision.masters,
                    .moment_dtype = setup.bf16_states() ? DType::bf16 : DType::f32,
                    .store = options.state_store};
  if (plan.parameters.fetches(plan.layout))
    plan.optimizer.parameters = plan.parameters.offload.to.device;
  plan.fetches = {.prefetch_elements = sharding.prefetch,
                  .max_live_elements = sharding.max_live,
                  .max_reuse_distance = sharding.max_reuse_distance};

  plan_optimizer_offload(settings, mesh.world().rank(), plan);

  MemoryInputs inputs{plan.parameters, plan.gradients};
  inputs.secondary_ranks = groups.secondary;
  inputs.ranks = mesh.world().size();
  inputs.offloaded = plan.optimizer.offloaded;
  const std::vector<RecordLayout> states = records_of(plan, setup, false);
  for (const RecordLayout& records : states) inputs.state_bytes += records.bytes();
  plan.memory = estimate_static_memory(plan.layout, plan.buckets, inputs);
  plan.late = estimate_late_memory(plan.layout, plan.buckets, inputs);
  plan.memory[Tier::device][Category::optimizer_workspace] =
      MatrixTransform::workspace_bytes(plan.layout, setup) +
      TensorNormStep::workspace_bytes(plan.layout, setup, mesh.size(Axis::stage));
  if (plan.optimizer.parameters != OffloadDevice::none)
    plan.memory[Tier::device][Category::gathered_parameters] +=
        ParameterPieces::bytes(largest_record(states), plan.dtype());
  plan_host_memory(settings, setup, plan);
  plan_exports(plan, options.exports);
  plan_delayed_memory(setup, plan);
  plan.memory.habits = habits_of(settings, plan, setup, mesh);
  return plan;
}

std::string ZeroPlan::precision_line() const {
  return concat("precision: parameters ", name_of(dtype()), ", gradients ",
                name_of(gradients.gradient_dtype), ", accumulation ",
                name_of(gradients.accumulation_dtype), ", communication ",
                name_of(gradients.wire.value_or(DType::f32)), ", masters ",
                name_of(optimizer.master_dtype), ", moments ", name_of(optimizer.moment_dtype));
}

std::string ZeroPlan::recomputation_line() const {
  const auto count = [&](const auto& belongs) {
    return std::count_if(training.begin(), training.end(), [&](const Op& op) {
      return op.micro_batch == 0 && op.tile == 0 && belongs(op);
    });
  };
  const auto again = count([](const Op& op) { return op.kind == OpKind::recompute; });
  if (again == 0) return "";
  const auto on_host = count([](const Op& op) { return op.keep == Keep::inputs_on_host; });
  const auto checkpoints = count([](const Op& op) { return keeps_inputs(op.keep); });
  return concat("recompute forward of ", again, " of ", stage.blocks, " blocks again, in ",
                checkpoints, checkpoints == 1 ? " group" : " groups", " of which inputs are kept",
                on_host > 0 ? " in host memory" : "");
}

std::string ZeroPlan::pipeline_line() const {
  if (!pipeline.whole) return "";
  const PipelineShape& shape = pipeline.shape;
  std::string text;
  for (int place = 0; place < shape.stages; ++place) {
    std::int64_t held = 0;
    std::string blocks;
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      const auto segment = static_cast<std::size_t>(shape.segment_of(place, chunk));
      const int begin = pipeline.bounds[segment];
      const int end = pipeline.bounds[segment + 1];
      append_item(blocks, " and ", begin, end - begin > 1 ? concat("-", end - 1) : "");
      for (int block = begin; block < end; ++block)
        for (const int index : pipeline.whole->block_parameters(block))
          held += pipeline.whole->parameter(index).spec.declared_numel();
    }
    append_item(text, "; ", "stage ", place, " blocks ", blocks, ", ", format_count(held),
                " parameters");
  }
  return text;
}

double ZeroPlan::bubble(const TrainSettings& settings) const {
  const PipelineShape& shape = pipeline.shape;
  const auto micro_batches = static_cast<int>(settings.accumulation);
  return play_pipeline(shape, plan_pipeline(settings.pipeline.schedule, shape, micro_batches), {})
      .bubble();
}

std::int64_t PassPlans::arena_elements() const {
  return std::max(training.arena_elements, evaluation.arena_elements);
}

PassPlans plan_passes(const ZeroPlan& plan, std::int64_t taken, std::int64_t budget) {
  if (!plan.gathers()) return {};
  FetchOptions options = plan.fetches;
  if (budget >= 0) {
    options.budget_elements = std::max<std::int64_t>(0, budget - taken) / bytes_of(1, plan.dtype());
  }
  return {plan_fetches(plan.layout, plan.training, options),
          plan_fetches(plan.layout, plan.evaluation, options)};
}

}  // namespace zero3d
