// The typed zero_optimization section of ds_config with its parts, defaults as DeepSpeed's. Sizes
// are counted in elements unless a name says bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace zero3d {

enum class OffloadDevice { none, cpu, nvme };

struct OffloadParamConfig {
  OffloadDevice device = OffloadDevice::none;  ///< Where parameter shards live between uses.
  std::optional<std::string> nvme_path;        ///< Folder on the drive; needed for nvme.
  std::int64_t buffer_count = 5;               ///< Staging buffers for nvme.
  std::int64_t buffer_size = 100'000'000;      ///< Elements of a staging buffer.
  std::int64_t max_in_cpu = 1'000'000'000;     ///< Elements kept in host memory before the drive.
  bool pin_memory = true;                      ///< Page-locked host memory.
};

struct OffloadOptimizerConfig {
  OffloadDevice device = OffloadDevice::none;  ///< Where masters and moments live.
  std::optional<std::string> nvme_path;        ///< Folder on the drive; needed for nvme.
  std::int64_t buffer_count = 4;               ///< Staging buffers for nvme.
  bool pin_memory = true;                      ///< Page-locked host memory.
  bool pipeline_read = false;                  ///< Read the next tile while one is updated.
  bool pipeline_write = false;                 ///< Write the last tile while one is updated.
  bool fast_init = false;                      ///< Quick first write of the states to nvme.
  double ratio = 1.0;                          ///< Share of the states offloaded (stage 3 only).
  bool super_offload = false;                  ///< SuperOffload worker process.
  double cpuadam_cores_perc = 0.8;             ///< Share of the cores that worker takes.
};

struct LeafModuleConfig {
  std::vector<std::string> classes = {
      "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
      "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
      "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock"};
  std::vector<std::string> names;
  std::vector<std::string> name_suffixes;
};

struct ZenFlowConfig {
  double topk_ratio = 0.1;                      ///< Share of gradient columns updated at once.
  std::string select_strategy = "auto";         ///< auto, step, epoch.
  std::optional<std::int64_t> select_interval;  ///< Absent: "auto".
  std::optional<std::int64_t> update_interval;  ///< Absent: "auto".
  bool overlap_step = false;
  bool offload = false;
  double auto_ratio = 0.99;
  std::int64_t full_warm_up_rounds = 0;
  double pt_reserved_cores_perc = 0.5;
  std::optional<std::int64_t> steps_per_epoch;
};

struct ZeroConfig {
  int stage = 0;  ///< 0 off, 1 optimizer state, 2 + gradients, 3 + parameters.
  bool contiguous_gradients = true;
  bool reduce_scatter = true;
  std::int64_t reduce_bucket_size = 500'000'000;  ///< Elements of a reduction bucket, > 0.
  bool compute_grad_norm = true;                  ///< Stages 1 and 2 may switch the norm off.
  bool use_multi_rank_bucket_allreduce = true;
  bool allgather_partitions = true;  ///< Without effect in DeepSpeed, too.
  std::int64_t allgather_bucket_size = 500'000'000;
  std::optional<bool> overlap_comm;  ///< Resolved by the loader: true at stage 3, else false.
  bool load_from_fp32_weights = true;
  bool elastic_checkpoint = false;
  std::optional<OffloadParamConfig> offload_param;
  std::optional<OffloadOptimizerConfig> offload_optimizer;
  std::optional<ZenFlowConfig> zenflow;
  LeafModuleConfig leaf_module;
  std::int64_t sub_group_size = 1'000'000'000;  ///< Elements of an optimizer tile, stage 3.
  bool ignore_unused_parameters = true;
  bool legacy_stage1 = false;
  bool round_robin_gradients = false;
  bool parameter_alignment = false;
  std::int64_t zero_hpz_partition_size = 1;  ///< Ranks of the secondary partition; > 1 enables.
  bool zero_quantized_weights = false;
  bool zero_quantized_nontrainable_weights = false;
  bool zero_quantized_gradients = false;
  std::int64_t mics_shard_size = -1;  ///< Ranks a MiCS shard spans; -1 off.
  bool mics_hierarchical_params_gather = false;
  bool memory_efficient_linear = true;
  bool pipeline_loading_checkpoint = false;
  bool override_module_apply = true;
  bool log_trace_cache_warnings = false;
  bool enable_sanity_checks = false;
  bool save_muon_momentum_buffer_in_memory = false;
  // Spelled with the prefix stage3_ in files; the bare names are accepted too.
  std::int64_t prefetch_bucket_size = 50'000'000;
  std::int64_t param_persistence_threshold = 100'000;
  std::int64_t model_persistence_threshold = std::numeric_limits<std::int64_t>::max();
  std::int64_t max_live_parameters = 1'000'000'000;
  std::int64_t max_reuse_distance = 1'000'000'000;
  bool gather_16bit_weights_on_model_save = false;
  std::int64_t module_granularity_threshold = 0;
  bool use_all_reduce_for_fetch_params = false;
  bool allgather_sequential = false;
  // Deprecated spellings, as written; the loader has copied each into its replacement.
  std::optional<bool> cpu_offload;
  std::optional<bool> cpu_offload_param;
  std::optional<bool> cpu_offload_use_pin_memory;
  bool gather_fp16_weights_on_model_save = false;
};

}  // namespace zero3d
