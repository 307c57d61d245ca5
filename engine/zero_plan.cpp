#include "zero3d/engine/zero_plan.h"

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

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

LayoutOptions layout_options(const ShardingSettings& sharding, const OptimizerSetup& setup,
                             const Mesh& mesh, int shards) {
  LayoutOptions options;
  options.shards = shards;
  options.persistence = sharding.what.parameters;
  options.param_persistence_threshold = sharding.persistent_parameter;
  options.model_persistence_threshold = sharding.persistent_total;
  options.placement.tensor_parallel_rank = mesh.rank(Axis::tp);
  options.placement.tensor_parallel_size = mesh.size(Axis::tp);
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
  // They also tell whether a gradient is not finite.
  options.square_sums = settings.gradients.take_norm || settings.gradients.skip_non_finite;
  if (settings.precision.communication != DType::f32)
    options.wire = settings.precision.communication;
  return options;
}

std::vector<Op> training_ops(const StageBlocks& stage, const TrainSettings& settings,
                             const PlanOptions& options) {
  const auto micro_batches = static_cast<int>(settings.accumulation);
  std::vector<Op> ops =
      options.schedule ? options.schedule(stage, micro_batches) : plan_step(stage, 1);
  if (options.schedule) require_step(ops, stage, micro_batches);
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

}  // namespace

ZeroPlan plan_zero(const TrainSettings& settings, const OptimizerSetup& setup,
                   const std::vector<std::vector<ParameterSpec>>& blocks, const Mesh& mesh,
                   const PlanOptions& options) {
  require_in_range(settings);
  require_mesh_of(settings, mesh);
  const ShardingSettings& sharding = settings.sharding;
  const ZeroGroupSizes groups = group_sizes(sharding, mesh.size(Axis::zero));
  ZeroPlan plan{.groups = groups,
                .layout = ParamLayout(blocks, layout_options(sharding, setup, mesh, groups.shard))};
  plan.stage = stage_of(plan.layout);
  plan.training = training_ops(plan.stage, settings, options);
  plan.evaluation = plan_evaluation(plan.stage);
  plan.buckets = plan_buckets(
      plan.layout, plan.training,
      {settings.gradients.reduce_bucket, settings.gradients.overlap_reduction ? 2 : 1});
  plan.parameters = {settings.precision.parameters, sharding.what.parameters,
                     sharding.gather_bucket};
  plan.gradients = reducer_options(settings, options.reduce_each_micro_batch);
  plan.optimizer = {.tile_elements = settings.optimizer_tile,
                    .parameter_dtype = settings.precision.parameters,
                    .master_dtype = settings.precision.masters,
                    .moment_dtype = setup.bf16_states() ? DType::bf16 : DType::f32,
                    .store = options.state_store};
  plan.fetches = {.prefetch_elements = sharding.prefetch,
                  .max_live_elements = sharding.max_live,
                  .max_reuse_distance = sharding.max_reuse_distance};

  MemoryInputs inputs{plan.parameters, plan.gradients};
  inputs.secondary_ranks = groups.secondary;
  inputs.ranks = mesh.world().size();
  for (const RecordLayout& records : plan_records(plan.layout, setup, plan.optimizer))
    inputs.state_bytes += records.bytes();
  plan.memory = estimate_static_memory(plan.layout, plan.buckets, inputs);
  plan.late = estimate_late_memory(plan.layout, plan.buckets, inputs);
  plan.memory[Tier::device][Category::optimizer_workspace] =
      MatrixTransform::workspace_bytes(plan.layout, setup) +
      TensorNormStep::workspace_bytes(plan.layout, setup, mesh.size(Axis::stage));
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
    return std::count_if(training.begin(), training.end(),
                         [&](const Op& op) { return op.micro_batch == 0 && belongs(op); });
  };
  const auto again = count([](const Op& op) { return op.kind == OpKind::recompute; });
  if (again == 0) return "";
  const auto on_host = count([](const Op& op) { return op.keep == Keep::inputs_on_host; });
  const auto checkpoints = count([](const Op& op) { return keeps_inputs(op.keep); });
  return concat("recompute forward of ", again, " of ", stage.blocks, " blocks again, in ",
                checkpoints, checkpoints == 1 ? " group" : " groups", " of which inputs are kept",
                on_host > 0 ? " in host memory" : "");
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
