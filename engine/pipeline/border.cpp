#include "zero3d/engine/pipeline/border.h"

#include <algorithm>
#include <set>

#include "zero3d/device/device.h"
#include "zero3d/engine/block_runner.h"
#include "zero3d/engine/dry_run.h"
#include "zero3d/engine/tiling.h"
#include "zero3d/engine/zero/bucket_plan.h"

namespace zero3d {
namespace {

class Inference {
 public:
  Inference(const Module& module, const ParamLayout& layout, DType dtype, const TensorParallel& tp,
            const SequenceParallel& sp, std::int64_t batch, std::int64_t sequence)
      : device_(make_meta_device([this](const void* data) { look_at(data); })),
        compute_(device_->create_stream("compute")),
        parameters_(layout, dtype, *device_),
        stage_(stage_of(layout)),
        tiles_(layout.tiles()),
        runner_(
            module, parameters_, *device_, *compute_,
            {.dtype = dtype, .stage = stage_, .tp = tp.without_links(), .sp = sp.without_links()}) {
    const Tensor ids(device_->memory(), kNoStream, DType::i32, Shape{batch, sequence},
                     Category::batches);
    runner_.begin(0, {.tokens = ids, .targets = ids});
  }

  Borders run(const std::vector<int>& first_blocks) {
    runner_.run({.kind = OpKind::load_batch});
    tokens_ = runner_.values(0)[0].view().data();
    targets_ = runner_.values(0)[1].view().data();
    const std::set<int> at(first_blocks.begin(), first_blocks.end());
    for (int block = 0; block < stage_.blocks; ++block) {
      if (at.contains(block)) end_segment(block);
      run_tiles(forward_of(block));
    }
    end_segment(stage_.blocks);
    runner_.run({.kind = OpKind::loss_gradient, .block = stage_.blocks - 1});
    for (int block = stage_.blocks - 1; block >= stage_.backward_down_to; --block) {
      run_tiles(backward_of(block));
      if (at.contains(block) && block > stage_.backward_down_to)
        add_gradients(borders_.at(block), runner_.gradients(0));
    }
    return std::move(borders_);
  }

 private:
  void run_tiles(const Op& op) {
    for (const Op& tile : with_tiles({&op, 1}, tiles_)) runner_.run(tile);
  }

  void look_at(const void* data) {
    if (data == tokens_) read_tokens_ = true;
    if (data == targets_) read_targets_ = true;
  }

  /// What the segment that ends before `block` has looked at goes into its own border, and the next
  /// one begins.
  void end_segment(int block) {
    if (!borders_.empty()) {
      for (BorderValue& value : borders_.rbegin()->second) {
        value.used = (value.source == BorderValue::Source::tokens && read_tokens_) ||
                     (value.source == BorderValue::Source::targets && read_targets_);
      }
    }
    read_tokens_ = read_targets_ = false;
    if (block < stage_.blocks) borders_.emplace(block, border_of(runner_.values(0)));
  }

  Border border_of(const Values& values) const {
    Border border;
    for (const Tensor& tensor : values) {
      BorderValue& value = border.emplace_back();
      if (!tensor.defined()) continue;
      value.dtype = tensor.dtype();
      value.shape = tensor.shape();
      const void* const data = tensor.view().data();
      value.source = data == tokens_    ? BorderValue::Source::tokens
                     : data == targets_ ? BorderValue::Source::targets
                                        : BorderValue::Source::sent;
    }
    return border;
  }

  static void add_gradients(Border& border, const Values& gradients) {
    for (std::size_t i = 0; i < border.size(); ++i) {
      border[i].has_gradient =
          border[i].source == BorderValue::Source::sent && gradients[i].defined();
      if (border[i].has_gradient) border[i].gradient_dtype = gradients[i].dtype();
    }
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> compute_;
  DryParameters parameters_;
  StageBlocks stage_;
  std::vector<int> tiles_;
  BlockRunner runner_;
  const void* tokens_ = nullptr;
  const void* targets_ = nullptr;
  bool read_tokens_ = false;
  bool read_targets_ = false;
  Borders borders_;
};

}  // namespace

Borders infer_borders(const Module& module, const ParamLayout& layout,
                      const std::vector<int>& first_blocks, DType dtype, const TensorParallel& tp,
                      const SequenceParallel& sp, std::int64_t batch, std::int64_t sequence) {
  return Inference(module, layout, dtype, tp, sp, batch, sequence).run(first_blocks);
}

bool uses_batch(const Border& border) {
  return std::any_of(border.begin(), border.end(),
                     [](const BorderValue& value) { return value.used; });
}

}  // namespace zero3d
