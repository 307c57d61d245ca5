// The keys of zero_optimization and of its parts leaf_module and zenflow. Sizes are counted in
// elements unless a row says bytes.
#include <algorithm>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/reader.h"

namespace zero3d::config {

namespace {

constexpr std::nullopt_t none = std::nullopt;
/// A list of names, or one name; each once.
void read_names(Reader& r, const Stated& s, JsonValue& out) {
  JsonValue list = JsonValue::make_array();
  if (s.value.is_string()) list.push_back(s.value);
  const Reader::Converted names =
      r.to_texts({s.field, s.path, s.value.is_string() ? list : s.value});
  if (!names) return;
  out = JsonValue::make_array();
  for (const JsonValue& name : names->items()) {
    if (std::find(out.items().begin(), out.items().end(), name) == out.items().end())
      out.push_back(name);
  }
}

constexpr std::array kLeafModuleRows = strictly(
    std::array{texts("classes",
                     "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock|"
                     "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock|"
                     "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
                     "Module classes fetched as one unit; replaces the default list.")
                   .by(read_names),
               texts("names", "", "Module names fetched as one unit.").by(read_names),
               texts("name_suffixes", "", "The same by the end of the name.").by(read_names)});
constexpr Section kLeafModule = {kLeafModuleRows, true};

constexpr std::array kZenFlowRows = strictly(std::array{
    number("topk_ratio", 0.1,
           "Share of each parameter updated on the device at every step: whole blocks of 1,024 "
           "elements, rounded up.")
        .inside(0, 1),
    text("select_strategy", "auto", "What select_interval counts; auto chooses once an epoch.")
        .one_of("auto|step|epoch")
        .or_auto(),
    or_auto(integer("select_interval", none, "Steps or epochs between choices of the blocks."))
        .unquoted(),
    or_auto(
        integer("update_interval", none, "Steps between updates of the other blocks; auto is 4."))
        .at_least(1)
        .unquoted(),
    flag("overlap_step", false,
         "The host's update runs beside the next steps and takes effect an update_interval later."),
    flag("offload", false, "Keep the chosen blocks' states on the host. true is refused.")
        .refuse("", never),
    number("auto_ratio", 0.99, "When an automatic update is due; here auto is a number of steps.")
        .between(0, 1)
        .none(),
    integer("full_warm_up_rounds", 0, "The first steps update everything."),
    number("pt_reserved_cores_perc", 0.5,
           "Share of the cores left to DeepSpeed's training process; here --threads says how many "
           "there are, and the system shares them.")
        .between(0, 1)
        .none(),
    integer("steps_per_epoch", none, "Steps of an epoch; null: counted from the data.")});
constexpr Section kZenFlow = {kZenFlowRows, true};

/// How 0.19.8 reads the stage: an integer from 0 to 3, also as true, 2.0 or "2".
void read_stage(Reader& r, const Stated& s, JsonValue& out) {
  const bool word =
      s.value.is_string() && s.value.as_string().find_first_of("0123") == std::string::npos;
  if (word) {
    r.refuse(
        s, "0, 1, 2 or 3",
        s.value.is_quoteless()
            ? "an unquoted word is read as text; if it is a placeholder of a template, put the "
              "stage in its place"
            : "write the number");
  } else {
    out = r.to_integer(s).value_or(out);
  }
}

/// A key of stage 3, whose prefix may be left out.
constexpr Field stage3(Field field) {
  return field.also(field.name.substr(std::string_view("stage3_").size())).stages(3, 3);
}

constexpr std::array kRows = strictly(std::array{
    integer("stage", 0,
            "0 shards nothing, 1 the optimizer state, 2 gradients too, 3 parameters too.")
        .typed("0, 1, 2 or 3")
        .between(0, 3)
        .by(read_stage),
    flag("contiguous_gradients", true,
         "Copy gradients into a flat bucket as they appear. zero3d always does.")
        .stages(1, 3)
        .none(),
    flag("reduce_scatter", true, "Reduce gradients to their owners; false all-reduces them.")
        .stages(1, 3),
    integer("reduce_bucket_size", 500'000'000, "Elements of a gradient reduction bucket.").above(0),
    flag("use_multi_rank_bucket_allreduce", true,
         "One all-reduce for the buckets of several owners.")
        .stages(1, 2)
        .none(),
    flag("allgather_partitions", true, "Without effect, in DeepSpeed too.").none(),
    integer("allgather_bucket_size", 500'000'000,
            "Elements gathered at a time after the step (stages 1 and 2).")
        .at_least(0)
        .stages(1, 2),
    flag("overlap_comm", none,
         "Overlap communication with computation. null: true at stage 3, else false."),
    flag("compute_grad_norm", true,
         "false skips the gradient norm (stages 1 and 2; gradient_clipping must be 0)."),
    flag("load_from_fp32_weights", true,
         "A checkpoint's master weights are taken from its fp32 copy.")
        .none(),
    flag("elastic_checkpoint", false,
         "DeepSpeed's old way to change dp between runs; zero3d's checkpoints always allow it.")
        .none(),
    nested("offload_param", kOffloadParam, "Keep parameter shards off the device (stage 3).")
        .optional()
        .stages(3, 3),
    nested("offload_optimizer", kOffloadOptimizer,
           "Keep master weights and moments off the device (stages 1 to 3).")
        .optional()
        .stages(1, 3),
    nested("zenflow", kZenFlow,
           "Update a few blocks on the device at every step, the rest on the host once in several "
           "(docs/offload.md); needs offload_optimizer on the CPU.")
        .optional()
        .stages(1, 3),
    nested("leaf_module", kLeafModule,
           "Modules whose parameters are fetched as one unit (stage 3).")
        .or_null()
        .stages(3, 3)
        .none(),
    integer("sub_group_size", 1'000'000'000, "Elements of an optimizer tile (stage 3).")
        .at_least(0)
        .stages(3, 3),
    stage3(integer("stage3_prefetch_bucket_size", 50'000'000,
                   "Elements gathered ahead of their use; 0 gathers nothing ahead.")
               .at_least(0)),
    stage3(integer("stage3_param_persistence_threshold", 100'000,
                   "Parameters up to this many elements stay gathered.")
               .at_least(0)),
    stage3(integer("stage3_model_persistence_threshold", INT64_MAX,
                   "At most this many elements stay gathered.")
               .at_least(0)),
    stage3(integer("stage3_max_live_parameters", 1'000'000'000,
                   "Elements gathered at any time before prefetching pauses.")
               .at_least(0)),
    stage3(integer("stage3_max_reuse_distance", 1'000'000'000,
                   "A parameter used again within this many elements is not released.")
               .at_least(0)),
    stage3(flag("stage3_gather_16bit_weights_on_model_save", false,
                "Gather 16-bit weights when the model is saved.")),
    stage3(integer("stage3_module_granularity_threshold", 0,
                   "Modules finer than this are fetched as one unit; 0 is off.")
               .none()),
    stage3(
        flag("stage3_use_all_reduce_for_fetch_params", false, "Gather parameters by an all-reduce.")
            .none()),
    stage3(flag("stage3_allgather_sequential", false, "Gather one parameter at a time.")),
    flag("ignore_unused_parameters", true, "Bear trainable parameters that got no gradient.")
        .none(),
    flag("legacy_stage1", false, "Gone; true is refused at start.").refuse("", never),
    flag("round_robin_gradients", false, "Deal parameters out to ranks in turn (stages 1 and 2).")
        .stages(1, 2)
        .none(),
    flag("parameter_alignment", false,
         "Start each parameter on 16 bytes in the flat buffers (stages 1 and 2).")
        .stages(1, 2)
        .none(),
    integer("zero_hpz_partition_size", 1,
            "Ranks that share a secondary copy of the parameters (hpZ, stage 3); above 1 enables.")
        .at_least(0)
        .stages(3, 3),
    flag("zero_quantized_weights", false, "Gather parameters in 8 bits (ZeRO++, stage 3).")
        .stages(3, 3)
        .differs("gather parameters in 8 bits"),
    flag("zero_quantized_nontrainable_weights", false,
         "Keep frozen parameters in 8 bits (stage 3).")
        .stages(3, 3)
        .differs("keep frozen parameters in 8 bits"),
    flag("zero_quantized_gradients", false,
         "Reduce gradients in 4 bits over an all-to-all (ZeRO++, stage 3).")
        .stages(3, 3)
        .differs("reduce gradients in 4 bits"),
    integer("mics_shard_size", -1,
            "Ranks that one full set of shards spans (MiCS); -1 is off. DeepSpeed 0.19.8 refuses "
            "it; zero3d offers it, at stages 1 to 3.")
        .at_least(-1)
        .stages(1, 3)
        .own(),
    flag("mics_hierarchical_params_gather", false,
         "Gather a MiCS shard in two hops. DeepSpeed 0.19.8 refuses it; zero3d takes it.")
        .stages(3, 3)
        .own()
        .not_yet("gather a MiCS shard in two hops; it is gathered in one"),
    flag("memory_efficient_linear", true, "A PyTorch matter.").none(),
    flag("pipeline_loading_checkpoint", false,
         "Ranks of a node read a checkpoint one after the other (stage 3).")
        .stages(3, 3)
        .none(),
    flag("override_module_apply", true, "A PyTorch matter.").none(),
    flag("log_trace_cache_warnings", false,
         "Of DeepSpeed's recorded traces; zero3d plans and has none.")
        .none(),
    flag("enable_sanity_checks", false, "Compare what ranks gather and reduce (stage 3).").none(),
    flag("save_muon_momentum_buffer_in_memory", false,
         "Keep Muon's momentum off the drive (stage 3 with nvme).")
        .none(),
    flag("cpu_offload", none, "Deprecated: offload_optimizer with device cpu.").deprecate(),
    flag("cpu_offload_param", none, "Deprecated: offload_param with device cpu.").deprecate(),
    flag("cpu_offload_use_pin_memory", none, "Deprecated, ignored.").deprecate().none(),
    flag("stage3_gather_fp16_weights_on_model_save", false,
         "Deprecated: stage3_gather_16bit_weights_on_model_save.")
        .also("gather_fp16_weights_on_model_save")
        .deprecate()});

}  // namespace

constexpr Section kZero = {kRows, true};

}  // namespace zero3d::config
