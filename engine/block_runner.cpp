#include "zero3d/engine/block_runner.h"

#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/kernels/elementwise.h"

namespace zero3d {
namespace {

/// While a trace is recorded: a span over all the work of one block, on a line of its own beside
/// the compute stream's.
class BlockSpan {
 public:
  BlockSpan(ShardedModel& model, const char* phase, int block)
      : model_(model), name_(concat(phase, " block ", block)) {
    if (!Tracer::enabled()) return;
    begin_ = std::make_shared<std::int64_t>(0);
    model_.compute().launch("span", {}, [begin = begin_] { *begin = now_ns(); });
  }
  BlockSpan(const BlockSpan&) = delete;
  BlockSpan& operator=(const BlockSpan&) = delete;
  ~BlockSpan() {
    if (!begin_) return;
    try {
      model_.compute().launch("span", {}, [begin = begin_, name = name_, rank = model_.rank()] {
        Tracer::add({name, "blocks", rank, *begin, now_ns(), 0});
      });
    } catch (...) {  // a failed stream reports itself where it is waited for
    }
  }

 private:
  ShardedModel& model_;
  std::string name_;
  std::shared_ptr<std::int64_t> begin_;
};

}  // namespace

BlockRunner::BlockRunner(const Module& module, ShardedModel& model)
    : module_(module),
      model_(model),
      saved_(module.blocks().size()),
      backward_down_to_(model.first_trainable_block()) {}

BlockContext BlockRunner::context(const RandomKey& key, bool training, bool saves) const {
  BlockContext context;
  context.stream_ = &model_.compute();
  context.memory_ = &model_.device().memory();
  context.dtype_ = model_.dtype();
  context.training_ = training;
  context.saves_ = saves;
  context.random_ = key;
  return context;
}

Values BlockRunner::forward(Values values, const RandomKey& key, bool training, bool saves) {
  const auto& blocks = module_.blocks();
  for (std::size_t index = 0; index < blocks.size(); ++index) {
    const int block = static_cast<int>(index);
    BlockContext ctx = context(key, training, saves);
    ctx.parameters_ = model_.acquire(block, Phase::forward);
    saved_[index] = Saved();
    {
      const BlockSpan span(model_, "forward", block);
      values = blocks[index]->forward(ctx, std::move(values), saved_[index]);
    }
    model_.release(block, Phase::forward);
    if (!saves) saved_[index] = Saved();
  }
  has_saved_ = saves;
  return values;
}

void BlockRunner::backward(Tensor loss_gradient, const RandomKey& key) {
  ZERO3D_CHECK(has_saved_, "backward without a forward that saved");
  has_saved_ = false;
  Values gradients;
  gradients.push_back(std::move(loss_gradient));
  for (int block = static_cast<int>(module_.blocks().size()) - 1; block >= backward_down_to_;
       --block) {
    run_backward(block, gradients, key);
  }
  for (Saved& saved : saved_) saved = Saved();
}

void BlockRunner::run_backward(int index, Values& gradients, const RandomKey& key) {
  Block& block = *module_.blocks()[static_cast<std::size_t>(index)];
  Saved& saved = saved_[static_cast<std::size_t>(index)];
  BlockContext ctx = context(key, true, true);
  ctx.parameters_ = model_.acquire(index, Phase::backward);
  ctx.wants_input_gradient_ = index > backward_down_to_;
  const std::vector<ParameterSpec> specs = block.parameters();
  const std::vector<ShardedModel::GradientTarget> targets = model_.gradients(index);
  std::vector<std::pair<Tensor, View>>
      to_add;  // second uses of tied parameters by blocks that always write
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const bool adds = targets[i].accumulate && specs[i].adds_gradient;
    View view = targets[i].view;
    if (view.defined() && targets[i].accumulate && !adds) {
      to_add.emplace_back(ctx.allocate(view.shape()), view);
      view = to_add.back().first.view();
    }
    ctx.gradients_.push_back(view);
    ctx.accumulate_.push_back(adds);
  }
  ctx.requested_.assign(targets.size(), false);
  {
    const BlockSpan span(model_, "backward", index);
    gradients = block.backward_inputs(ctx, std::move(gradients), saved);
    block.backward_weights(ctx, saved);
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!ctx.requested_[i] && ctx.gradients_[i].defined() && !ctx.accumulate_[i]) {
      model_.device().fill_zero(model_.compute(), ctx.gradients_[i]);
    }
  }
  for (const auto& [temporary, view] : to_add) kernels::add(model_.compute(), temporary, view);
  saved = Saved();
  model_.ready(index);
  model_.release(index, Phase::backward);
}

}  // namespace zero3d
