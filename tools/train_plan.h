// What a training run is going to do: everything that its options name, opened and checked before
// any rank starts, so that a fault is told once and costs nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cpu_binding.h"
#include "machine_memory.h"
#include "metrics_file.h"
#include "name_patterns.h"
#include "train_options.h"
#include "zero3d/core/output_file.h"
#include "zero3d/data/dataset.h"
#include "zero3d/device/device.h"
#include "zero3d/ds_config/load.h"
#include "zero3d/engine/checkpoint/saved_state.h"
#include "zero3d/engine/parameter_source.h"
#include "zero3d/engine/train_settings.h"
#include "zero3d/models/model_config.h"

namespace zero3d::tools {

struct TrainPlan {
  TrainRequest request;
  LoadResult loaded;
  TrainSettings settings;  ///< What the configuration comes to.
  ModelConfig model;
  NamePatterns freeze{"--freeze", {}};
  NamePatterns no_decay{"--no-decay", {}};
  std::unique_ptr<ParameterSource> weights;  ///< Of the folder; null: draw them.
  std::unique_ptr<SavedState> resumed;       ///< Null: the run begins.
  std::unique_ptr<ParameterSource> initial;  ///< What the model is made from; null: draw it.
  std::unique_ptr<Dataset> data;
  std::unique_ptr<Dataset> eval_data;
  std::int64_t sequence_length = 0;
  AllowedCpus allowed_cpus;
  DeviceKind device = DeviceKind::cpu;  ///< Of each rank.
  int threads = 1;                      ///< Of each rank.
  std::int64_t device_memory = -1;      ///< Budget of each rank's device; negative: none.
  std::int64_t host_memory = -1;        ///< The same of host memory, pinned and pageable.
  MachineMemory machine_memory;
  std::vector<std::int64_t> gpu_memory;  ///< Free bytes of each GPU that the run may use.
  std::int64_t resident_bytes =
      0;  ///< Of this process, with everything opened and no rank started.
  // Outputs of the leading rank; null when it is not asked for them.
  std::unique_ptr<MetricsFile> metrics;
  std::unique_ptr<OutputFile> trace;
  std::unique_ptr<OutputFile> schedule;
};

/// The number of the first step that this run trains.
std::int64_t first_step(const TrainPlan& plan);

/// Throws for the first thing that would stop the run. The leading rank alone warns, opens the
/// outputs and writes the resolved configuration; `share` is the place among the ranks that use the
/// same CPUs.
TrainPlan make_plan(const TrainRequest& request, int ranks, bool leads, const Share& share);

/// Whether a signal ends the run after its step rather than at once: there is something to save, or
/// to take off a drive.
bool leaves_in_order(const TrainPlan& plan);

}  // namespace zero3d::tools
