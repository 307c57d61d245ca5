// Description of the top level of ds_config: the scalar keys, optimizer, scheduler, and the list of
// sections.
#include "zero3d/core/text.h"
#include "zero3d/ds_config/config.h"
#include "zero3d/ds_config/field.h"

namespace zero3d::config {

namespace {

/// optimizer and scheduler: a type and free parameters. Keys beside these are ignored by DeepSpeed.
template <typename T>
void read_typed(Reader& r, const std::string& path, const JsonValue& value, std::optional<T>& out) {
  if (!value.is_object()) {
    r.error(path,
            concat("expected an object { \"type\": ..., \"params\": { ... } }, found ",
                   value.excerpt(), "; remove the key to have none"),
            value.position());
    return;
  }
  T& target = out.emplace();
  for (const JsonMember& member : value.members()) {
    const std::string inner = join_path(path, member.name);
    if (member.name == "type") {
      if (member.value.is_null()) continue;
      if (!member.value.is_string()) {
        // DeepSpeed looks at a schedule only when it builds it.
        const auto report = path == "optimizer" ? &Reader::error : &Reader::train_error;
        (r.*report)(inner,
                    concat("expected a name such as \"", path == "optimizer" ? "AdamW" : "WarmupLR",
                           "\", found ", member.value.excerpt()),
                    member.value.position());
        continue;
      }
      target.type = member.value.as_string();
      r.record(inner, inner, member.value.position());
    } else if (member.name == "params") {
      if (!member.value.is_object() && !member.value.is_null()) {
        const auto report = path == "optimizer" ? &Reader::error : &Reader::train_error;
        (r.*report)(
            inner,
            concat("expected an object { ... } of parameters, found ", member.value.excerpt()),
            member.value.position());
        continue;
      }
      target.params = ConfigParams(inner, member.value);
      for (const JsonMember& param : member.value.members()) {
        const std::string name = join_path(inner, param.name);
        r.record(name, name, param.value.position());
      }
    } else if constexpr (std::is_same_v<T, OptimizerConfig>) {
      if (member.name == "legacy_fusion") {
        if (member.value.is_bool()) target.legacy_fusion = member.value.as_bool();
        continue;
      }
      r.warning(inner,
                "only \"type\", \"params\" and \"legacy_fusion\" mean something here; it is "
                "ignored",
                member.name_position);
    } else {
      r.warning(inner, "only \"type\" and \"params\" mean something here; it is ignored",
                member.name_position);
    }
  }
}

JsonValue write_type(const std::optional<std::string>& type) {
  return type ? JsonValue(*type) : JsonValue();
}

void add_typed(SectionBuilder<Config>& b) {
  b.custom(
       "optimizer", "object",
       "The optimizer: \"type\" and \"params\"; see the list of types below. Names that DeepSpeed "
       "knows match in any case.",
       [](Reader& r, const Field&, const std::string& path, const JsonValue& value, Config& out) {
         read_typed(r, path, value, out.optimizer);
       },
       [](const Config& in) {
         if (!in.optimizer) return JsonValue();
         JsonValue object = JsonValue::make_object();
         object.set("type", write_type(in.optimizer->type));
         object.set("params", in.optimizer->params.json().is_object() ? in.optimizer->params.json()
                                                                      : JsonValue::make_object());
         object.set("legacy_fusion", JsonValue(in.optimizer->legacy_fusion));
         return object;
       })
      .check();
  b.custom(
       "scheduler", "object",
       "The learning-rate schedule: \"type\" (exact) and \"params\"; see the list of types below.",
       [](Reader& r, const Field&, const std::string& path, const JsonValue& value, Config& out) {
         read_typed(r, path, value, out.scheduler);
       },
       [](const Config& in) {
         if (!in.scheduler) return JsonValue();
         JsonValue object = JsonValue::make_object();
         object.set("type", write_type(in.scheduler->type));
         object.set("params", in.scheduler->params.json().is_object() ? in.scheduler->params.json()
                                                                      : JsonValue::make_object());
         return object;
       })
      .check();
}

/// A number of the batch triple: any integral number; null is "not given".
void add_batch(SectionBuilder<Config>& b, const char* name, std::int64_t Config::*member,
               const char* effect) {
  b.custom(
       name, "int > 0", effect,
       [member](Reader& r, const Field& f, const std::string& path, const JsonValue& value,
                Config& out) {
         if (value.is_null()) return;
         if (value.is_string()) {
           r.refuse(f, path, value, "an integer > 0",
                    value.is_quoteless() ? "" : "write the number without quotes");
         } else if (const auto read = r.to_integer(f, path, value)) {
           out.*member = *read;
         }
       },
       [member](const Config& in) { return JsonValue(in.*member); })
      .check()
      .or_null()
      .or_auto();
}

void add_training(SectionBuilder<Config>& b) {
  add_batch(b, "train_batch_size", &Config::train_batch_size,
            "Samples of one optimizer step: micro-batch x accumulation x dp.");
  add_batch(b, "train_micro_batch_size_per_gpu", &Config::train_micro_batch_size_per_gpu,
            "Samples a rank computes at a time.");
  add_batch(b, "gradient_accumulation_steps", &Config::gradient_accumulation_steps,
            "Micro-batches added up before a step.");
  b.add("gradient_clipping", &Config::gradient_clipping,
        "Largest global L2 norm of the gradients; 0 or less is off.");
  b.add("prescale_gradients", &Config::prescale_gradients,
        "Divide gradients by dp before the reduction instead of after.");
  b.add("gradient_predivide_factor", &Config::gradient_predivide_factor,
        "The part of that division done before.");
  b.add("gradient_allreduce_op", &Config::gradient_allreduce_op,
        "Average or add the gradients of the replicas.")
      .any_case_of({"mean", "sum"})
      .check();
  b.add("communication_data_type", &Config::communication_data_type,
        "Dtype of gradient reductions. null: that of accumulation (DeepSpeed: the model's).")
      .check();
  b.add("seq_parallel_communication_data_type", &Config::seq_parallel_communication_data_type,
        "The same with sequence parallelism.")
      .or_null()
      .check();
  b.add("managed_gradient_accumulation", &Config::managed_gradient_accumulation,
        "false: every step() applies an update.");
  b.add("zero_allow_untested_optimizer", &Config::zero_allow_untested_optimizer,
        "Allow optimizers that DeepSpeed has not tested with ZeRO.");
  b.add("zero_force_ds_cpu_optimizer", &Config::zero_force_ds_cpu_optimizer,
        "Of optimizers passed in from Python.");
}

void add_observation(SectionBuilder<Config>& b) {
  b.add("steps_per_print", &Config::steps_per_print,
        "Steps between progress lines; null prints none.")
      .above(0);
  b.custom(
       "wall_clock_breakdown", "bool", "Time forward, backward and step.",
       [](Reader& r, const Field& f, const std::string& path, const JsonValue& value, Config& out) {
         read_bit(r, f, path, value, out.wall_clock_breakdown);
       },
       [](const Config& in) { return JsonValue(in.wall_clock_breakdown); })
      .check();
  b.add("memory_breakdown", &Config::memory_breakdown, "Print the memory in use.");
  b.add("dump_state", &Config::dump_state, "Print the engine's settings at start.");
  b.add("log_level", &Config::log_level, "Least severe lines to log.")
      .any_case_of({"debug", "info", "warning", "error", "critical"});
}

void add_odd(SectionBuilder<Config>& b) {
  b.custom(
       "vocabulary_size", "int or null", "Warns when it is no multiple of 8.",
       [](Reader& r, const Field& f, const std::string& path, const JsonValue& value, Config& out) {
         if (value.is_null()) return;
         if (value.is_string()) {
           r.refuse(f, path, value, "an integer", "write the number without quotes");
         } else if (const auto read = r.to_integer(f, path, value)) {
           out.vocabulary_size = *read;
         }
       },
       [](const Config& in) {
         return in.vocabulary_size ? JsonValue(*in.vocabulary_size) : JsonValue();
       })
      .check()
      .or_auto();
  b.add("dataloader_drop_last", &Config::dataloader_drop_last, "Drop the last, smaller batch.");
  b.add("use_data_before_expert_parallelism", &Config::use_data_before_expert_parallelism,
        "Order of the data and expert axes.");
  b.add("disable_python_gc", &Config::disable_python_gc, "A Python matter.");
  b.add("disable_allgather", &Config::disable_allgather, "Without effect, in DeepSpeed too.");
  b.add("allgather_size", &Config::allgather_size,
        "allgather_bucket_size of the old form \"zero_optimization\": true.");
  b.add("sequence_parallel_size", &Config::sequence_parallel_size,
        "Ranks that share a sequence: the sp degree.")
      .above(0)
      .check();
  b.add("data_parallel_size", &Config::data_parallel_size,
        "With sequence_parallel_size: replicas of such groups.")
      .above(0);
  b.custom(
       "datastates_ckpt", "any", "The DataStates checkpoint engine; on unless false or absent.",
       [](Reader&, const Field&, const std::string&, const JsonValue& value, Config& out) {
         out.datastates_ckpt = value.is_null() ? JsonValue::make_object() : value;
       },
       [](const Config& in) { return in.datastates_ckpt; })
      .or_null()
      .or_auto();
}

void read_zero(Reader& r, const Field&, const std::string& path, const JsonValue& value,
               Config& out) {
  if (!value.is_bool()) {
    r.read_section(zero_section(), value, &out.zero_optimization, path);
    return;
  }
  // The form of DeepSpeed's first releases.
  out.zero_optimization.stage = value.as_bool() ? 1 : 0;
  r.record("zero_optimization.stage", path, value.position());
  r.warning(path,
            concat("the form true / false is deprecated; write { \"stage\": ",
                   out.zero_optimization.stage, " }"),
            value.position());
}

void add_sections(SectionBuilder<Config>& b) {
  b.nest("fp16", &Config::fp16, fp16_section(), "Training in fp16.");
  b.nest("bf16", &Config::bf16, bf16_section(), "Training in bf16.");
  b.nest("torch_autocast", &Config::torch_autocast, torch_autocast_section(),
         "PyTorch's automatic casts.");
  b.nest("data_types", &Config::data_types, data_types_section(), "Dtypes of what is accumulated.");
  Field& zero = b.nest("zero_optimization", &Config::zero_optimization, zero_section(),
                       "What is sharded over the data-parallel ranks, and how.");
  zero.read = [](Reader& r, const Field& f, const std::string& path, const JsonValue& value,
                 void* object) { read_zero(r, f, path, value, *static_cast<Config*>(object)); };
  b.nest("aio", &Config::aio, aio_section(), "Requests to the drive.").or_null();
  b.nest("activation_checkpointing", &Config::activation_checkpointing,
         activation_checkpointing_section(), "What is kept of the forward pass.");
  b.nest("pipeline", &Config::pipeline, pipeline_section(), "Pipeline parallelism.");
  b.nest("tensor_parallel", &Config::tensor_parallel, tensor_parallel_section(),
         "Tensor parallelism.");
  Field& experts = b.nest("expert_parallel", &Config::expert_parallel, expert_parallel_section(),
                          "Expert parallelism.");
  experts.nullable = true;
  experts.read = [](Reader& r, const Field&, const std::string& path, const JsonValue& value,
                    void* object) {
    // Anything falsy switches the section off.
    const bool off = value == JsonValue(false) || value == JsonValue(0) || value.is_null() ||
                     (value.is_array() && value.items().empty()) ||
                     (value.is_string() && value.as_string().empty());
    if (!off) {
      r.read_section(expert_parallel_section(), value,
                     &static_cast<Config*>(object)->expert_parallel, path);
    }
  };
  b.nest("tensorboard", &Config::tensorboard, tensorboard_section(), "TensorBoard event files.")
      .auto_means_default();
  b.nest("csv_monitor", &Config::csv_monitor, csv_monitor_section(), "CSV files of scalars.")
      .auto_means_default();
  b.nest("wandb", &Config::wandb, wandb_section(), "Weights & Biases.").auto_means_default();
  b.nest("comet", &Config::comet, comet_section(), "Comet.").auto_means_default();
  b.nest("comms_logger", &Config::comms_logger, comms_logger_section(), "Log of collectives.");
  b.nest("flops_profiler", &Config::flops_profiler, flops_profiler_section(), "Profile of a step.");
  Field& timers = b.nest("timers", &Config::timers, timers_section(), "Timers.");
  timers.read = [](Reader& r, const Field&, const std::string& path, const JsonValue& value,
                   void* object) {
    if (value.is_string() || value.is_array()) {
      r.warning(path, "expected an object { ... }; it is ignored", value.position());
    } else {
      r.read_section(timers_section(), value, &static_cast<Config*>(object)->timers, path);
    }
  };
  b.nest("autotuning", &Config::autotuning, autotuning_section(), "Search of fast settings.");
  b.nest("checkpoint", &Config::checkpoint, checkpoint_section(), "Saving and loading.");
  b.nest("data_efficiency", &Config::data_efficiency, data_efficiency_section(),
         "Choice of samples and tokens.");
  b.nest("hybrid_engine", &Config::hybrid_engine, hybrid_engine_section(),
         "Training and generation in turn.");
  b.nest("compile", &Config::compile, compile_section(), "DeepCompile.");
  b.nest("weight_quantization", &Config::weight_quantization, weight_quantization_section(),
         "Weights quantized as they are made.");
}

}  // namespace

const Section& root_section() {
  static const Section section = [] {
    SectionBuilder<Config> b("", false);
    add_training(b);
    add_observation(b);
    add_typed(b);
    add_sections(b);
    add_odd(b);
    return b.build();
  }();
  return section;
}

}  // namespace zero3d::config
