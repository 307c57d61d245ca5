// Descriptions of aio, checkpoint, hybrid_engine, compile and weight_quantization.
#include "zero3d/ds_config/run_sections.h"

#include "zero3d/ds_config/field.h"

namespace zero3d::config {

const Section& aio_section() {
  static const Section section = [] {
    using C = AioConfig;
    SectionBuilder<C> b("aio", false);
    b.add("block_size", &C::block_size, "Bytes of one request to the drive.").above(0);
    b.add("queue_depth", &C::queue_depth, "Requests in flight.").above(0);
    b.add("intra_op_parallelism", &C::intra_op_parallelism, "Threads for one tensor.").above(0);
    b.add("single_submit", &C::single_submit, "Submit requests one by one.");
    b.add("overlap_events", &C::overlap_events, "Submit while others complete.");
    b.custom(
         "use_gds", "bool", "GPUDirect Storage; needs a CUDA device.",
         [](Reader& r, const Field& f, const std::string& path, const JsonValue& value, C& out) {
           const bool off = (value.is_bool() && !value.as_bool()) ||
                            (value.is_number() && value.as_number() == 0) || value.is_null() ||
                            (value.is_string() && value.as_string().empty());
           if (!off) {
             r.refuse(f, path, value,
                      "false: GPUDirect Storage needs a CUDA device, and this run "
                      "has none");
           }
           out.use_gds = !off;
         },
         [](const C& in) { return JsonValue(in.use_gds); })
        .check();
    return b.build();
  }();
  return section;
}

namespace {

const Section& writer_section() {
  static const Section section = [] {
    using C = CheckpointWriterConfig;
    SectionBuilder<C> b("checkpoint.writer", false);
    b.add("type", &C::type, "Which writer.").any_case_of({"MOCK", "PYTHON", "FAST"}).check();
    b.add("io_buffer_size", &C::io_buffer_size, "Bytes of the write buffer.").above(0);
    b.add("io_buffer_double", &C::io_buffer_double, "Two buffers in turn.");
    b.add("show_statistics", &C::show_statistics, "Print the rate of each file.");
    b.add("data_parallel", &C::data_parallel, "How replicas share the writing.")
        .any_case_of({"REPLICA", "SOCKET", "MACHINE"})
        .check();
    b.add("decoupled", &C::decoupled, "Write beside training.");
    b.add("io_multiplier", &C::io_multiplier, "Files written at a time.");
    return b.build();
  }();
  return section;
}

const Section& parallel_write_section() {
  static const Section section = [] {
    using C = ParallelWriteConfig;
    SectionBuilder<C> b("checkpoint.parallel_write", false);
    b.custom(
         "pipeline_stage", "bool", "Spread a stage's layers over its data-parallel ranks.",
         [](Reader& r, const Field& f, const std::string& path, const JsonValue& value, C& out) {
           if (value.is_string()) {
             r.refuse(f, path, value, "true or false", "write it without quotes");
           } else if (const auto read = r.to_bool(f, path, value)) {
             out.pipeline_stage = *read;
           }
         },
         [](const C& in) { return JsonValue(in.pipeline_stage); })
        .check();
    return b.build();
  }();
  return section;
}

}  // namespace

const Section& checkpoint_section() {
  static const Section section = [] {
    using C = CheckpointConfig;
    SectionBuilder<C> b("checkpoint", false);
    b.add("tag_validation", &C::tag_validation,
          "What happens when ranks save under different tags.")
        .any_case_of({"IGNORE", "WARN", "FAIL"})
        .check();
    b.add("load_universal", &C::load_universal,
          "Load a converted universal checkpoint. zero3d's checkpoints load at any split.");
    b.add("use_node_local_storage", &C::use_node_local_storage,
          "The first rank of each node writes to its own drive.");
    b.nest("parallel_write", &C::parallel_write, parallel_write_section(),
           "How ranks share the writing.");
    b.add("checkpoint_serialization", &C::checkpoint_serialization,
          "PyTorch's zip format; false is its legacy one.");
    b.nest("writer", &C::writer, writer_section(), "DeepSpeed's fast checkpoint writer.");
    return b.build();
  }();
  return section;
}

const Section& hybrid_engine_section() {
  static const Section section = [] {
    using C = HybridEngineConfig;
    SectionBuilder<C> b("hybrid_engine", true);
    b.add("enabled", &C::enabled, "Switch between training and generation (RLHF).");
    b.add("max_out_tokens", &C::max_out_tokens, "Tokens generated at most.").above(0);
    b.add("inference_tp_size", &C::inference_tp_size, "Tensor-parallel degree of generation.");
    b.add("release_inference_cache", &C::release_inference_cache, "Free the cache in training.");
    b.add("pin_parameters", &C::pin_parameters, "Keep parameters while generating.");
    b.add("tp_gather_partition_size", &C::tp_gather_partition_size, "Layers gathered at a time.");
    b.add("enable_cuda_graph", &C::enable_cuda_graph, "Generate through a CUDA graph.");
    return b.build();
  }();
  return section;
}

const Section& compile_section() {
  static const Section section = [] {
    using C = CompileConfig;
    SectionBuilder<C> b("compile", true);
    b.add("deepcompile", &C::deepcompile, "DeepCompile's passes over the traced model.");
    b.add("autoep_non_moe", &C::autoep_non_moe, "Compile what is not a mixture layer.");
    b.add("free_activation", &C::free_activation, "Free activations early.");
    b.add("free_activation_threshold", &C::free_activation_threshold, "Bytes of such a tensor.");
    b.add("offload_activation", &C::offload_activation, "Move activations to the host.");
    b.add("offload_activation_pin_memory", &C::offload_activation_pin_memory,
          "Into page-locked memory.");
    b.add("offload_opt_states", &C::offload_opt_states, "Move optimizer states to the host.");
    b.add("double_buffer", &C::double_buffer, "Two communication buffers in turn.");
    b.add("symmetric_memory", &C::symmetric_memory, "Gather through symmetric memory.");
    b.add("debug_log", &C::debug_log, "Log the passes.");
    b.add("offload_parameters", &C::offload_parameters, "Move parameters to the host.");
    b.add("sync_before_reduce", &C::sync_before_reduce, "Wait before each reduction.");
    b.add("sync_after_reduce", &C::sync_after_reduce, "Wait after each reduction.");
    b.add("sync_before_allgather", &C::sync_before_allgather, "Wait before each gather.");
    b.add("sync_after_allgather", &C::sync_after_allgather, "Wait after each gather.");
    b.add("keep_int_input_tensors", &C::keep_int_input_tensors, "Keep integer inputs alive.");
    b.add("keep_all_input_tensors", &C::keep_all_input_tensors, "Keep all inputs alive.");
    b.add("passes", &C::passes, "The passes to run.").one_of({"z1", "z3", "autosp", "autotp"});
    return b.build();
  }();
  return section;
}

const Section& weight_quantization_section() {
  static const Section section = [] {
    using C = WeightQuantizationConfig;
    SectionBuilder<C> b("weight_quantization", true);
    b.add("enabled", &C::enabled, "Read the section at all.");
    b.add("num_bits", &C::num_bits, "Bits of a quantized weight.");
    b.add("q_type", &C::q_type, "Kind of quantization.").one_of({"symmetric", "asymmetric"});
    b.add("q_groups", &C::q_groups, "Groups with a scale of their own.");
    const auto settings = [&b](const char* name, JsonValue C::*member, const char* effect) {
      b.custom(
          name, "object", effect,
          [member](Reader& r, const Field& f, const std::string& path, const JsonValue& value,
                   C& out) {
            if (value.is_object()) {
              out.*member = value;
            } else {
              r.refuse(f, path, value, "an object { ... }");
            }
          },
          [member](const C& in) { return in.*member; });
    };
    settings("quantized_initialization", &C::quantized_initialization,
             "Settings of parameters quantized as they are made.");
    settings("post_init_quant", &C::post_init_quant, "Settings of those quantized later.");
    return b.build();
  }();
  return section;
}

}  // namespace zero3d::config
