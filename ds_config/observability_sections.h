// Typed sections of ds_config on watching a run: monitors, comms_logger, flops_profiler, timers,
// autotuning. Defaults as DeepSpeed's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zero3d/formats/json_value.h"

namespace zero3d {

/// tensorboard and csv_monitor.
struct FileMonitorConfig {
  bool enabled = false;
  std::string output_path;  ///< Events go to output_path/job_name; "" is the working folder.
  std::string job_name = "DeepSpeedJobName";
};

struct WandbConfig {
  bool enabled = false;
  std::optional<std::string> group;
  std::optional<std::string> team;
  std::string project = "deepspeed";
};

struct CometConfig {
  bool enabled = false;
  std::int64_t samples_log_interval = 100;
  std::optional<std::string> project;
  std::optional<std::string> workspace;
  std::optional<std::string> api_key;
  std::optional<std::string> experiment_name;
  std::optional<std::string> experiment_key;
  std::optional<bool> online;
  std::optional<std::string> mode;
};

struct CommsLoggerConfig {
  bool enabled = false;
  bool prof_all = true;
  std::vector<std::string> prof_ops;
  bool verbose = false;
  bool debug = false;
};

struct FlopsProfilerConfig {
  bool enabled = false;
  double recompute_fwd_factor = 0;
  std::int64_t profile_step = 1;
  std::int64_t module_depth = -1;
  std::int64_t top_modules = 1;
  bool detailed = true;
  std::optional<std::string> output_file;
};

struct ThroughputTimerConfig {
  bool enabled = true;
  bool synchronized = true;  ///< Wait for the device before reading the clock.
};

struct TimersConfig {
  ThroughputTimerConfig throughput;
};

struct AutotuningModelInfo {
  bool profile = false;
  std::optional<std::int64_t> num_params;
  std::optional<std::int64_t> hidden_size;
  std::optional<std::int64_t> num_layers;
};

struct AutotuningConfig {
  bool enabled = false;
  bool fast = true;
  std::string results_dir = "autotuning_results";
  std::string exps_dir = "autotuning_exps";
  bool overwrite = true;
  std::int64_t start_profile_step = 3;
  std::int64_t end_profile_step = 5;
  std::string metric = "throughput";
  std::optional<std::string> metric_path;
  std::string tuner_type = "gridsearch";
  std::int64_t tuner_early_stopping = 5;
  std::int64_t tuner_num_trials = 50;
  JsonValue arg_mappings;
  std::optional<AutotuningModelInfo> model_info;
  std::optional<std::string> model_info_path;
  std::int64_t mp_size = 1;
  std::optional<std::int64_t> max_train_batch_size;
  std::int64_t min_train_batch_size = 1;
  std::int64_t max_train_micro_batch_size_per_gpu = 1024;
  std::int64_t min_train_micro_batch_size_per_gpu = 1;
  std::int64_t num_tuning_micro_batch_sizes = 3;
};

}  // namespace zero3d
