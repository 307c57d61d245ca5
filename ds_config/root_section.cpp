// The top level of ds_config: the scalar keys, optimizer, scheduler, and the list of sections.
#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/reader.h"

namespace zero3d::config {

namespace {

constexpr std::nullopt_t none = std::nullopt;
constexpr std::string_view kDtypes = "\"fp16\", \"bf16\" or \"fp32\"";

/// optimizer and scheduler: a type and free parameters. Keys beside these are ignored by DeepSpeed.
void read_typed(Reader& r, const Stated& s, JsonValue& out) {
  if (!s.value.is_object()) {
    r.error(s.path,
            concat("expected an object { \"type\": ..., \"params\": { ... } }, found ",
                   s.value.excerpt(), "; remove the key to have none"),
            s.value.position());
    return;
  }
  const bool optimizer = s.field.name == "optimizer";
  out = JsonValue::make_object();
  out.set("type", JsonValue());
  out.set("params", JsonValue::make_object());
  if (optimizer) out.set("legacy_fusion", JsonValue(false));
  for (const auto& [name, name_position, stated] : s.value.members()) {
    const std::string inner = join_path(s.path, name);
    const auto refuse = [&, &stated = stated](std::string_view expected) {
      // DeepSpeed looks at a schedule only when it builds it.
      (r.*(optimizer ? &Reader::error : &Reader::train_error))(
          inner, concat("expected ", expected, ", found ", stated.excerpt()), stated.position());
    };
    if (name == "type" && stated.is_string()) {
      out.set("type", stated);
      r.record(inner, inner, stated.position());
    } else if (name == "type" && !stated.is_null()) {
      refuse(optimizer ? "a name such as \"AdamW\"" : "a name such as \"WarmupLR\"");
    } else if (name == "params" && stated.is_object()) {
      out.set("params", stated);
      for (const JsonMember& param : stated.members()) {
        const std::string leaf = join_path(inner, param.name);
        r.record(leaf, leaf, param.value.position());
      }
    } else if (name == "params" && !stated.is_null()) {
      refuse("an object { ... } of parameters");
    } else if (optimizer && name == "legacy_fusion") {
      if (stated.is_bool()) out.set("legacy_fusion", stated);
    } else if (name != "type" && name != "params") {
      r.warning(inner,
                concat("only \"type\"",
                       optimizer ? ", \"params\" and \"legacy_fusion\"" : " and \"params\"",
                       " mean something here; it is ignored"),
                name_position);
    }
  }
}

/// On unless false or absent.
void read_datastates(Reader&, const Stated& s, JsonValue& out) {
  out = s.value.is_null() ? JsonValue::make_object() : s.value;
}

void read_zero(Reader& r, const Stated& s, JsonValue& out) {
  if (!s.value.is_bool()) {
    r.read_section(kZero, s.value, out, s.path);
    return;
  }
  // The form of DeepSpeed's first releases.
  const int stage = s.value.as_bool() ? 1 : 0;
  out.set("stage", JsonValue(stage));
  r.record("zero_optimization.stage", s.path, s.value.position());
  r.warning(s.path, concat("the form true / false is deprecated; write { \"stage\": ", stage, " }"),
            s.value.position());
}

/// Anything falsy switches the section off.
void read_experts(Reader& r, const Stated& s, JsonValue& out) {
  if (!is_falsy(s.value)) r.read_section(kExpertParallel, s.value, out, s.path);
}

void read_timers(Reader& r, const Stated& s, JsonValue& out) {
  if (s.value.is_string() || s.value.is_array()) {
    r.warning(s.path, "expected an object { ... }; it is ignored", s.value.position());
  } else {
    r.read_section(kTimers, s.value, out, s.path);
  }
}

/// A number of the batch triple: null is "not given"; the arithmetic fills it in.
constexpr Field batch(std::string_view name, std::string_view effect) {
  return integer(name, 0, effect).typed("int > 0").above(0).check().or_null().or_auto().unquoted();
}

constexpr std::array kRows = {
    batch("train_batch_size", "Samples of one optimizer step: micro-batch x accumulation x dp."),
    batch("train_micro_batch_size_per_gpu", "Samples a rank computes at a time."),
    batch("gradient_accumulation_steps", "Micro-batches added up before a step."),
    number("gradient_clipping", 1.0, "Largest global L2 norm of the gradients; 0 or less is off."),
    flag("prescale_gradients", false,
         "Divide gradients by dp before the reduction instead of after."),
    number("gradient_predivide_factor", 1.0, "The part of that division done before."),
    text("gradient_allreduce_op", "mean", "Average or add the gradients of the replicas.")
        .any_case_of("mean|sum")
        .check(),
    text("communication_data_type", none,
         "Dtype of gradient reductions. null: that of accumulation (DeepSpeed: the model's).")
        .any_case_of("bf16|fp16|fp32")
        .typed(kDtypes)
        .check()
        .only("with an sp degree above 1 seq_parallel_communication_data_type takes its place",
              [](const Config& c) { return c.degrees.sp == 1; }),
    text("seq_parallel_communication_data_type", "fp32",
         "The same where ranks share sequences (sequence_parallel_size).")
        .any_case_of("bf16|fp16|fp32")
        .typed(kDtypes)
        .or_null()
        .check()
        .only("only with an sp degree above 1", [](const Config& c) { return c.degrees.sp > 1; }),
    flag("managed_gradient_accumulation", true, "false: every step() applies an update.")
        .differs("leave the boundary of a step to the caller",
                 [](const Config& c) { return !c.flag("managed_gradient_accumulation"); }),
    flag("zero_allow_untested_optimizer", false,
         "Allow optimizers that DeepSpeed has not tested with ZeRO."),
    flag("zero_force_ds_cpu_optimizer", true, "Of optimizers passed in from Python.").none(),
    integer("steps_per_print", none, "Steps between progress lines; null prints none.").above(0),
    bit("wall_clock_breakdown", false, "Time forward, backward and step.")
        .check()
        .not_yet("time forward, backward and step"),
    flag("memory_breakdown", false, "Print the memory in use.").not_yet("print the memory in use"),
    flag("dump_state", false, "Print the engine's settings at start.")
        .not_yet("print the engine's settings at start"),
    text("log_level", none, "Least severe lines to log.")
        .any_case_of("debug|info|warning|error|critical")
        .none(),
    any("optimizer",
        "The optimizer: \"type\" and \"params\"; see the list of types below. Names that DeepSpeed "
        "knows match in any case.")
        .typed("object")
        .not_null()
        .check()
        .by(read_typed),
    any("scheduler",
        "The learning-rate schedule: \"type\" (exact) and \"params\"; see the list of types below.")
        .typed("object")
        .not_null()
        .check()
        .by(read_typed),
    nested("fp16", kFp16, "Training in fp16."),
    nested("bf16", kBf16, "Training in bf16."),
    nested("torch_autocast", kTorchAutocast, "PyTorch's automatic casts.")
        .differs("keep fp32 weights and multiply in 16 bits"),
    nested("data_types", kDataTypes, "Dtypes of what is accumulated."),
    nested("zero_optimization", kZero, "What is sharded over the data-parallel ranks, and how.")
        .by(read_zero),
    nested("aio", kAio, "Requests to the drive.")
        .or_null()
        .only("only with device nvme", [](const Config& c) { return c.uses_drives(); }),
    nested("activation_checkpointing", kActivationCheckpointing,
           "What is kept of the forward pass; the rest is computed again before backward."),
    nested("pipeline", kPipeline, "Pipeline parallelism."),
    nested("tensor_parallel", kTensorParallel, "Tensor parallelism."),
    nested("expert_parallel", kExpertParallel, "Expert parallelism.")
        .or_null()
        .differs("deal the experts of mixture layers to ranks")
        .by(read_experts),
    nested("tensorboard", kTensorboard, "TensorBoard event files.")
        .auto_means_default()
        .not_yet("write TensorBoard event files"),
    nested("csv_monitor", kCsvMonitor, "CSV files of scalars.")
        .auto_means_default()
        .not_yet("write CSV files of scalars"),
    nested("wandb", kWandb, "Weights & Biases.")
        .auto_means_default()
        .not_yet("send scalars to Weights & Biases"),
    nested("comet", kComet, "Comet.").auto_means_default().not_yet("send scalars to Comet"),
    nested("comms_logger", kCommsLogger, "Log of collectives.").not_yet("log every collective"),
    nested("flops_profiler", kFlopsProfiler, "Profile of a step.").not_yet("profile one step"),
    nested("timers", kTimers, "Timers.").none().by(read_timers),
    nested("autotuning", kAutotuning, "Search of fast settings.")
        .differs("search for fast settings instead of training"),
    nested("checkpoint", kCheckpoint, "Saving and loading."),
    nested("data_efficiency", kDataEfficiency, "Choice of samples and tokens.")
        .differs("choose samples or tokens by a schedule",
                 [](const Config& c) {
                   return c.flag("data_efficiency.enabled") &&
                          (c.flag("data_efficiency.data_sampling.enabled") ||
                           c.flag("data_efficiency.data_routing.enabled"));
                 }),
    nested("hybrid_engine", kHybridEngine, "Training and generation in turn.")
        .differs("train and generate in turn"),
    nested("compile", kCompile, "DeepCompile.")
        .not_yet("rewrite the traced model; it runs as written",
                 [](const Config& c) {
                   return c.flag("compile.deepcompile") || c.flag("compile.autoep_non_moe");
                 }),
    nested("weight_quantization", kWeightQuantization, "Weights quantized as they are made.")
        .differs("quantize weights as they are made",
                 [](const Config& c) {
                   const char* initial = "weight_quantization.quantized_initialization";
                   return c.flag("weight_quantization.enabled") && !c.at(initial).members().empty();
                 }),
    integer("vocabulary_size", none, "Warns when it is no multiple of 8.")
        .check()
        .or_auto()
        .unquoted()
        .none(),
    flag("dataloader_drop_last", false, "Drop the last, smaller batch.").none(),
    flag("use_data_before_expert_parallelism", false, "Order of the data and expert axes.").none(),
    flag("disable_python_gc", false, "A Python matter.").none(),
    flag("disable_allgather", false, "Without effect, in DeepSpeed too.").none(),
    integer("allgather_size", 500'000'000,
            "allgather_bucket_size of the old form \"zero_optimization\": true."),
    integer(
        "sequence_parallel_size", none,
        "Ranks that share every sequence, each with its part of the tokens, by all-to-all around "
        "attention: the sp degree. They divide the attention heads. Not zero3d.sequence_parallel, "
        "which tensor-parallel ranks have among themselves.")
        .above(0)
        .check(),
    integer("data_parallel_size", none,
            "With sequence_parallel_size: replicas of such groups; held to what the ranks leave.")
        .above(0)
        .none(),
    flag("datastates_ckpt", false, "The DataStates checkpoint engine; on unless false or absent.")
        .typed("any")
        .or_null()
        .or_auto()
        .not_yet("write checkpoints through DataStates",
                 [](const Config& c) { return !(c.at("datastates_ckpt") == JsonValue(false)); })
        .by(read_datastates),
    nested("zero3d", kOwn, "What DeepSpeed has no key for, and so ignores.")
        .own()
        .or_null()
        .unread()};

}  // namespace

constexpr Section kRoot = {kRows};

}  // namespace zero3d::config
