// One rank's part of a training run: device, model, engine, the loop over steps, and what rank 0
// writes.
#pragma once

#include <memory>
#include <optional>

#include "train_options.h"
#include "zero3d/data/sampler.h"
#include "zero3d/engine/config/load.h"
#include "zero3d/models/model_config.h"
#include "zero3d/parallel/comm/communicator.h"

namespace zero3d::tools {

/// Everything that all ranks share, opened and checked before any of them starts.
struct TrainPlan {
  TrainRequest request;
  LoadResult loaded;
  ModelConfig model;
  std::string weights_folder;  ///< Empty: draw the weights.
  std::unique_ptr<Dataset> data;
  std::unique_ptr<Dataset> eval_data;
  std::int64_t sequence_length = 0;
  int threads = 1;
  std::int64_t device_memory = -1;  ///< Budget of each rank's device; negative: none.
  std::int64_t process_start_ns = 0;
};

void train_rank(const TrainPlan& plan, Communicator& world);

}  // namespace zero3d::tools
