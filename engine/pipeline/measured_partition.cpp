#include "zero3d/engine/pipeline/measured_partition.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/engine/block_runner.h"
#include "zero3d/engine/dry_run.h"
#include "zero3d/engine/memory_fit.h"
#include "zero3d/engine/pipeline/stage_plan.h"
#include "zero3d/engine/tiling.h"
#include "zero3d/engine/zero/bucket_plan.h"
#include "zero3d/parallel/agree.h"

namespace zero3d {
namespace {

constexpr int kRuns = 4;  ///< The first warms up.

class Measurement {
 public:
  Measurement(const TrainSettings& settings, const Module& module, const Mesh& mesh, Device& device,
              const EngineOptions& options)
      : module_(module),
        device_(device),
        dtype_(settings.precision.parameters),
        blocks_(declared_parameters(module, options)),
        tp_(mesh.rank(Axis::tp), mesh.size(Axis::tp), {}, settings.split_rows),
        sp_(sequence_parallel_of(settings, mesh)),
        compute_(device.create_stream("measure")),
        beside_(device.create_stream("measure beside")),
        ids_(static_cast<std::size_t>(settings.micro_batch * options.sequence_length)),
        shape_{settings.micro_batch, options.sequence_length} {
    layout_.placement.tensor_parallel_rank = mesh.rank(Axis::tp);
    layout_.placement.tensor_parallel_size = mesh.size(Axis::tp);
    const ParamLayout whole(blocks_, layout_);
    pipeline_.stages = static_cast<int>(blocks_.size());
    bounds_.resize(blocks_.size() + 1);
    std::iota(bounds_.begin(), bounds_.end(), 0);
    backward_down_to_ = stage_of(whole).backward_down_to;
    borders_ = infer_borders(module, whole, {bounds_.begin() + 1, bounds_.end() - 1}, dtype_, tp_,
                             sp_, shape_[0], shape_[1]);
  }

  /// The block as the only one of a stage.
  std::int64_t of(int block) {
    const StageBlocks stage = stage_blocks(pipeline_, bounds_, backward_down_to_, block);
    const ParamLayout layout({blocks_[static_cast<std::size_t>(block)]}, layout_);
    DryParameters parameters(layout, dtype_, device_);
    parameters.fill_zero(*compute_);
    StageLinks links(*beside_, *beside_);
    BlockRunner runner(module_, parameters, device_, *compute_,
                       {.dtype = dtype_, .stage = stage, .links = &links, .tp = tp_, .sp = sp_});
    const std::vector<Op> ops =
        with_tiles(stage_ops({{.kind = TaskKind::forward}, {.kind = TaskKind::backward}}, stage),
                   layout.tiles());
    std::int64_t least = INT64_MAX;
    for (int run = 0; run < kRuns; ++run) least = std::min(least, time_of(runner, ops));
    return least;
  }

 private:
  std::int64_t time_of(BlockRunner& runner, const std::vector<Op>& ops) {
    const ConstView ids(reinterpret_cast<const std::byte*>(ids_.data()), DType::i32, shape_);
    synchronize();
    const std::int64_t begin = now_ns();
    runner.begin(0, {.tokens = ids, .targets = ids, .borders = &borders_});
    for (const Op& op : ops) runner.run(op);
    synchronize();
    return now_ns() - begin;
  }
  void synchronize() {
    compute_->synchronize();
    beside_->synchronize();
  }

  const Module& module_;
  Device& device_;
  const DType dtype_;
  const std::vector<std::vector<ParameterSpec>> blocks_;
  const TensorParallel tp_;
  const SequenceParallel sp_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> beside_;
  const std::vector<std::int32_t> ids_;
  const Shape shape_;
  LayoutOptions layout_;
  PipelineShape pipeline_;
  std::vector<int> bounds_;
  int backward_down_to_ = 0;
  Borders borders_;
};

void require_measurable(const EngineOptions& options) {
  if (options.plan_only)
    throw ConfigError("pipeline.partition",
                      "is by time, and a dry run measures none; leave the dry run out, or give "
                      "parameters, uniform, or the list that a run by time prints");
  if (options.sequence_length > 0) return;
  throw ConfigError("pipeline.partition",
                    "is by time, and EngineOptions::sequence_length, which says of what "
                    "micro-batches, is not set; set it, or give another partition");
}

/// For people: what the slowest segment takes beside the mean of all.
std::string describe_balance(const std::vector<PartitionBlock>& blocks,
                             const std::vector<int>& bounds) {
  std::int64_t slowest = 0, total = 0;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    std::int64_t time = 0;
    for (int block = bounds[i]; block < bounds[i + 1]; ++block)
      time += blocks[static_cast<std::size_t>(block)].nanoseconds;
    slowest = std::max(slowest, time);
    total += time;
  }
  const auto segments = static_cast<double>(bounds.size() - 1);
  const auto over = static_cast<double>(slowest) * segments / static_cast<double>(total) - 1;
  return concat("the slowest segment takes ", slowest / 1000, " us a micro-batch, ",
                static_cast<int>(100 * over + 0.5), "% over the mean");
}

}  // namespace

std::vector<std::int64_t> measure_blocks(const TrainSettings& settings, const Module& module,
                                         const Mesh& mesh, Device& device,
                                         const EngineOptions& options) {
  Measurement measurement(settings, module, mesh, device, options);
  std::vector<std::int64_t> times;
  for (int block = 0; block < static_cast<int>(module.blocks().size()); ++block)
    times.push_back(measurement.of(block));
  return times;
}

PartitionChoice measured_partition(const TrainSettings& settings, const Module& module,
                                   const Mesh& mesh, Device& device, const EngineOptions& options) {
  const PartitionChoice& asked = settings.pipeline.partition;
  if (asked.method != PartitionMethod::time || mesh.size(Axis::pp) == 1) return asked;
  require_measurable(options);
  std::vector<PartitionBlock> blocks;
  for (const std::string& name : names_of_blocks(module)) blocks.push_back({.name = name});
  const int segments = pipeline_shape(settings.pipeline.schedule, mesh.size(Axis::pp),
                                      settings.pipeline.virtual_stages)
                           .segments();
  partition_blocks({.method = PartitionMethod::uniform}, blocks, segments);  // enough of them
  std::vector<std::int64_t> times;
  fail_together(mesh.world(), [&] {
    if (mesh.leads()) times = measure_blocks(settings, module, mesh, device, options);
  });
  const std::string mine(reinterpret_cast<const char*>(times.data()),
                         times.size() * sizeof(std::int64_t));
  const std::string told = mesh.world().exchange(mine).front();
  for (std::size_t i = 0; i < blocks.size(); ++i)
    std::memcpy(&blocks[i].nanoseconds, told.data() + i * sizeof(std::int64_t),
                sizeof(std::int64_t));
  const std::vector<int> bounds = partition_blocks(asked, blocks, segments);
  PartitionChoice chosen = given_partition(bounds);
  if (mesh.leads())
    log_info(concat("partition by time: ", describe(chosen), " (", describe_balance(blocks, bounds),
                    "); --partition ", describe(chosen), " has it again without measuring"));
  return chosen;
}

}  // namespace zero3d
