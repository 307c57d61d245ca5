#include "zero3d/engine/block_runner.h"

#include <algorithm>
#include <cstring>
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
  BlockSpan(Stream& compute, int rank, const Op& op, const StageBlocks& stage)
      : compute_(compute), rank_(rank), stage_(stage), op_(op) {
    if (!Tracer::enabled()) return;
    begin_ = std::make_shared<std::int64_t>(0);
    compute_.host_task("span", {}, [begin = begin_] { *begin = now_ns(); });
  }
  BlockSpan(const BlockSpan&) = delete;
  BlockSpan& operator=(const BlockSpan&) = delete;
  ~BlockSpan() {
    if (!begin_) return;
    try {
      const char* work = op_.kind == OpKind::forward     ? "forward"
                         : op_.kind == OpKind::recompute ? "recompute"
                                                         : "backward";
      std::string name = concat(work, " block ", stage_.block_in_model(op_.block));
      if (op_.tile > 0) name += concat(" tile ", op_.tile);
      if (!stage_.chunks.empty()) name += concat(" of micro-batch ", op_.micro_batch);
      compute_.host_task("span", {}, [begin = begin_, name = std::move(name), rank = rank_] {
        Tracer::add({name, "blocks", rank, *begin, now_ns(), 0});
      });
    } catch (...) {  // a failed stream reports itself where it is waited for
    }
  }

 private:
  Stream& compute_;
  int rank_;
  const StageBlocks& stage_;
  Op op_;
  std::shared_ptr<std::int64_t> begin_;
};

std::int64_t elements(const Tensor& tensor) { return tensor.defined() ? tensor.numel() : 0; }

/// One for each input; `inputs` are their elements.
void require_gradients(const Block& block, const Values& gradients,
                       const std::vector<std::int64_t>& inputs) {
  if (gradients.size() != inputs.size()) {
    throw_invalid(concat("block '", block.name(), "' returned ", gradients.size(),
                         " gradients from backward_inputs for its ", inputs.size(),
                         " inputs; return one for each, undefined for an input without one"));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!gradients[i].defined() || gradients[i].numel() == inputs[i]) continue;
    throw_invalid(concat("block '", block.name(), "' returned a gradient of ", gradients[i].numel(),
                         " elements for its input ", i, ", which has ", inputs[i]));
  }
}

/// Of the last block: a loss where it got targets, else logits.
void require_outputs(const BatchInput& input, const Values& outputs) {
  const bool one = outputs.size() == 1 && outputs[0].defined();
  if (input.targets.defined()) {
    if (one && outputs[0].dtype() == DType::f32 && outputs[0].numel() == 2) return;
    throw_invalid(
        "the module's last block must return one fp32 tensor of two elements, (sum of losses, "
        "number of targets)");
  }
  const std::int64_t sequences = input.tokens.shape()[0], tokens = input.tokens.numel();
  if (one && outputs[0].shape().rank() == 2 &&
      (outputs[0].shape()[0] == tokens || outputs[0].shape()[0] == sequences))
    return;
  throw_invalid(
      concat("without targets the module's last block must return one tensor of logits, [", tokens,
             " tokens, vocabulary] or, of the last token of each sequence, [", sequences,
             ", vocabulary]"));
}

}  // namespace

BlockRunner::BlockRunner(const Module& module, ParameterAccess& parameters, Device& device,
                         Stream& compute, const RunnerOptions& options)
    : parameters_(parameters),
      device_(device),
      compute_(compute),
      options_(options),
      kept_inputs_(device, compute, options.host,
                   options.splits_kept ? options.tp : TensorParallel()) {
  for (int index = 0; index < options.stage.blocks; ++index) {
    const auto in_model = static_cast<std::size_t>(options.stage.block_in_model(index));
    blocks_.push_back(module.blocks()[in_model].get());
    std::vector<bool>& adds = adds_gradient_.emplace_back();
    int& tiles = tiles_.emplace_back(1);
    for (const ParameterSpec& spec : blocks_.back()->parameters()) {
      adds.push_back(spec.adds_gradient);
      tiles = std::max(tiles, spec.tile + 1);
    }
  }
}

BlockRunner::~BlockRunner() {
  for (auto& [micro_batch, run] : running_) abandon_arrivals(run);
}

void BlockRunner::begin(int micro_batch, const BatchInput& input) {
  if (const auto found = running_.find(micro_batch); found != running_.end())
    abandon_arrivals(found->second);
  std::erase_if(kept_, [&](const auto& entry) { return entry.first.second == micro_batch; });
  kept_inputs_.drop(micro_batch);
  MicroBatchRun run;
  run.input = input;
  if (!input.whole) run.sp = options_.sp.of(input.tokens.shape()[1]);
  running_.insert_or_assign(micro_batch, std::move(run));
}

