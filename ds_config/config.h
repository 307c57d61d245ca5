// The typed ds_config: one struct a section, named as in the file, defaults as DeepSpeed's. A
// Config from load.h is complete: the batch triple, overlap_comm and the degrees are resolved. What
// the sections mean is in docs/config.md, generated from the descriptions in this folder's sources.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "zero3d/core/dtype.h"
#include "zero3d/ds_config/observability_sections.h"
#include "zero3d/ds_config/parallel_sections.h"
#include "zero3d/ds_config/params.h"
#include "zero3d/ds_config/precision_sections.h"
#include "zero3d/ds_config/run_sections.h"
#include "zero3d/ds_config/zero_section.h"

namespace zero3d {

struct OptimizerConfig {
  std::optional<std::string> type;  ///< As written: "AdamW", "adam", "SGD"; compare with is().
  ConfigParams params;
  bool legacy_fusion = false;
  /// Case-insensitive, as DeepSpeed resolves the names it knows.
  bool is(std::string_view name) const;
};

struct SchedulerConfig {
  std::optional<std::string> type;  ///< Exact: "WarmupLR", "WarmupDecayLR", ...
  ConfigParams params;
};

/// ranks = dp x tp x pp (dp = outer data-parallel degree x sp when sequence parallel).
struct ParallelDegrees {
  int ranks = 1;
  int dp = 1;  ///< Data-parallel replicas: the divisor of train_batch_size.
  int tp = 1;
  int pp = 1;
  int sp = 1;
};

struct Config {
  // Batch triple, all three resolved: train = micro x accumulation x degrees.dp.
  std::int64_t train_batch_size = 0;
  std::int64_t train_micro_batch_size_per_gpu = 0;
  std::int64_t gradient_accumulation_steps = 0;

  bool managed_gradient_accumulation = true;    ///< False: the caller owns the boundary.
  std::optional<std::int64_t> steps_per_print;  ///< Absent: no progress lines.
  bool dump_state = false;
  bool disable_python_gc = false;
  bool disable_allgather = false;
  std::optional<DType> communication_data_type;  ///< Absent: see communication_dtype().
  DType seq_parallel_communication_data_type = DType::f32;
  bool prescale_gradients = false;
  double gradient_predivide_factor = 1.0;
  std::string gradient_allreduce_op = "mean";  ///< "mean" or "sum".
  double gradient_clipping = 1.0;              ///< Global L2 norm; <= 0 off.
  bool zero_allow_untested_optimizer = false;
  bool zero_force_ds_cpu_optimizer = true;
  bool wall_clock_breakdown = false;
  bool memory_breakdown = false;
  std::optional<std::int64_t> vocabulary_size;
  bool dataloader_drop_last = false;
  bool use_data_before_expert_parallelism = false;
  std::optional<std::string> log_level;
  std::int64_t allgather_size = 500'000'000;
  std::optional<std::int64_t> sequence_parallel_size;
  std::optional<std::int64_t> data_parallel_size;
  JsonValue datastates_ckpt = JsonValue(false);  ///< false: off; anything else is its settings.

  std::optional<OptimizerConfig> optimizer;
  std::optional<SchedulerConfig> scheduler;
  Fp16Config fp16;
  Bf16Config bf16;
  TorchAutocastConfig torch_autocast;
  DataTypesConfig data_types;
  ZeroConfig zero_optimization;
  AioConfig aio;
  ActivationCheckpointingConfig activation_checkpointing;
  PipelineConfig pipeline;
  TensorParallelConfig tensor_parallel;
  ExpertParallelConfig expert_parallel;
  FileMonitorConfig tensorboard;
  FileMonitorConfig csv_monitor;
  WandbConfig wandb;
  CometConfig comet;
  CommsLoggerConfig comms_logger;
  FlopsProfilerConfig flops_profiler;
  TimersConfig timers;
  AutotuningConfig autotuning;
  CheckpointConfig checkpoint;
  DataEfficiencyConfig data_efficiency;
  HybridEngineConfig hybrid_engine;
  CompileConfig compile;
  WeightQuantizationConfig weight_quantization;

  ParallelDegrees degrees;
};

/// "fp16", "float16", "half", "torch.float16", ... -> DType; nothing for other spellings (int8
/// included: DeepSpeed knows it, training does not).
std::optional<DType> parse_ds_dtype(std::string_view text);

/// Parameters and activations: fp16 or bf16 when enabled, else fp32.
DType model_dtype(const Config& config);
/// Of gradient reductions: communication_data_type; by default fp32, since accumulation is (a
/// listed difference: DeepSpeed's default is the model's dtype).
DType communication_dtype(const Config& config);
/// Of the gradients added up over micro-batches: data_types.grad_accum_dtype, fp32 by default.
DType accumulation_dtype(const Config& config);
/// Of the weights the optimizer updates.
DType master_dtype(const Config& config);

}  // namespace zero3d
