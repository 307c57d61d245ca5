// A pipeline's partition by time: each block is run alone, on zeros, and the slowest segment made
// as fast as can be. What comes of it is a list of blocks that can be given back, so that a run can
// be had again whatever a second measurement would say.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3d/engine/engine.h"

namespace zero3d {

/// Nanoseconds that forward and backward of each block take on this device, for a micro-batch of
/// settings.micro_batch samples of options.sequence_length tokens: the least of a few runs, each of
/// one block with its own parameters, activations and what comes from its neighbours alone in
/// memory. Nothing travels between ranks.
std::vector<std::int64_t> measure_blocks(const TrainSettings& settings, const Module& module,
                                         const Mesh& mesh, Device& device,
                                         const EngineOptions& options);

/// settings.pipeline.partition, but where it is by time the list that comes of it: rank 0 measures
/// while the others wait, and tells them. Collective over the mesh's world. Throws ConfigError
/// where nothing can be measured (EngineOptions::plan_only, no sequence_length), and as
/// partition_blocks.
PartitionChoice measured_partition(const TrainSettings& settings, const Module& module,
                                   const Mesh& mesh, Device& device, const EngineOptions& options);

}  // namespace zero3d