void BlockRunner::run(const Op& op) {
  const auto found = running_.find(op.micro_batch);
  ZERO3D_CHECK(found != running_.end(), "an operation of a micro-batch that has not begun");
  MicroBatchRun& run = found->second;
  switch (op.kind) {
    case OpKind::load_batch:
      run.values.clear();
      run.values.push_back(load(run.input.tokens, run));
      run.values.push_back(load(run.input.targets, run));
      return;
    case OpKind::receive_values:
    case OpKind::receive_gradients:
      return receive(op, run);
    case OpKind::send_values:
    case OpKind::send_gradients:
      return send(op, run);
    case OpKind::forward:
      return forward(op, run);
    case OpKind::recompute:
      return recompute(op, run);
    case OpKind::fetch_inputs:
      return kept_inputs_.fetch(op.block, op.micro_batch);
    case OpKind::loss_gradient:
      return loss_gradient(run);
    case OpKind::backward:
    case OpKind::backward_inputs:
    case OpKind::backward_weights:
      return backward(op, run);
  }
}

Values BlockRunner::take_outputs(int micro_batch) {
  Values outputs = std::move(running_.at(micro_batch).values);
  require_outputs(running_.at(micro_batch).input, outputs);
  running_.erase(micro_batch);
  return outputs;
}

BlockContext BlockRunner::context(const Op& op, const MicroBatchRun& run) const {
  BlockContext context;
  context.block_ = blocks_[static_cast<std::size_t>(op.block)];
  context.stream_ = &compute_;
  context.memory_ = &device_.memory();
  context.dtype_ = options_.dtype;
  context.training_ = run.input.trains;
  context.saves_ = run.input.trains;
  context.random_ = run.input.key;
  context.tp_ = run.input.trains ? options_.tp : options_.evaluation_tp;
  context.sp_ = run.sp;
  context.tile_ = op.tile;
  context.dry_run_ = device_.kind() == DeviceKind::meta;
  return context;
}

/// Copies tokens or targets to the device, this rank's part of each sample; the caller's memory may
/// change as soon as this returns.
Tensor BlockRunner::load(const ConstView& source, const MicroBatchRun& run) {
  if (!source.defined()) return {};
  const std::int64_t samples = source.shape()[0], length = source.shape()[1];
  const SequencePart part = run.sp.alone() ? SequencePart{0, length} : run.sp.mine();
  const Shape shape{samples, part.count};
  Tensor loaded(device_.memory(), compute_, DType::i32, shape, Category::activations);
  if (device_.kind() == DeviceKind::meta) return loaded;  // addresses have no contents
  Tensor host(device_.memory(Tier::pinned), kNoStream, DType::i32, shape, Category::batches);
  for (std::int64_t i = 0; i < samples; ++i) {
    const ConstView mine = source.flat(i * length + part.first, part.count);
    std::memcpy(host.view().flat(i * part.count, part.count).data(), mine.data(), mine.bytes());
  }
  device_.copy(compute_, loaded, host);
  Event copied;
  compute_.record(copied);
  host.used_on(copied);
  return loaded;
}

void BlockRunner::forward(const Op& op, MicroBatchRun& run) {
  if (op.tile == 0) take_arrivals(op, run);
  const bool backward_follows = run.input.trains && op.block >= options_.stage.backward_down_to;
  if (backward_follows && op.tile == 0) {
    ++run.to_come;
    if (keeps_inputs(op.keep))
      kept_inputs_.keep(op.block, op.micro_batch, run.values, op.keep == Keep::inputs_on_host);
    if (op.keep == Keep::nothing) run.kept_nothing.insert(op.block);
  }
  run_block(op, run, backward_follows && op.keep == Keep::for_backward);
  const bool ends_model =
      op.block + 1 == static_cast<int>(blocks_.size()) && options_.stage.ends_model();
  if (run.input.trains && ends_model && is_last_tile(op)) finish_forward(run);
}

void BlockRunner::recompute(const Op& op, MicroBatchRun& run) {
  if (op.tile == 0 && kept_inputs_.has(op.block, op.micro_batch))
    run.values = kept_inputs_.take(op.block, op.micro_batch);
  run_block(op, run, true);
  if (is_last_tile(op) && !run.kept_nothing.contains(op.block + 1)) run.values.clear();
}

void BlockRunner::run_block(const Op& op, MicroBatchRun& run, bool saves) {
  Block& block = *blocks_[static_cast<std::size_t>(op.block)];
  const std::pair key(op.block, op.micro_batch);
  if (op.tile == 0) kept_.insert_or_assign(key, Kept());
  Kept& kept = kept_.at(key);
  if (op.tile == 0)
    for (const Tensor& value : run.values) kept.inputs.push_back(elements(value));
  BlockContext ctx = context(op, run);
  ctx.saves_ = saves;
  ctx.parameters_ = parameters_.acquire(op);
  {
    const BlockSpan span(compute_, options_.rank, op, options_.stage);
    run.values = block.forward(ctx, std::move(run.values), kept.saved);
  }
  if (run.values.empty())
    throw_invalid(concat("block '", block.name(), "' returned no values from forward"));
  parameters_.release(op);
  if (!saves && is_last_tile(op)) kept_.erase(key);
}

