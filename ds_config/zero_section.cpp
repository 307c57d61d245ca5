// Descriptions of zero_optimization, its offload, leaf_module and zenflow parts.
#include "zero3d/ds_config/zero_section.h"

#include <algorithm>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"

namespace zero3d::config {

namespace {

const Section& offload_param_section() {
  static const Section section = [] {
    SectionBuilder<OffloadParamConfig> b("zero_optimization.offload_param", true);
    b.add("device", &OffloadParamConfig::device, "Where parameter shards live between uses.");
    b.add("nvme_path", &OffloadParamConfig::nvme_path, "Folder on the drive; needed for nvme.");
    b.add("buffer_count", &OffloadParamConfig::buffer_count, "Staging buffers for nvme.")
        .at_least(0);
    b.add("buffer_size", &OffloadParamConfig::buffer_size, "Elements of a staging buffer.")
        .at_least(0);
    b.add("max_in_cpu", &OffloadParamConfig::max_in_cpu,
          "Elements kept in host memory before the drive is used.")
        .at_least(0);
    b.add("pin_memory", &OffloadParamConfig::pin_memory, "Page-locked host memory.");
    return b.build();
  }();
  return section;
}

const Section& offload_optimizer_section() {
  static const Section section = [] {
    using C = OffloadOptimizerConfig;
    SectionBuilder<C> b("zero_optimization.offload_optimizer", true);
    b.add("device", &C::device, "Where master weights and moments live.");
    b.add("nvme_path", &C::nvme_path, "Folder on the drive; needed for nvme.");
    b.add("buffer_count", &C::buffer_count, "Staging buffers for nvme.").at_least(0);
    b.add("pin_memory", &C::pin_memory, "Page-locked host memory.");
    b.add("pipeline_read", &C::pipeline_read, "Read the next tile while one is updated.");
    b.add("pipeline_write", &C::pipeline_write, "Write the last tile while one is updated.");
    b.add("fast_init", &C::fast_init, "A quick first write of the states to the drive.");
    b.add("ratio", &C::ratio, "Share of the optimizer states offloaded; below 1 needs stage 3.")
        .between(0, 1);
    b.add("super_offload", &C::super_offload, "SuperOffload's worker process (stage 3).");
    b.add("cpuadam_cores_perc", &C::cpuadam_cores_perc, "Share of the cores for that worker.")
        .between(0, 1);
    return b.build();
  }();
  return section;
}

void read_classes(Reader& r, const Field& f, const std::string& path, const JsonValue& value,
                  std::vector<std::string>& out) {
  std::vector<std::string> names;
  if (value.is_string()) {
    names = {value.as_string()};
  } else if (auto read = r.to_texts(f, path, value)) {
    names = std::move(*read);
  } else {
    return;
  }
  out.clear();
  for (std::string& name : names) {
    if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(std::move(name));
  }
}

const Section& leaf_module_section() {
  static const Section section = [] {
    using C = LeafModuleConfig;
    SectionBuilder<C> b("zero_optimization.leaf_module", true);
    const auto names = [&b](const char* name, std::vector<std::string> C::*member,
                            const char* effect) {
      b.custom(
          name, "list of strings", effect,
          [member](Reader& r, const Field& f, const std::string& path, const JsonValue& value,
                   C& out) { read_classes(r, f, path, value, out.*member); },
          [member](const C& in) { return write_value(in.*member); });
    };
    names("classes", &C::classes, "Module classes fetched as one unit; replaces the default list.");
    names("names", &C::names, "Module names fetched as one unit.");
    names("name_suffixes", &C::name_suffixes, "The same by the end of the name.");
    return b.build();
  }();
  return section;
}

/// An interval: an integer or "auto".
Field& add_interval(SectionBuilder<ZenFlowConfig>& b, const char* name,
                    std::optional<std::int64_t> ZenFlowConfig::*member, const char* effect) {
  return b
      .custom(
          name, "int or \"auto\"", effect,
          [member](Reader& r, const Field& f, const std::string& path, const JsonValue& value,
                   ZenFlowConfig& out) {
            if (value.is_auto()) return;
            if (value.is_string()) {
              r.refuse(f, path, value, "an integer or \"auto\"", "write the number without quotes");
            } else if (const auto read = r.to_integer(f, path, value)) {
              out.*member = *read;
            }
          },
          [member](const ZenFlowConfig& in) {
            return in.*member ? JsonValue(*(in.*member)) : JsonValue("auto");
          })
      .or_auto();
}

const Section& zenflow_section() {
  static const Section section = [] {
    using C = ZenFlowConfig;
    SectionBuilder<C> b("zero_optimization.zenflow", true);
    b.add("topk_ratio", &C::topk_ratio,
          "Share of gradient columns updated on the device each step.")
        .inside(0, 1);
    b.add("select_strategy", &C::select_strategy, "When the columns are chosen anew.")
        .one_of({"auto", "step", "epoch"})
        .or_auto();
    add_interval(b, "select_interval", &C::select_interval, "Steps or epochs between choices.");
    add_interval(b, "update_interval", &C::update_interval,
                 "Steps between updates of the other columns.")
        .at_least(1);
    b.add("overlap_step", &C::overlap_step, "Run the host's step beside the next one.");
    b.add("offload", &C::offload, "Keep the chosen columns' states on the host.");
    b.add("auto_ratio", &C::auto_ratio, "Threshold of the automatic update.").between(0, 1);
    b.add("full_warm_up_rounds", &C::full_warm_up_rounds, "Full steps at the start.");
    b.add("pt_reserved_cores_perc", &C::pt_reserved_cores_perc,
          "Share of the cores left to the training process.")
        .between(0, 1);
    b.add("steps_per_epoch", &C::steps_per_epoch, "Filled while running.");
    return b.build();
  }();
  return section;
}

/// How 0.19.8 reads the stage: an integer from 0 to 3, also as true, 2.0 or "2".
void read_stage(Reader& r, const Field& f, const std::string& path, const JsonValue& value,
                ZeroConfig& out) {
  const bool word =
      value.is_string() && value.as_string().find_first_of("0123") == std::string::npos;
  if (word) {
    r.refuse(
        f, path, value, "0, 1, 2 or 3",
        value.is_quoteless()
            ? "an unquoted word is read as text; if it is a placeholder of a template, put the "
              "stage in its place"
            : "write the number");
  } else if (const auto read = r.to_integer(f, path, value)) {
    out.stage = static_cast<int>(*read);
  }
}

void add_general(SectionBuilder<ZeroConfig>& b) {
  using C = ZeroConfig;
  b.custom("stage", "0, 1, 2 or 3",
           "0 shards nothing, 1 the optimizer state, 2 gradients too, 3 parameters too.",
           read_stage, [](const C& in) { return JsonValue(in.stage); })
      .between(0, 3);
  b.add("contiguous_gradients", &C::contiguous_gradients,
        "Copy gradients into a flat bucket as they appear. zero3d always does.");
  b.add("reduce_scatter", &C::reduce_scatter,
        "Reduce gradients to their owners; false all-reduces them.");
  b.add("reduce_bucket_size", &C::reduce_bucket_size, "Elements of a gradient reduction bucket.")
      .above(0);
  b.add("use_multi_rank_bucket_allreduce", &C::use_multi_rank_bucket_allreduce,
        "One all-reduce for the buckets of several owners.");
  b.add("allgather_partitions", &C::allgather_partitions, "Without effect, in DeepSpeed too.");
  b.add("allgather_bucket_size", &C::allgather_bucket_size,
        "Elements gathered at a time after the step (stages 1 and 2).")
      .at_least(0);
  b.add("overlap_comm", &C::overlap_comm,
        "Overlap communication with computation. null: true at stage 3, else false.");
  b.add("compute_grad_norm", &C::compute_grad_norm,
        "false skips the gradient norm (stages 1 and 2; gradient_clipping must be 0).");
  b.add("load_from_fp32_weights", &C::load_from_fp32_weights,
        "A checkpoint's master weights are taken from its fp32 copy.");
  b.add("elastic_checkpoint", &C::elastic_checkpoint,
        "DeepSpeed's old way to change dp between runs; zero3d's checkpoints always allow it.");
}

void add_parts(SectionBuilder<ZeroConfig>& b) {
  using C = ZeroConfig;
  b.nest("offload_param", &C::offload_param, offload_param_section(),
         "Keep parameter shards off the device (stage 3).");
  b.nest("offload_optimizer", &C::offload_optimizer, offload_optimizer_section(),
         "Keep master weights and moments off the device (stages 1 to 3).");
  b.nest("zenflow", &C::zenflow, zenflow_section(), "ZenFlow's stall-free offloaded step.");
  b.nest("leaf_module", &C::leaf_module, leaf_module_section(),
         "Modules whose parameters are fetched as one unit (stage 3).")
      .or_null();
}

void add_stage3(SectionBuilder<ZeroConfig>& b) {
  using C = ZeroConfig;
  b.add("sub_group_size", &C::sub_group_size, "Elements of an optimizer tile (stage 3).")
      .at_least(0);
  b.add("stage3_prefetch_bucket_size", &C::prefetch_bucket_size,
        "Elements gathered ahead of their use; 0 gathers nothing ahead.")
      .also("prefetch_bucket_size")
      .at_least(0);
  b.add("stage3_param_persistence_threshold", &C::param_persistence_threshold,
        "Parameters up to this many elements stay gathered.")
      .also("param_persistence_threshold")
      .at_least(0);
  b.add("stage3_model_persistence_threshold", &C::model_persistence_threshold,
        "At most this many elements stay gathered.")
      .also("model_persistence_threshold")
      .at_least(0);
  b.add("stage3_max_live_parameters", &C::max_live_parameters,
        "Elements gathered at any time before prefetching pauses.")
      .also("max_live_parameters")
      .at_least(0);
  b.add("stage3_max_reuse_distance", &C::max_reuse_distance,
        "A parameter used again within this many elements is not released.")
      .also("max_reuse_distance")
      .at_least(0);
  b.add("stage3_gather_16bit_weights_on_model_save", &C::gather_16bit_weights_on_model_save,
        "Gather 16-bit weights when the model is saved.")
      .also("gather_16bit_weights_on_model_save");
  b.add("stage3_module_granularity_threshold", &C::module_granularity_threshold,
        "Modules finer than this are fetched as one unit; 0 is off.")
      .also("module_granularity_threshold");
  b.add("stage3_use_all_reduce_for_fetch_params", &C::use_all_reduce_for_fetch_params,
        "Gather parameters by an all-reduce.")
      .also("use_all_reduce_for_fetch_params");
  b.add("stage3_allgather_sequential", &C::allgather_sequential, "Gather one parameter at a time.")
      .also("allgather_sequential");
}

void add_features(SectionBuilder<ZeroConfig>& b) {
  using C = ZeroConfig;
  b.add("ignore_unused_parameters", &C::ignore_unused_parameters,
        "Bear trainable parameters that got no gradient.");
  b.add("legacy_stage1", &C::legacy_stage1, "Gone; true is refused at start.");
  b.add("round_robin_gradients", &C::round_robin_gradients,
        "Deal parameters out to ranks in turn (stages 1 and 2).");
  b.add("parameter_alignment", &C::parameter_alignment,
        "Start each parameter on 16 bytes in the flat buffers (stages 1 and 2).");
  b.add("zero_hpz_partition_size", &C::zero_hpz_partition_size,
        "Ranks that share a secondary copy of the parameters (hpZ, stage 3); above 1 enables.")
      .at_least(0);
  b.add("zero_quantized_weights", &C::zero_quantized_weights,
        "Gather parameters in 8 bits (ZeRO++, stage 3).");
  b.add("zero_quantized_nontrainable_weights", &C::zero_quantized_nontrainable_weights,
        "Keep frozen parameters in 8 bits (stage 3).");
  b.add("zero_quantized_gradients", &C::zero_quantized_gradients,
        "Reduce gradients in 4 bits over an all-to-all (ZeRO++, stage 3).");
  b.add("mics_shard_size", &C::mics_shard_size,
        "Ranks that one full set of shards spans (MiCS, stage 3); -1 is off. DeepSpeed 0.19.8 "
        "refuses it; zero3d offers it.")
      .at_least(-1)
      .own();
  b.add("mics_hierarchical_params_gather", &C::mics_hierarchical_params_gather,
        "Gather a MiCS shard in two hops. DeepSpeed 0.19.8 refuses it; zero3d takes it.")
      .own();
  b.add("memory_efficient_linear", &C::memory_efficient_linear, "A PyTorch matter.");
  b.add("pipeline_loading_checkpoint", &C::pipeline_loading_checkpoint,
        "Ranks of a node read a checkpoint one after the other (stage 3).");
  b.add("override_module_apply", &C::override_module_apply, "A PyTorch matter.");
  b.add("log_trace_cache_warnings", &C::log_trace_cache_warnings,
        "Of DeepSpeed's recorded traces; zero3d plans and has none.");
  b.add("enable_sanity_checks", &C::enable_sanity_checks,
        "Compare what ranks gather and reduce (stage 3).");
  b.add("save_muon_momentum_buffer_in_memory", &C::save_muon_momentum_buffer_in_memory,
        "Keep Muon's momentum off the drive (stage 3 with nvme).");
}

void add_deprecated(SectionBuilder<ZeroConfig>& b) {
  using C = ZeroConfig;
  b.add("cpu_offload", &C::cpu_offload, "Deprecated: offload_optimizer with device cpu.")
      .deprecate();
  b.add("cpu_offload_param", &C::cpu_offload_param, "Deprecated: offload_param with device cpu.")
      .deprecate();
  b.add("cpu_offload_use_pin_memory", &C::cpu_offload_use_pin_memory, "Deprecated, ignored.")
      .deprecate();
  b.add("stage3_gather_fp16_weights_on_model_save", &C::gather_fp16_weights_on_model_save,
        "Deprecated: stage3_gather_16bit_weights_on_model_save.")
      .also("gather_fp16_weights_on_model_save")
      .deprecate();
}

}  // namespace

const Section& zero_section() {
  static const Section section = [] {
    SectionBuilder<ZeroConfig> b("zero_optimization", true);
    add_general(b);
    add_parts(b);
    add_stage3(b);
    add_features(b);
    add_deprecated(b);
    return b.build();
  }();
  return section;
}

}  // namespace zero3d::config
