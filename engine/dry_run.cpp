#include "zero3d/engine/dry_run.h"

#include <algorithm>
#include <set>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/engine/block_runner.h"
#include "zero3d/engine/tiling.h"
#include "zero3d/engine/zero/bucket_plan.h"

namespace zero3d {

DryParameters::DryParameters(const ParamLayout& layout, DType dtype, Device& device)
    : layout_(layout) {
  for (const LayoutParameter& parameter : layout.parameters()) {
    values_.emplace_back(device.memory(), kNoStream, dtype, parameter.placement.stored,
                         Category::parameters);
    gradients_.emplace_back(device.memory(), kNoStream, dtype, parameter.placement.stored,
                            Category::gradients);
  }
}

void DryParameters::fill_zero(Stream& stream) {
  for (const Tensor& tensor : values_) stream.device().fill_zero(stream, tensor.view());
  for (const Tensor& tensor : gradients_) stream.device().fill_zero(stream, tensor.view());
}

std::vector<ConstView> DryParameters::acquire(const Op& op) {
  std::vector<ConstView> views;
  const int part = layout_.part(op.block, op.tile);
  for (int index : layout_.block_parameters(op.block)) {
    views.push_back(layout_.parameter(index).used_in(part)
                        ? values_[static_cast<std::size_t>(index)].view()
                        : ConstView());
  }
  return views;
}

std::vector<GradientTarget> DryParameters::gradients(const Op& op) {
  return gradient_targets(layout_, op, [this](const LayoutParameter&, int index) {
    return gradients_[static_cast<std::size_t>(index)].view();
  });
}

ActivationBytes peak_activation_bytes(const Module& module, const ParamLayout& layout,
                                      std::span<const Op> training, DType dtype, std::int64_t batch,
                                      std::int64_t sequence, const DryRunRank& rank,
                                      const StageBlocks& stage, const Borders& borders,
                                      const Borders& evaluation_borders) {
  const std::unique_ptr<Device> device = make_meta_device();
  // The host tier of addresses too: a run may keep more than this machine's memory holds.
  const std::unique_ptr<Device> host = make_meta_device();
  const std::unique_ptr<Stream> compute = device->create_stream("compute");
  DryParameters parameters(layout, dtype, *device);
  // Addresses: a batch may be larger than this machine's memory.
  const Tensor ids(device->memory(), kNoStream, DType::i32, Shape{batch, sequence},
                   Category::batches);
  const std::int64_t fixed = device->memory().use().current;
  RunnerOptions options{.dtype = dtype, .stage = stage};
  options.tp = rank.tp.without_links();
  options.splits_kept = rank.splits_kept;
  options.sp = rank.sp.without_links();
  options.evaluation_tp = options.tp.with_whole_sequences();
  options.host = {&host->memory(), compute.get(), compute.get()};
  StageLinks links(*compute, *compute);  // what is received or sent takes its memory all the same
  options.links = &links;
  BlockRunner runner(module, parameters, *device, *compute, options);

  BatchInput input;
  input.tokens = input.targets = ids;
  input.borders = &borders;
  const auto run = [&](std::span<const Op> ops) {
    std::set<int> begun;
    for (const Op& op : ops) {
      if (begun.insert(op.micro_batch).second) runner.begin(op.micro_batch, input);
      runner.run(op);
    }
  };
  const std::vector<Op> step = without_repetitions(training);
  run(step);
  run(step);  // now beside what the step before left
  input.trains = false;
  input.borders = &evaluation_borders;
  run(with_tiles(plan_evaluation(stage), layout.tiles()));
  if (stage.ends_model()) runner.take_outputs(0);
  return {device->memory().use().peak - fixed, host->memory().use().peak};
}

ActivationBytes peak_activation_bytes(const Module& module, const ParamLayout& layout,
                                      std::span<const Op> training, DType dtype, std::int64_t batch,
                                      std::int64_t sequence, const DryRunRank& rank) {
  return peak_activation_bytes(module, layout, training, dtype, batch, sequence, rank,
                               stage_of(layout), {}, {});
}

}  // namespace zero3d
