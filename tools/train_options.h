// What `zero3d train` is asked to do: its options as given, before anything is opened.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config_options.h"

namespace zero3d::tools {

struct TrainRequest {
  std::string config;
  std::string model;
  bool from_scratch = false;
  std::vector<std::string> data;
  std::string data_format = "auto";
  std::string order = "shuffled";
  std::int64_t sequence_length = 0;  ///< 0: the model's longest, at most 1,024.
  std::int64_t steps = 0;
  int ranks = 0;    ///< 0: one, or as many as the launcher started.
  int threads = 0;  ///< Per rank; 0: the machine's cores over the ranks.
  bool no_bind = false;
  std::string device = "auto";  ///< device_choice.h.
  std::uint64_t seed = 1234;
  std::vector<std::string> freeze;
  std::vector<std::string> no_decay;
  std::string metrics;
  std::string export_folder;
  std::string save;                ///< Folder of checkpoints; "": none are written.
  std::int64_t save_interval = 0;  ///< Steps between them; 0: at the end alone.
  int keep_last = 0;               ///< 0: all.
  bool save_async = false;
  std::string resume;                  ///< A folder, or "latest"; "": from the start.
  std::vector<std::string> overrides;  ///< train_resume.h.
  std::vector<std::string> map;        ///< Names of the checkpoint, "OLD=NEW".
  std::vector<std::string> eval_data;
  std::int64_t eval_interval = 0;
  std::string generate;
  std::int64_t generate_tokens = 200;
  double temperature = 0.8;
  std::string trace;
  std::string print_schedule;
  std::string device_memory;
  std::string host_memory;
  std::string log_level = "info";
  bool allow_unsupported = false;
  bool dry_run = false;
  double comm_timeout = 300;   ///< Seconds.
  double io_timeout = 30;      ///< Seconds.
  int max_skipped_steps = 50;  ///< In a row; then the run ends with the cause.
  bool reduce_each_micro_batch = false;
  ConfigOptions loading;  ///< What fills "auto", and the degrees.
};

}  // namespace zero3d::tools
