#include "zero3d/engine/dry_run.h"

#include <algorithm>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/engine/block_runner.h"
#include "zero3d/engine/tiling.h"
#include "zero3d/engine/zero/bucket_plan.h"

namespace zero3d {
namespace {

/// Parameters and gradients as addresses.
class DryParameters final : public ParameterAccess {
 public:
  DryParameters(const ParamLayout& layout, DType dtype, Device& device) : layout_(layout) {
    for (const LayoutParameter& parameter : layout.parameters()) {
      values_.emplace_back(device.memory(), kNoStream, dtype, parameter.placement.stored,
                           Category::parameters);
      gradients_.emplace_back(device.memory(), kNoStream, dtype, parameter.placement.stored,
                              Category::gradients);
    }
  }

  std::vector<ConstView> acquire(const Op& op) override {
    std::vector<ConstView> views;
    const int part = layout_.part(op.block, op.tile);
    for (int index : layout_.block_parameters(op.block)) {
      views.push_back(layout_.parameter(index).used_in(part)
                          ? values_[static_cast<std::size_t>(index)].view()
                          : ConstView());
    }
    return views;
  }
  void begin_backward(int, bool) override {}
  std::vector<GradientTarget> gradients(const Op& op) override {
    return gradient_targets(layout_, op, [this](const LayoutParameter&, int index) {
      return gradients_[static_cast<std::size_t>(index)].view();
    });
  }
  void release(const Op&) override {}
  void add_loss(const ConstView&) override {}

 private:
  const ParamLayout& layout_;
  std::vector<Tensor> values_;
  std::vector<Tensor> gradients_;
};

}  // namespace

ActivationBytes peak_activation_bytes(const Module& module, const ParamLayout& layout,
                                      std::span<const Op> training, DType dtype, std::int64_t batch,
                                      std::int64_t sequence) {
  const std::unique_ptr<Device> device = make_meta_device();
  // The host tier of addresses too: a run may keep more than this machine's memory holds.
  const std::unique_ptr<Device> host = make_meta_device();
  const std::unique_ptr<Stream> compute = device->create_stream("compute");
  DryParameters parameters(layout, dtype, *device);
  // Addresses: a batch may be larger than this machine's memory.
  const Tensor ids(device->memory(), kNoStream, DType::i32, Shape{batch, sequence},
                   Category::batches);
  const std::int64_t fixed = device->memory().use().current;
  const StageBlocks stage = stage_of(layout);
  RunnerOptions options{dtype, 0, stage.backward_down_to, {}};
  options.host = {&host->memory(), compute.get(), compute.get()};
  BlockRunner runner(module, parameters, *device, *compute, options);

  BatchInput input;
  input.tokens = input.targets = ids;
  const auto run = [&](std::span<const Op> ops) {
    for (const Op& op : ops) {
      if (op.kind == OpKind::load_batch) runner.begin(op.micro_batch, input);
      runner.run(op);
    }
  };
  const std::vector<Op> step = without_repetitions(training);
  run(step);
  run(step);  // now beside what the step before left
  input.trains = false;
  run(with_tiles(plan_evaluation(stage), layout.tiles()));
  runner.take_outputs(0);
  return {device->memory().use().peak - fixed, host->memory().use().peak};
}

}  // namespace zero3d
