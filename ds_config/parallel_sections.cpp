// Descriptions of activation_checkpointing, pipeline, tensor_parallel and expert_parallel.
#include "zero3d/ds_config/parallel_sections.h"

#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"

namespace zero3d::config {

const Section& activation_checkpointing_section() {
  static const Section section = [] {
    using C = ActivationCheckpointingConfig;
    SectionBuilder<C> b("activation_checkpointing", false);
    b.add("partition_activations", &C::partition_activations,
          "Split saved activations over the tensor-parallel ranks.");
    b.add("number_checkpoints", &C::number_checkpoints, "Checkpoints a forward pass makes.");
    b.add("contiguous_memory_optimization", &C::contiguous_memory_optimization,
          "Saved activations in one buffer; needs partition_activations and number_checkpoints.");
    b.add("cpu_checkpointing", &C::cpu_checkpointing, "Saved activations in host memory.");
    b.add("synchronize_checkpoint_boundary", &C::synchronize_checkpoint_boundary,
          "Wait for the device at each checkpoint.");
    b.add("profile", &C::profile, "Time the forward and backward of each checkpoint.");
    return b.build();
  }();
  return section;
}

const Section& pipeline_section() {
  static const Section section = [] {
    using C = PipelineConfig;
    SectionBuilder<C> b("pipeline", false);
    b.custom(
         "stages", "int or \"auto\"",
         "Pipeline stages: the pp degree, which --pp overrides. \"auto\": one. (DeepSpeed takes it "
         "from its PipelineModule.)",
         [](Reader& r, const Field& f, const std::string& path, const JsonValue& value, C& out) {
           if (value.is_auto()) return;
           if (const auto read = r.to_integer(f, path, value)) out.stages = *read;
         },
         [](const C& in) { return in.stages ? JsonValue(*in.stages) : JsonValue("auto"); })
        .at_least(1)
        .or_auto();
    b.add("partition", &C::partition, "How layers are dealt to stages. Unused by DeepSpeed.");
    b.add("seed_layers", &C::seed_layers, "Unused by DeepSpeed.");
    b.add("activation_checkpoint_interval", &C::activation_checkpoint_interval,
          "Layers between activation checkpoints; 0 is off.")
        .at_least(0);
    b.add("pipe_partitioned", &C::pipe_partitioned,
          "Split activations between stages over the tensor-parallel ranks.");
    b.add("grad_partitioned", &C::grad_partitioned,
          "Split activation gradients between stages over the tensor-parallel ranks.");
    b.add("use_reentrant", &C::use_reentrant, "A PyTorch matter.");
    return b.build();
  }();
  return section;
}

namespace {

const Section& tensor_parallel_inner_section() {
  static const Section section = [] {
    using C = TensorParallelInnerConfig;
    SectionBuilder<C> b("tensor_parallel.tensor_parallel", true);
    b.add("tp_size", &C::tp_size, "1, or the same as autotp_size.");
    b.add("tp_grain_size", &C::tp_grain_size, "Shards are multiples of this many elements.");
    b.add("mpu", &C::mpu, "Only from Python.").or_null();
    b.add("tp_group", &C::tp_group, "Only from Python.").or_null();
    return b.build();
  }();
  return section;
}

const Section& layer_spec_section() {
  static const Section section = [] {
    using C = TensorParallelLayerSpec;
    SectionBuilder<C> b("tensor_parallel.partition_config.layer_specs", false);
    b.add("patterns", &C::patterns, "Regular expressions of parameter names.");
    b.add("partition_type", &C::partition_type, "How the layer is cut.")
        .one_of({"column", "row", "skip"});
    b.add("shape", &C::shape, "View the weight in this shape before the cut.").or_null();
    b.add("partition_dim", &C::partition_dim, "The dim to cut; by default 0 column, 1 row.");
    b.add("model_types", &C::model_types, "Only for these models.").or_null();
    b.add("gather_output", &C::gather_output, "Gather the layer's output.");
    b.add("grad_allreduce", &C::grad_allreduce, "All-reduce the gradient of its input.");
    return b.build();
  }();
  return section;
}

const Section& partition_config_section() {
  static const Section section = [] {
    using C = TensorParallelPartitionConfig;
    SectionBuilder<C> b("tensor_parallel.partition_config", false);
    b.add("use_default_specs", &C::use_default_specs, "Add to the built-in rules.");
    b.add("strict_mode", &C::strict_mode, "A layer no rule matches is an error.");
    b.add("embedding_partition_dim", &C::embedding_partition_dim, "The dim embeddings are cut in.");
    b.add("lm_head_patterns", &C::lm_head_patterns, "Names of output heads.");
    b.add("tp_size", &C::tp_size, "Ranks a layer is split over.");
    b.custom(
        "layer_specs", "list of objects", "Rules for single layers.",
        [](Reader& r, const Field& f, const std::string& path, const JsonValue& value, C& out) {
          if (!value.is_array()) {
            r.refuse(f, path, value, "a list of objects");
            return;
          }
          for (std::size_t i = 0; i < value.items().size(); ++i) {
            r.read_section(layer_spec_section(), value.items()[i], &out.layer_specs.emplace_back(),
                           concat(path, "[", i, "]"));
          }
        },
        [](const C& in) {
          JsonValue list = JsonValue::make_array();
          for (const auto& spec : in.layer_specs) list.push_back(layer_spec_section().write(&spec));
          return list;
        });
    return b.build();
  }();
  return section;
}

}  // namespace

const Section& tensor_parallel_section() {
  static const Section section = [] {
    using C = TensorParallelConfig;
    SectionBuilder<C> b("tensor_parallel", true);
    b.custom(
         "autotp_size", "int",
         "Ranks a layer is split over: the tp degree, which --tp overrides. 0 and 1 are off.",
         [](Reader& r, const Field& f, const std::string& path, const JsonValue& value, C& out) {
           if (value.is_string()) {
             r.refuse(f, path, value, "an integer", "write the number without quotes");
           } else if (const auto read = r.to_integer(f, path, value)) {
             out.autotp_size = *read;
           }
         },
         [](const C& in) { return JsonValue(in.autotp_size); })
        .at_least(0)
        .or_auto();
    b.add("tp_overlap_comm", &C::tp_overlap_comm, "Overlap the all-reduces.");
    b.add("vocab_parallel_lm_head", &C::vocab_parallel_lm_head,
          "Split the output head by vocabulary, with a distributed loss.");
    b.add("vocab_parallel_ce_backend", &C::vocab_parallel_ce_backend, "Who computes that loss.")
        .one_of({"torch", "liger"});
    b.nest("tensor_parallel", &C::tensor_parallel, tensor_parallel_inner_section(),
           "Older form of the degree.")
        .also("tp");
    b.nest("partition_config", &C::partition_config, partition_config_section(),
           "Rules for how layers are cut.");
    b.add("preset_model", &C::preset_model, "Rules of a known model family.");
    b.custom(
        "dtype", "only from Python", "A torch dtype cannot be written in a file; remove it.",
        [](Reader& r, const Field& f, const std::string& path, const JsonValue& value, C&) {
          r.refuse(f, path, value, "no value: a torch dtype cannot be written in a file",
                   "remove the key; the fp16 and bf16 sections decide");
        },
        [](const C&) { return JsonValue(); });
    b.custom(
         "injection_policy_tuple", "list or null", "Of inference.",
         [](Reader& r, const Field& f, const std::string& path, const JsonValue& value, C& out) {
           if (value.is_array() || value.is_null()) {
             out.injection_policy_tuple = value;
           } else {
             r.refuse(f, path, value, "a list");
           }
         },
         [](const C& in) { return in.injection_policy_tuple; })
        .or_null();
    b.add("keep_module_on_host", &C::keep_module_on_host, "Load shards from host memory.");
    b.add("replace_with_kernel_inject", &C::replace_with_kernel_inject, "Of inference.")
        .also("kernel_inject");
    Section built = b.build();
    for (Field& field : built.fields) {
      if (field.name == "dtype") field.hidden = true;
    }
    return built;
  }();
  return section;
}

namespace {

void add_expert_routing(SectionBuilder<ExpertParallelConfig>& b) {
  using C = ExpertParallelConfig;
  b.add("preset_model", &C::preset_model, "Rules of a known model family.");
  b.add("moe_layer_pattern", &C::moe_layer_pattern, "Names of mixture layers.");
  b.add("expert_pattern", &C::expert_pattern, "Names of experts.");
  b.add("router_pattern", &C::router_pattern, "Names of routers.");
  b.add("use_grouped_mm", &C::use_grouped_mm, "One grouped matrix product for all experts.");
  b.add("disable_triton_grouped_mm", &C::disable_triton_grouped_mm, "Not by Triton.");
  b.add("route_norm", &C::route_norm, "Normalise the routing weights.");
  b.add("route_scale", &C::route_scale, "Factor of the routing weights.");
  b.add("score_apply", &C::score_apply, "Where routing weights are applied.")
      .one_of({"auto", "pre", "post"})
      .or_auto();
  b.add("combine_impl", &C::combine_impl, "How expert outputs are combined.")
      .one_of({"auto", "weighted_sum", "fused_weighted_sum", "legacy_bmm"})
      .or_auto();
  b.add("row_weighting_impl", &C::row_weighting_impl, "How rows are weighted.")
      .one_of({"auto", "eager", "fused"})
      .or_auto();
  b.add("gate_up_impl", &C::gate_up_impl, "Gate and up projections apart or as one.")
      .one_of({"separate", "fused"});
  b.add("score_func", &C::score_func, "Routing function.")
      .one_of({"auto", "softmax", "sigmoid"})
      .or_auto();
  b.custom(
       "load_balance_coeff", "null", "Must be null or absent.",
       [](Reader& r, const Field& f, const std::string& path, const JsonValue& value, C&) {
         if (!value.is_null()) r.refuse(f, path, value, "null", "remove the key");
       },
       [](const C&) { return JsonValue(); })
      .or_null()
      .check()
      .or_auto();
}

/// A number or "auto" (absent in the struct).
template <typename T>
void add_or_auto(SectionBuilder<ExpertParallelConfig>& b, const char* name, const char* type,
                 std::optional<T> ExpertParallelConfig::*member, const char* effect) {
  b.custom(
       name, type, effect,
       [member](Reader& r, const Field& f, const std::string& path, const JsonValue& value,
                ExpertParallelConfig& out) {
         if (value.is_auto()) return;
         T read{};
         read_value(r, f, path, value, read);
         out.*member = read;
       },
       [member](const ExpertParallelConfig& in) {
         return in.*member ? write_value(*(in.*member)) : JsonValue("auto");
       })
      .or_auto();
}

void add_expert_structure(SectionBuilder<ExpertParallelConfig>& b) {
  using C = ExpertParallelConfig;
  b.add("comm_backend", &C::comm_backend, "Who moves tokens.").one_of({"comm", "deepep"});
  b.add("comm_num_sm", &C::comm_num_sm, "Multiprocessors for communication.").at_least(1);
  b.add("comm_qp_margin", &C::comm_qp_margin, "Queue pairs in reserve.").at_least(0);
  b.add("comm_max_tokens_per_rank", &C::comm_max_tokens_per_rank, "Token limit of deepep.")
      .at_least(0);
  b.add("num_expert_groups", &C::num_expert_groups, "Groups of experts.");
  b.add("num_limited_groups", &C::num_limited_groups, "Groups a token may reach.");
  add_or_auto(b, "top_k", "int or \"auto\"", &C::top_k, "Experts a token goes to.");
  add_or_auto(b, "routed_scaling_factor", "float or \"auto\"", &C::routed_scaling_factor,
              "Factor of the routed part.");
  b.add("expert_w1", &C::expert_w1, "Name of the gate weight.");
  b.add("expert_w2", &C::expert_w2, "Name of the down weight.");
  b.add("expert_w3", &C::expert_w3, "Name of the up weight.");
  b.add("num_experts_attr", &C::num_experts_attr, "Attribute with the number of experts.");
  b.add("top_k_attr", &C::top_k_attr, "Attribute with the experts a token goes to.");
  b.add("has_shared_experts", &C::has_shared_experts, "There are shared experts.");
  b.add("shared_experts_pattern", &C::shared_experts_pattern, "Their names.");
  b.add("shared_experts_gate_pattern", &C::shared_experts_gate_pattern, "Their gate's name.");
  b.add("expert_activation", &C::expert_activation, "Activation of an expert.")
      .one_of({"swiglu", "geglu_tanh", "swiglu_clamped", "swiglu_oai"});
}

}  // namespace

const Section& expert_parallel_section() {
  static const Section section = [] {
    using C = ExpertParallelConfig;
    SectionBuilder<C> b("expert_parallel", false);
    b.add("enabled", &C::enabled, "Deal the experts of mixture layers out to ranks.");
    b.add("autoep_size", &C::autoep_size, "Ranks the experts of a layer are dealt to.").at_least(1);
    b.add("expert_tensor_parallel_size", &C::expert_tensor_parallel_size, "Only 1.").between(1, 1);
    b.add("validate_folding_routing", &C::validate_folding_routing, "Check the token routing.");
    b.add("async_split_plan", &C::async_split_plan, "Plan the exchange beside the computation.");
    add_expert_routing(b);
    add_expert_structure(b);
    return b.build();
  }();
  return section;
}

}  // namespace zero3d::config
