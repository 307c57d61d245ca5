// The keys of activation_checkpointing, pipeline, tensor_parallel and expert_parallel.
#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/reader.h"

namespace zero3d::config {

namespace {

constexpr std::nullopt_t none = std::nullopt;

bool shares_layers(const Config& c) { return c.degrees.tp > 1; }

constexpr std::array kActivationRows = {
    flag("partition_activations", false,
         "Keep each block's inputs alone, and compute its forward again before its backward. Of "
         "what is kept, each tensor-parallel rank has a part."),
    integer(
        "number_checkpoints", none,
        "Blocks are dealt to so many groups, of which only the inputs are kept; forward of a group "
        "is computed again before its backward."),
    flag("contiguous_memory_optimization", false,
         "What is kept in one buffer, against fragments; needs partition_activations and "
         "number_checkpoints. Here nothing is fragmented: memory is planned before the run.")
        .none(),
    flag("cpu_checkpointing", false,
         "Recompute as partition_activations does, and move what is kept to page-locked host "
         "memory."),
    flag("synchronize_checkpoint_boundary", false, "Wait for the device at each checkpoint.")
        .none(),
    flag("profile", false, "Time the forward and backward of each checkpoint.")
        .not_yet("time each checkpoint (--trace shows what is computed again)")};

constexpr std::array kPipelineRows = {
    or_auto(integer("stages", none,
                    "Pipeline stages: the pp degree, which --pp overrides. \"auto\": one. "
                    "(DeepSpeed takes it from its PipelineModule.)"))
        .at_least(1),
    text(
        "partition", "best",
        "How blocks are dealt to stages: parameters (the stage with the most has as few as can be; "
        "best is the same), uniform, time (each block is measured, and the slowest stage is as "
        "fast "
        "as can be; the list that comes of it is printed), type:REGEX (of blocks' names), or the "
        "blocks of each, such as 3,3,4,2. `zero3d.partition` and `--partition` override it. "
        "(DeepSpeed takes it from its "
        "PipelineModule.)")
        .only("only with a pp degree above 1", [](const Config& c) { return c.degrees.pp > 1; }),
    flag("seed_layers", false, "Random numbers do not depend on stages. Unused by DeepSpeed.")
        .none(),
    integer(
        "activation_checkpoint_interval", 0,
        "Keep the inputs of every so many blocks alone, and compute forward again before backward; "
        "0 leaves it to activation_checkpointing. `--recompute` overrides it. One stage suffices.")
        .at_least(0),
    flag("pipe_partitioned", true,
         "Send activations in parts from tensor-parallel ranks. Each sends its own here.")
        .none(),
    flag("grad_partitioned", true, "The same of their gradients.").none(),
    flag("use_reentrant", true, "A PyTorch matter.").none()};

constexpr std::array kInnerRows = strictly(std::array{
    integer("tp_size", 1, "1, or the same as autotp_size."),
    integer("tp_grain_size", 1,
            "Shards are multiples of this many elements. Here heads are whole, "
            "and other parts need not be even.")
        .none(),
    any("mpu", "Only from Python.").none(), any("tp_group", "Only from Python.").none()});
constexpr Section kInner = {kInnerRows, true};

constexpr std::array kLayerSpecRows = {
    texts("patterns", "", "Regular expressions of parameter names."),
    text("partition_type", "column", "How the layer is cut.").one_of("column|row|skip"),
    any("shape", "View the weight in this shape before the cut."),
    integer("partition_dim", none, "The dim to cut; by default 0 column, 1 row."),
    any("model_types", "Only for these models."),
    flag("gather_output", false, "Gather the layer's output."),
    flag("grad_allreduce", false, "All-reduce the gradient of its input.")};
constexpr Section kLayerSpec = {kLayerSpecRows, false};

void read_layer_specs(Reader& r, const Stated& s, JsonValue& out) {
  if (!s.value.is_array()) {
    r.refuse(s, "a list of objects");
    return;
  }
  for (std::size_t i = 0; i < s.value.items().size(); ++i) {
    JsonValue spec = kLayerSpec.defaults();
    r.read_section(kLayerSpec, s.value.items()[i], spec, concat(s.path, "[", i, "]"));
    out.push_back(std::move(spec));
  }
}

constexpr std::array kPartitionRows = {
    flag("use_default_specs", true, "Add to the built-in rules."),
    flag("strict_mode", false, "A layer no rule matches is an error."),
    integer("embedding_partition_dim", 1, "The dim embeddings are cut in."),
    texts("lm_head_patterns", "lm_head|embed_out", "Names of output heads."),
    integer("tp_size", 1, "Ranks a layer is split over."),
    texts("layer_specs", "", "Rules for single layers.")
        .typed("list of objects")
        .by(read_layer_specs)};
constexpr Section kPartition = {kPartitionRows};

void refuse_dtype(Reader& r, const Stated& s, JsonValue&) {
  r.refuse(s, "no value: a torch dtype cannot be written in a file",
           "remove the key; the fp16 and bf16 sections decide");
}

void read_list(Reader& r, const Stated& s, JsonValue& out) {
  if (s.value.is_array() || s.value.is_null()) {
    out = s.value;
  } else {
    r.refuse(s, "a list");
  }
}

constexpr std::array kTensorParallelRows = strictly(std::array{
    integer(
        "autotp_size", 0,
        "Ranks a layer is split over: the tp degree, which `zero3d.tp` and --tp override. 0 and "
        "1 are off.")
        .at_least(0)
        .or_auto()
        .unquoted(),
    flag("tp_overlap_comm", false,
         "Sum products over ranks beside the next part of them, on a stream of its own.")
        .only("only with a tp degree above 1", shares_layers),
    flag("vocab_parallel_lm_head", none,
         "Split the output head by vocabulary, with a distributed loss. Here it always is, and the "
         "embedding with it.")
        .none(),
    text("vocab_parallel_ce_backend", "torch", "Who computes that loss.")
        .one_of("torch|liger")
        .none(),
    nested("tensor_parallel", kInner, "Older form of the degree.").also("tp"),
    nested("partition_config", kPartition,
           "Rules for how layers are cut. Here each model says that of itself, and results do not "
           "depend on it.")
        .optional()
        .none(),
    text("preset_model", none, "Rules of a known model family: as partition_config.").none(),
    any("dtype", "A torch dtype cannot be written in a file; remove it.").hide().by(refuse_dtype),
    any("injection_policy_tuple", "Of inference.").typed("list or null").by(read_list).none(),
    flag("keep_module_on_host", false, "Load shards from host memory. Every rank reads its own.")
        .none(),
    flag("replace_with_kernel_inject", false, "Of inference.").also("kernel_inject").none()});

void refuse_unless_null(Reader& r, const Stated& s, JsonValue&) {
  if (!s.value.is_null()) r.refuse(s, "null", "remove the key");
}

constexpr std::array kExpertParallelRows = {
    flag("enabled", false, "Deal the experts of mixture layers out to ranks."),
    integer("autoep_size", 1, "Ranks the experts of a layer are dealt to.").at_least(1),
    integer("expert_tensor_parallel_size", 1, "Only 1.").between(1, 1),
    flag("validate_folding_routing", false, "Check the token routing."),
    flag("async_split_plan", false, "Plan the exchange beside the computation."),
    text("preset_model", none, "Rules of a known model family."),
    text("moe_layer_pattern", none, "Names of mixture layers."),
    text("expert_pattern", none, "Names of experts."),
    text("router_pattern", none, "Names of routers."),
    flag("use_grouped_mm", true, "One grouped matrix product for all experts."),
    flag("disable_triton_grouped_mm", false, "Not by Triton."),
    flag("route_norm", none, "Normalise the routing weights."),
    number("route_scale", 1.0, "Factor of the routing weights."),
    text("score_apply", "auto", "Where routing weights are applied.")
        .one_of("auto|pre|post")
        .or_auto(),
    text("combine_impl", "auto", "How expert outputs are combined.")
        .one_of("auto|weighted_sum|fused_weighted_sum|legacy_bmm")
        .or_auto(),
    text("row_weighting_impl", "auto", "How rows are weighted.")
        .one_of("auto|eager|fused")
        .or_auto(),
    text("gate_up_impl", "separate", "Gate and up projections apart or as one.")
        .one_of("separate|fused"),
    text("score_func", "auto", "Routing function.").one_of("auto|softmax|sigmoid").or_auto(),
    any("load_balance_coeff", "Must be null or absent.")
        .typed("null")
        .check()
        .or_auto()
        .by(refuse_unless_null),
    text("comm_backend", "comm", "Who moves tokens.").one_of("comm|deepep"),
    integer("comm_num_sm", 12, "Multiprocessors for communication.").at_least(1),
    integer("comm_qp_margin", 4, "Queue pairs in reserve.").at_least(0),
    integer("comm_max_tokens_per_rank", 0, "Token limit of deepep.").at_least(0),
    integer("num_expert_groups", none, "Groups of experts."),
    integer("num_limited_groups", none, "Groups a token may reach."),
    or_auto(integer("top_k", none, "Experts a token goes to.")),
    or_auto(number("routed_scaling_factor", none, "Factor of the routed part.")),
    text("expert_w1", none, "Name of the gate weight."),
    text("expert_w2", none, "Name of the down weight."),
    text("expert_w3", none, "Name of the up weight."),
    text("num_experts_attr", none, "Attribute with the number of experts."),
    text("top_k_attr", none, "Attribute with the experts a token goes to."),
    flag("has_shared_experts", none, "There are shared experts."),
    text("shared_experts_pattern", none, "Their names."),
    text("shared_experts_gate_pattern", none, "Their gate's name."),
    text("expert_activation", none, "Activation of an expert.")
        .one_of("swiglu|geglu_tanh|swiglu_clamped|swiglu_oai")};

}  // namespace

constexpr Section kActivationCheckpointing = {kActivationRows};
constexpr Section kPipeline = {kPipelineRows};
constexpr Section kTensorParallel = {kTensorParallelRows, true};
constexpr Section kExpertParallel = {kExpertParallelRows};

}  // namespace zero3d::config
