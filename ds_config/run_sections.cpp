// The keys of checkpoint, data_efficiency, hybrid_engine, compile and weight_quantization.
#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/reader.h"

namespace zero3d::config {

namespace {

constexpr std::nullopt_t none = std::nullopt;

constexpr std::array kWriterRows = {
    text("type", "FAST", "Which writer.").any_case_of("MOCK|PYTHON|FAST").check(),
    integer("io_buffer_size", 67'108'864, "Bytes of the write buffer.").above(0),
    flag("io_buffer_double", true, "Two buffers in turn."),
    flag("show_statistics", false, "Print the rate of each file."),
    text("data_parallel", none, "How replicas share the writing.")
        .any_case_of("REPLICA|SOCKET|MACHINE")
        .check(),
    flag("decoupled", false, "Write beside training."),
    integer("io_multiplier", 1, "Files written at a time.")};
constexpr Section kWriter = {kWriterRows};

constexpr std::array kParallelWriteRows = {
    flag("pipeline_stage", false, "Spread a stage's layers over its data-parallel ranks.")
        .unquoted()
        .check()};
constexpr Section kParallelWrite = {kParallelWriteRows};

constexpr std::array kCheckpointRows = {
    text("tag_validation", "WARN", "What happens when ranks save under different tags.")
        .any_case_of("IGNORE|WARN|FAIL")
        .check(),
    flag("load_universal", false,
         "Load a converted universal checkpoint. zero3d's checkpoints load at any split.")
        .none(),
    flag("use_node_local_storage", false, "The first rank of each node writes to its own drive.")
        .not_yet("write to each node's own drive"),
    nested("parallel_write", kParallelWrite, "How ranks share the writing.")
        .not_yet(
            "spread a stage's layer files over ranks",
            [](const Config& c) { return c.flag("checkpoint.parallel_write.pipeline_stage"); }),
    flag("checkpoint_serialization", true, "PyTorch's zip format; false is its legacy one.").none(),
    nested("writer", kWriter, "DeepSpeed's fast checkpoint writer.")
        .optional()
        .not_yet("write checkpoints through a faster writer")};

constexpr std::array kMetricRows = {
    text("index_to_sample_path", none, "File from index to samples."),
    text("index_to_metric_path", none, "File from index to difficulty."),
    text("difficulty_type", none, "Difficulty by value or by percentile.")
        .one_of("value|percentile"),
    text("clustering_type", none, "How samples are grouped.")
        .one_of("schedule_based|single_cluster"),
    number("min_difficulty", none, "Difficulty at the start."),
    number("max_difficulty", none, "Difficulty at the end."),
    text("schedule_type", none, "How it rises.")
        .one_of("fixed_discrete|fixed_linear|fixed_root|custom"),
    any("schedule_config", "Settings of the schedule.")};
constexpr Section kMetric = {kMetricRows};

void read_metrics(Reader& r, const Stated& s, JsonValue& out) {
  if (!s.value.is_object()) {
    r.refuse(s, "an object with a metric under each name");
    return;
  }
  for (const JsonMember& member : s.value.members()) {
    JsonValue metric = kMetric.defaults();
    r.read_section(kMetric, member.value, metric, join_path(s.path, member.name));
    out.members().push_back({member.name, {}, std::move(metric)});
  }
}

constexpr std::array kCurriculumRows = {
    flag("enabled", false, "Feed easy samples first."),
    text("data_cluster_path", none, "Folder of the sample groups."),
    object("curriculum_metrics", "The measures of difficulty, by name.")
        .typed("object of objects")
        .by(read_metrics)};
constexpr Section kCurriculum = {kCurriculumRows};

constexpr std::array kDynamicBatchingRows = {
    flag("enabled", false, "Batches of equal tokens instead of equal samples."),
    text("lr_scaling_method", "linear", "How the rate follows the batch.")
        .one_of("linear|sqrt|none"),
    integer("min_batch_size", 1, "Samples of a batch at least.").check(),
    integer("max_batch_size", none, "Samples of a batch at most.").check(),
    text("sequence_picking_order", "dataloader", "Order of the samples.")
        .one_of("random|seqlen|dataloader"),
    integer("max_tokens", none, "Tokens of a batch; required when enabled."),
    text("metrics_path", none, "Folder of the measured lengths."),
    flag("verbose", false, "Print the batches.")};
constexpr Section kDynamicBatching = {kDynamicBatchingRows};

constexpr std::array kSamplingRows = {
    flag("enabled", false, "Choose samples by difficulty or length."),
    integer("num_epochs", 1000, "Epochs to prepare for."),
    integer("num_workers", 0, "Loader processes."),
    flag("pin_memory", false, "Page-locked batches."),
    nested("curriculum_learning", kCurriculum, "Curriculum learning."),
    nested("dynamic_batching", kDynamicBatching, "Dynamic batching.")};
constexpr Section kSampling = {kSamplingRows};

constexpr std::array kLtdScheduleRows = {
    integer("min_value", none, "Tokens kept at the start."),
    integer("max_value", none, "Tokens kept at the end."),
    text("schedule_type", none, "How they rise.").one_of("fixed_linear"),
    any("schedule_config", "Settings of the schedule.")};
constexpr Section kLtdSchedule = {kLtdScheduleRows};

constexpr std::array kLayerTokenRows = {
    flag("enabled", false, "Not implemented in DeepSpeed either.")};
constexpr Section kLayerToken = {kLayerTokenRows};

constexpr std::array kRandomLtdRows = {
    flag("enabled", false, "Middle layers see a random part of the tokens."),
    integer("total_layer_num", none, "Layers of the model."),
    integer("random_ltd_layer_num", none, "Layers that drop tokens."),
    any("random_ltd_layer_id", "Their numbers."),
    any("model_mask_name", "Argument with the attention mask."),
    text("model_type", none, "encoder or decoder."),
    text("hidden_state_order", none, "Order of the hidden state's dims."),
    nested("random_ltd_schedule", kLtdSchedule, "How many tokens are kept when.").unread(),
    nested("layer_token_lr_schedule", kLayerToken, "A learning rate by tokens.").unread()};
constexpr Section kRandomLtd = {kRandomLtdRows};

constexpr std::array kRoutingRows = {flag("enabled", false, "Route tokens around layers."),
                                     nested("random_ltd", kRandomLtd, "Random layer-token drop.")};
constexpr Section kRouting = {kRoutingRows};

constexpr std::array kDataEfficiencyRows = {
    flag("enabled", false, "Read the section at all."),
    integer("seed", 1234, "Seed of its random choices."),
    nested("data_sampling", kSampling, "Choice of samples."),
    nested("data_routing", kRouting, "Choice of tokens.")};

constexpr std::array kHybridEngineRows =
    strictly(std::array{flag("enabled", false, "Switch between training and generation (RLHF)."),
                        integer("max_out_tokens", 512, "Tokens generated at most.").above(0),
                        integer("inference_tp_size", 1, "Tensor-parallel degree of generation."),
                        flag("release_inference_cache", false, "Free the cache in training."),
                        flag("pin_parameters", true, "Keep parameters while generating."),
                        integer("tp_gather_partition_size", 8, "Layers gathered at a time."),
                        flag("enable_cuda_graph", false, "Generate through a CUDA graph.")});

constexpr std::array kCompileRows =
    strictly(std::array{flag("deepcompile", false, "DeepCompile's passes over the traced model."),
                        flag("autoep_non_moe", false, "Compile what is not a mixture layer."),
                        flag("free_activation", false, "Free activations early."),
                        integer("free_activation_threshold", 10'485'760, "Bytes of such a tensor."),
                        flag("offload_activation", false, "Move activations to the host."),
                        flag("offload_activation_pin_memory", true, "Into page-locked memory."),
                        flag("offload_opt_states", false, "Move optimizer states to the host."),
                        flag("double_buffer", true, "Two communication buffers in turn."),
                        flag("symmetric_memory", false, "Gather through symmetric memory."),
                        flag("debug_log", false, "Log the passes."),
                        flag("offload_parameters", false, "Move parameters to the host."),
                        flag("sync_before_reduce", false, "Wait before each reduction."),
                        flag("sync_after_reduce", false, "Wait after each reduction."),
                        flag("sync_before_allgather", false, "Wait before each gather."),
                        flag("sync_after_allgather", false, "Wait after each gather."),
                        flag("keep_int_input_tensors", true, "Keep integer inputs alive."),
                        flag("keep_all_input_tensors", false, "Keep all inputs alive."),
                        texts("passes", none, "The passes to run.").one_of("z1|z3|autosp|autotp")});

constexpr std::array kWeightQuantizationRows = strictly(std::array{
    flag("enabled", true, "Read the section at all."),
    integer("num_bits", 8, "Bits of a quantized weight."),
    text("q_type", "symmetric", "Kind of quantization.").one_of("symmetric|asymmetric"),
    integer("q_groups", 1, "Groups with a scale of their own."),
    object("quantized_initialization", "Settings of parameters quantized as they are made."),
    object("post_init_quant", "Settings of those quantized later.")});

}  // namespace

constexpr Section kCheckpoint = {kCheckpointRows};
constexpr Section kDataEfficiency = {kDataEfficiencyRows};
constexpr Section kHybridEngine = {kHybridEngineRows, true};
constexpr Section kCompile = {kCompileRows, true};
constexpr Section kWeightQuantization = {kWeightQuantizationRows, true};

}  // namespace zero3d::config
