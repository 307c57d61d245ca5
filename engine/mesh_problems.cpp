#include "zero3d/engine/mesh_problems.h"

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

/// Of the weights of blocks only which are none matters here.
void deal_blocks(const Module& module, const PipelineSettings& pipeline, int stages) {
  std::vector<PartitionBlock> blocks;
  for (const auto& block : module.blocks()) blocks.push_back({block->name(), 1, 1});
  partition_blocks(pipeline.partition, blocks,
                   pipeline_shape(pipeline.schedule, stages, pipeline.virtual_stages).segments());
}

}  // namespace

std::vector<std::string> mesh_problems(const Module& module, const TrainSettings& settings,
                                       const GridDegrees& degrees) {
  std::vector<std::string> problems = module.mesh_problems(degrees);
  if (degrees.pp == 1) return problems;
  try {
    deal_blocks(module, settings.pipeline, degrees.pp);
  } catch (const Error& error) {
    problems.emplace_back(error.what());
  }
  return problems;
}

}  // namespace zero3d