void BlockRunner::finish_forward(MicroBatchRun& run) {
  require_outputs(run.input, run.values);
  run.loss = std::move(run.values[0]);
  run.values.clear();
  last_loss_ = Readback(compute_, run.loss);
}

void BlockRunner::loss_gradient(MicroBatchRun& run) {
  parameters_.add_loss(run.loss);
  run.loss.reset();
  Tensor gradient(device_.memory(), compute_, DType::f32, Shape{1}, Category::activations);
  kernels::fill(compute_, gradient, run.input.loss_gradient);
  run.gradients.push_back(std::move(gradient));
}

void BlockRunner::backward(const Op& op, MicroBatchRun& run) {
  if (begins_gradients(op.kind) && is_last_tile(op)) take_arrivals(op, run);
  if (!std::exchange(run.in_backward, true))
    parameters_.begin_backward(op.micro_batch, run.input.last);
  Block& block = *blocks_[static_cast<std::size_t>(op.block)];
  const std::vector<bool>& adds = adds_gradient_[static_cast<std::size_t>(op.block)];
  Kept& kept = kept_.at({op.block, op.micro_batch});
  BlockContext ctx = context(op, run);
  ctx.parameters_ = parameters_.acquire(op);
  ctx.wants_input_gradient_ = options_.stage.wants_input_gradient(op.block);
  const std::vector<GradientTarget> targets = parameters_.gradients(op);
  kept.gradients.resize(static_cast<std::size_t>(tiles_[static_cast<std::size_t>(op.block)]));
  TileGradients& gradients = kept.gradients[static_cast<std::size_t>(op.tile)];
  gradients.written.resize(targets.size());
  gradients.to_add.resize(targets.size());
  ctx.written_ = std::move(gradients.written);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const GradientTarget& target = targets[i];
    View view = target.view;
    if (view.defined() && target.accumulate && !adds[i]) {
      Tensor& to_add = gradients.to_add[i];
      if (!to_add.defined()) to_add = ctx.allocate(view.shape());
      view = to_add.view();
    }
    ctx.gradients_.push_back(view);
    ctx.trains_.push_back(target.trains);
    ctx.accumulate_.push_back(target.accumulate && adds[i]);
  }
  {
    const BlockSpan span(compute_, options_.rank, op, options_.stage);
    if (begins_gradients(op.kind)) {
      run.gradients = block.backward_inputs(ctx, std::move(run.gradients), kept.saved);
      if (ctx.wants_input_gradient_ && op.tile == 0)
        require_gradients(block, run.gradients, kept.inputs);
    }
    if (ends_gradients(op.kind)) block.backward_weights(ctx, kept.saved);
  }
  gradients.written = std::move(ctx.written_);
  if (ends_gradients(op.kind)) finish_gradients(ctx, targets, gradients);
  if (ends_gradients(op.kind) && op.tile == 0) kept.saved = Saved();
  parameters_.release(op);
  if (ends_gradients(op.kind) && op.tile == 0) forget(op);
}

/// Gradients that the block did not write are zero, and second ones of tied parameters are added.
void BlockRunner::finish_gradients(const BlockContext& context,
                                   const std::vector<GradientTarget>& targets,
                                   TileGradients& gradients) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!gradients.written[i] && context.gradients_[i].defined() && !context.accumulate_[i])
      device_.fill_zero(compute_, context.gradients_[i]);
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (gradients.to_add[i].defined()) kernels::add(compute_, gradients.to_add[i], targets[i].view);
  }
  gradients = TileGradients();
}

/// The micro-batch ends with its last backward, or when what that gave has been sent.
void BlockRunner::forget(const Op& op) {
  kept_.erase({op.block, op.micro_batch});
  const auto run = running_.find(op.micro_batch);
  --run->second.to_come;
  if (!(op.kind == OpKind::backward && gives_back(op))) end_if_over(op.micro_batch);
}

bool BlockRunner::gives_back(const Op& op) const {
  const StageBlocks& stage = options_.stage;
  if (stage.chunks.empty()) return false;
  const Chunk& chunk = stage.chunk(op.chunk);
  return op.block == chunk.begin && chunk.gives_back && chunk.from != stage.stage;
}

void BlockRunner::end_if_over(int micro_batch) {
  const auto run = running_.find(micro_batch);
  if (run->second.to_come == 0) running_.erase(run);
}

}  // namespace zero3d
