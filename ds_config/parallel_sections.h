// Typed sections of ds_config on activations and model parallelism: activation_checkpointing,
// pipeline, tensor_parallel, expert_parallel. Defaults as DeepSpeed's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zero3d/formats/json_value.h"

namespace zero3d {

struct ActivationCheckpointingConfig {
  bool partition_activations = false;
  std::optional<std::int64_t> number_checkpoints;
  bool contiguous_memory_optimization = false;
  bool cpu_checkpointing = false;
  bool synchronize_checkpoint_boundary = false;
  bool profile = false;
};

struct PipelineConfig {
  std::optional<std::int64_t> stages;  ///< Pipeline stages; absent: "auto", one.
  std::string partition = "best";
  bool seed_layers = false;
  std::int64_t activation_checkpoint_interval = 0;
  bool pipe_partitioned = true;
  bool grad_partitioned = true;
  bool use_reentrant = true;
};

struct TensorParallelInnerConfig {
  std::int64_t tp_size = 1;  ///< Must be 1 or equal autotp_size.
  std::int64_t tp_grain_size = 1;
  JsonValue mpu;
  JsonValue tp_group;
};

struct TensorParallelLayerSpec {
  std::vector<std::string> patterns;
  std::string partition_type = "column";  ///< column, row, skip.
  JsonValue shape;
  std::optional<std::int64_t> partition_dim;
  JsonValue model_types;
  bool gather_output = false;
  bool grad_allreduce = false;
};

struct TensorParallelPartitionConfig {
  bool use_default_specs = true;
  bool strict_mode = false;
  std::int64_t embedding_partition_dim = 1;
  std::vector<std::string> lm_head_patterns = {"lm_head", "embed_out"};
  std::int64_t tp_size = 1;
  std::vector<TensorParallelLayerSpec> layer_specs;
};

struct TensorParallelConfig {
  std::int64_t autotp_size = 0;  ///< Ranks a layer is split over; 0 and 1 are off.
  bool tp_overlap_comm = false;
  std::optional<bool> vocab_parallel_lm_head;
  std::string vocab_parallel_ce_backend = "torch";
  TensorParallelInnerConfig tensor_parallel;
  std::optional<TensorParallelPartitionConfig> partition_config;
  std::optional<std::string> preset_model;
  JsonValue injection_policy_tuple;
  bool keep_module_on_host = false;
  bool replace_with_kernel_inject = false;
};

struct ExpertParallelConfig {
  bool enabled = false;
  std::int64_t autoep_size = 1;
  std::int64_t expert_tensor_parallel_size = 1;
  bool validate_folding_routing = false;
  bool async_split_plan = false;
  std::optional<std::string> preset_model;
  std::optional<std::string> moe_layer_pattern;
  std::optional<std::string> expert_pattern;
  std::optional<std::string> router_pattern;
  bool use_grouped_mm = true;
  bool disable_triton_grouped_mm = false;
  std::optional<bool> route_norm;
  double route_scale = 1.0;
  std::string score_apply = "auto";
  std::string combine_impl = "auto";
  std::string row_weighting_impl = "auto";
  std::string gate_up_impl = "separate";
  std::string comm_backend = "comm";
  std::int64_t comm_num_sm = 12;
  std::int64_t comm_qp_margin = 4;
  std::int64_t comm_max_tokens_per_rank = 0;
  std::optional<std::int64_t> num_expert_groups;
  std::optional<std::int64_t> num_limited_groups;
  std::string score_func = "auto";
  std::optional<std::int64_t> top_k;            ///< Absent: "auto".
  std::optional<double> routed_scaling_factor;  ///< Absent: "auto".
  std::optional<std::string> expert_w1;
  std::optional<std::string> expert_w2;
  std::optional<std::string> expert_w3;
  std::optional<std::string> num_experts_attr;
  std::optional<std::string> top_k_attr;
  std::optional<bool> has_shared_experts;
  std::optional<std::string> shared_experts_pattern;
  std::optional<std::string> shared_experts_gate_pattern;
  std::optional<std::string> expert_activation;
};

}  // namespace zero3d
