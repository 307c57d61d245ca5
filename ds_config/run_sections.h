// Typed sections of ds_config on files, data and execution: aio, checkpoint, data_efficiency,
// hybrid_engine, compile, weight_quantization. Defaults as DeepSpeed's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zero3d/formats/json_value.h"

namespace zero3d {

struct AioConfig {
  std::int64_t block_size = 1'048'576;  ///< Bytes of one request.
  std::int64_t queue_depth = 8;
  std::int64_t intra_op_parallelism = 1;
  bool single_submit = false;
  bool overlap_events = true;
  bool use_gds = false;
};

struct CheckpointWriterConfig {
  std::string type = "FAST";
  std::int64_t io_buffer_size = 67'108'864;  ///< Bytes.
  bool io_buffer_double = true;
  bool show_statistics = false;
  std::optional<std::string> data_parallel;
  bool decoupled = false;
  std::int64_t io_multiplier = 1;
};

struct ParallelWriteConfig {
  bool pipeline_stage = false;
};

struct CheckpointConfig {
  std::string tag_validation = "WARN";  ///< IGNORE, WARN or FAIL (upper case after loading).
  bool load_universal = false;
  bool use_node_local_storage = false;
  ParallelWriteConfig parallel_write;
  bool checkpoint_serialization = true;
  std::optional<CheckpointWriterConfig> writer;
};

struct CurriculumMetricConfig {
  std::optional<std::string> index_to_sample_path;
  std::optional<std::string> index_to_metric_path;
  std::optional<std::string> difficulty_type;
  std::optional<std::string> clustering_type;
  std::optional<double> min_difficulty;
  std::optional<double> max_difficulty;
  std::optional<std::string> schedule_type;
  JsonValue schedule_config;
};

struct CurriculumLearningConfig {
  bool enabled = false;
  std::optional<std::string> data_cluster_path;
  std::vector<std::pair<std::string, CurriculumMetricConfig>> curriculum_metrics;
};

struct DynamicBatchingConfig {
  bool enabled = false;
  std::string lr_scaling_method = "linear";
  std::int64_t min_batch_size = 1;
  std::optional<std::int64_t> max_batch_size;
  std::string sequence_picking_order = "dataloader";
  std::optional<std::int64_t> max_tokens;
  std::optional<std::string> metrics_path;
  bool verbose = false;
};

struct DataSamplingConfig {
  bool enabled = false;
  std::int64_t num_epochs = 1000;
  std::int64_t num_workers = 0;
  bool pin_memory = false;
  CurriculumLearningConfig curriculum_learning;
  DynamicBatchingConfig dynamic_batching;
};

struct RandomLtdScheduleConfig {
  std::optional<std::int64_t> min_value;
  std::optional<std::int64_t> max_value;
  std::optional<std::string> schedule_type;
  JsonValue schedule_config;
};

struct LayerTokenLrScheduleConfig {
  bool enabled = false;
};

struct RandomLtdConfig {
  bool enabled = false;
  std::optional<std::int64_t> total_layer_num;
  std::optional<std::int64_t> random_ltd_layer_num;
  JsonValue random_ltd_layer_id;
  JsonValue model_mask_name;
  std::optional<std::string> model_type;
  std::optional<std::string> hidden_state_order;
  RandomLtdScheduleConfig random_ltd_schedule;
  LayerTokenLrScheduleConfig layer_token_lr_schedule;
};

struct DataRoutingConfig {
  bool enabled = false;
  RandomLtdConfig random_ltd;
};

struct DataEfficiencyConfig {
  bool enabled = false;
  std::int64_t seed = 1234;
  DataSamplingConfig data_sampling;
  DataRoutingConfig data_routing;
};

struct HybridEngineConfig {
  bool enabled = false;
  std::int64_t max_out_tokens = 512;
  std::int64_t inference_tp_size = 1;
  bool release_inference_cache = false;
  bool pin_parameters = true;
  std::int64_t tp_gather_partition_size = 8;
  bool enable_cuda_graph = false;
};

struct CompileConfig {
  bool deepcompile = false;
  bool autoep_non_moe = false;
  bool free_activation = false;
  std::int64_t free_activation_threshold = 10'485'760;  ///< Bytes.
  bool offload_activation = false;
  bool offload_activation_pin_memory = true;
  bool offload_opt_states = false;
  bool double_buffer = true;
  bool symmetric_memory = false;
  bool debug_log = false;
  bool offload_parameters = false;
  bool sync_before_reduce = false;
  bool sync_after_reduce = false;
  bool sync_before_allgather = false;
  bool sync_after_allgather = false;
  bool keep_int_input_tensors = true;
  bool keep_all_input_tensors = false;
  std::optional<std::vector<std::string>> passes;  ///< Of z1, z3, autosp, autotp.
};

struct WeightQuantizationConfig {
  bool enabled = true;
  std::int64_t num_bits = 8;
  std::string q_type = "symmetric";
  std::int64_t q_groups = 1;
  JsonValue quantized_initialization = JsonValue::make_object();
  JsonValue post_init_quant = JsonValue::make_object();
};

}  // namespace zero3d
