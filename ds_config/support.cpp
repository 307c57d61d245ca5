#include "zero3d/ds_config/support.h"

#include <array>

namespace zero3d::config {

namespace {

using enum Support;
using C = const Config&;

constexpr std::array kTable = {
    // zero_optimization
    SupportEntry{"zero_optimization.offload_param", not_yet,
                 "keep parameter shards in host memory or on a drive; they stay on the device",
                 [](C c) {
                   const auto& o = c.zero_optimization.offload_param;
                   return o && o->device != OffloadDevice::none && c.zero_optimization.stage == 3;
                 }},
    SupportEntry{"zero_optimization.offload_optimizer", not_yet,
                 "keep master weights and moments in host memory or on a drive; they stay on the "
                 "device",
                 [](C c) {
                   const auto& o = c.zero_optimization.offload_optimizer;
                   return o && o->device != OffloadDevice::none && c.zero_optimization.stage > 0;
                 }},
    SupportEntry{"zero_optimization.zenflow", changes_result,
                 "update the important gradient columns first and the others later",
                 [](C c) { return c.zero_optimization.zenflow.has_value(); }},
    SupportEntry{"zero_optimization.leaf_module", no_effect,
                 "name PyTorch modules to fetch as one unit; blocks are units here", nullptr},
    SupportEntry{
        "zero_optimization.zero_quantized_weights", changes_result, "gather parameters in 8 bits",
        [](C c) {
          return c.zero_optimization.zero_quantized_weights && c.zero_optimization.stage == 3;
        }},
    SupportEntry{"zero_optimization.zero_quantized_nontrainable_weights", changes_result,
                 "keep frozen parameters in 8 bits",
                 [](C c) {
                   return c.zero_optimization.zero_quantized_nontrainable_weights &&
                          c.zero_optimization.stage == 3;
                 }},
    SupportEntry{
        "zero_optimization.zero_quantized_gradients", changes_result, "reduce gradients in 4 bits",
        [](C c) {
          return c.zero_optimization.zero_quantized_gradients && c.zero_optimization.stage == 3;
        }},
    SupportEntry{"zero_optimization.mics_hierarchical_params_gather", not_yet,
                 "gather a MiCS shard in two hops; it is gathered in one",
                 [](C c) { return c.zero_optimization.mics_hierarchical_params_gather; }},
    SupportEntry{"zero_optimization.stage3_module_granularity_threshold", no_effect,
                 "group fine modules; blocks are units here", nullptr},
    SupportEntry{"zero_optimization.stage3_use_all_reduce_for_fetch_params", no_effect,
                 "choose the collective of a gather", nullptr},
    SupportEntry{"zero_optimization.allgather_partitions", no_effect, "", nullptr},
    SupportEntry{"zero_optimization.contiguous_gradients", no_effect, "", nullptr},
    SupportEntry{"zero_optimization.use_multi_rank_bucket_allreduce", no_effect, "", nullptr},
    SupportEntry{"zero_optimization.elastic_checkpoint", no_effect, "", nullptr},
    SupportEntry{"zero_optimization.load_from_fp32_weights", no_effect, "", nullptr},
    SupportEntry{"zero_optimization.ignore_unused_parameters", no_effect, "", nullptr},
    SupportEntry{"zero_optimization.legacy_stage1", refused, "", nullptr},
    SupportEntry{"zero_optimization.round_robin_gradients", no_effect,
                 "deal parameters out in another order", nullptr},
    SupportEntry{"zero_optimization.parameter_alignment", no_effect,
                 "pad parameters in the flat buffers; they are aligned anyway", nullptr},
    SupportEntry{"zero_optimization.memory_efficient_linear", no_effect, "", nullptr},
    SupportEntry{"zero_optimization.pipeline_loading_checkpoint", no_effect, "", nullptr},
    SupportEntry{"zero_optimization.override_module_apply", no_effect, "", nullptr},
    SupportEntry{"zero_optimization.log_trace_cache_warnings", no_effect, "", nullptr},
    SupportEntry{"zero_optimization.enable_sanity_checks", no_effect,
                 "compare ids of what ranks gather; the checked communicator does", nullptr},
    SupportEntry{"zero_optimization.save_muon_momentum_buffer_in_memory", no_effect, "", nullptr},
    SupportEntry{"zero_optimization.cpu_offload_use_pin_memory", no_effect, "", nullptr},
    SupportEntry{
        "aio", not_yet, "shape requests to the drive; nothing is offloaded to one yet",
        [](C c) {
          const auto& z = c.zero_optimization;
          return z.stage == 3 &&
                 ((z.offload_param && z.offload_param->device == OffloadDevice::nvme) ||
                  (z.offload_optimizer && z.offload_optimizer->device == OffloadDevice::nvme));
        }},
    // parallelism
    SupportEntry{"tensor_parallel", refused, "split layers over ranks",
                 [](C c) { return c.degrees.tp > 1; }},
    SupportEntry{"pipeline", refused, "split the layers into pipeline stages",
                 [](C c) { return c.degrees.pp > 1; }},
    SupportEntry{"sequence_parallel_size", refused, "split sequences over ranks",
                 [](C c) { return c.degrees.sp > 1; }},
    SupportEntry{"data_parallel_size", no_effect, "follows from the other degrees", nullptr},
    SupportEntry{"seq_parallel_communication_data_type", not_yet,
                 "set the dtype of reductions under sequence parallelism", nullptr},
    SupportEntry{"expert_parallel", changes_result, "deal the experts of mixture layers to ranks",
                 [](C c) { return c.expert_parallel.enabled; }},
    SupportEntry{"activation_checkpointing", not_yet,
                 "recompute, split or move saved activations; they are kept whole on the device",
                 [](C c) {
                   const auto& a = c.activation_checkpointing;
                   return a.partition_activations || a.cpu_checkpointing ||
                          a.contiguous_memory_optimization || a.number_checkpoints.has_value();
                 }},
    // precision
    SupportEntry{"torch_autocast", changes_result, "keep fp32 weights and multiply in 16 bits",
                 [](C c) { return c.torch_autocast.enabled; }},
    SupportEntry{"data_types.buffer_dtype", no_effect, "", nullptr},
    SupportEntry{"data_types.keep_in_fp32_modules", no_effect, "", nullptr},
    SupportEntry{"fp16.auto_cast", no_effect, "cast floating inputs; models take tokens here",
                 nullptr},
    SupportEntry{"bf16.immediate_grad_update", no_effect, "", nullptr},
    // observation
    SupportEntry{"tensorboard", not_yet, "write TensorBoard event files",
                 [](C c) { return c.tensorboard.enabled; }},
    SupportEntry{"csv_monitor", not_yet, "write CSV files of scalars",
                 [](C c) { return c.csv_monitor.enabled; }},
    SupportEntry{"wandb", not_yet, "send scalars to Weights & Biases",
                 [](C c) { return c.wandb.enabled; }},
    SupportEntry{"comet", not_yet, "send scalars to Comet", [](C c) { return c.comet.enabled; }},
    SupportEntry{"comms_logger", not_yet, "log every collective",
                 [](C c) { return c.comms_logger.enabled; }},
    SupportEntry{"flops_profiler", not_yet, "profile one step",
                 [](C c) { return c.flops_profiler.enabled; }},
    SupportEntry{"timers", no_effect, "", nullptr},
    SupportEntry{"wall_clock_breakdown", not_yet, "time forward, backward and step",
                 [](C c) { return c.wall_clock_breakdown; }},
    SupportEntry{"memory_breakdown", not_yet, "print the memory in use",
                 [](C c) { return c.memory_breakdown; }},
    SupportEntry{"dump_state", not_yet, "print the engine's settings at start",
                 [](C c) { return c.dump_state; }},
    SupportEntry{"autotuning", changes_result, "search for fast settings instead of training",
                 [](C c) { return c.autotuning.enabled; }},
    SupportEntry{"log_level", no_effect, "", nullptr},
    // data, checkpoints, execution
    SupportEntry{"data_efficiency", changes_result, "choose samples or tokens by a schedule",
                 [](C c) {
                   const auto& d = c.data_efficiency;
                   return d.enabled && (d.data_sampling.enabled || d.data_routing.enabled);
                 }},
    SupportEntry{"dataloader_drop_last", no_effect, "", nullptr},
    SupportEntry{"checkpoint.writer", not_yet, "write checkpoints through a faster writer",
                 [](C c) { return c.checkpoint.writer.has_value(); }},
    SupportEntry{"checkpoint.parallel_write", not_yet, "spread a stage's layer files over ranks",
                 [](C c) { return c.checkpoint.parallel_write.pipeline_stage; }},
    SupportEntry{"checkpoint.load_universal", no_effect, "", nullptr},
    SupportEntry{"checkpoint.use_node_local_storage", not_yet, "write to each node's own drive",
                 [](C c) { return c.checkpoint.use_node_local_storage; }},
    SupportEntry{"checkpoint.checkpoint_serialization", no_effect, "", nullptr},
    SupportEntry{"datastates_ckpt", not_yet, "write checkpoints through DataStates",
                 [](C c) { return !(c.datastates_ckpt == JsonValue(false)); }},
    SupportEntry{"hybrid_engine", changes_result, "train and generate in turn",
                 [](C c) { return c.hybrid_engine.enabled; }},
    SupportEntry{"compile", not_yet, "rewrite the traced model; it runs as written",
                 [](C c) { return c.compile.deepcompile || c.compile.autoep_non_moe; }},
    SupportEntry{"weight_quantization", changes_result, "quantize weights as they are made",
                 [](C c) {
                   return c.weight_quantization.enabled &&
                          !c.weight_quantization.quantized_initialization.members().empty();
                 }},
    SupportEntry{"use_data_before_expert_parallelism", no_effect, "", nullptr},
    SupportEntry{"vocabulary_size", no_effect, "", nullptr},
    SupportEntry{"disable_python_gc", no_effect, "", nullptr},
    SupportEntry{"disable_allgather", no_effect, "", nullptr},
    SupportEntry{"zero_force_ds_cpu_optimizer", no_effect, "", nullptr},
    SupportEntry{"optimizer.legacy_fusion", no_effect, "", nullptr},
    SupportEntry{"managed_gradient_accumulation", changes_result,
                 "leave the boundary of a step to the caller",
                 [](C c) { return !c.managed_gradient_accumulation; }},
};

}  // namespace

std::span<const SupportEntry> support_table() { return kTable; }

const SupportEntry* find_support(std::string_view path) {
  const SupportEntry* best = nullptr;
  for (const SupportEntry& entry : kTable) {
    const bool covers = path.substr(0, entry.path.size()) == entry.path &&
                        (path.size() == entry.path.size() || path[entry.path.size()] == '.');
    if (covers && (best == nullptr || entry.path.size() > best->path.size())) best = &entry;
  }
  return best;
}

}  // namespace zero3d::config
