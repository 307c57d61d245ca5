#include "zero3d/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/random.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/engine/block_runner.h"
#include "zero3d/engine/budget_fit.h"
#include "zero3d/engine/memory_fit.h"
#include "zero3d/engine/mesh_problems.h"
#include "zero3d/engine/pipeline/measured_partition.h"
#include "zero3d/parallel/comm/launcher.h"

namespace zero3d {
namespace {

/// The operations before the first of backward.
std::span<const Op> forward_part(std::span<const Op> ops) {
  const auto end = std::find_if(ops.begin(), ops.end(),
                                [](const Op& op) { return op.kind == OpKind::loss_gradient; });
  return ops.first(static_cast<std::size_t>(end - ops.begin()));
}

/// The second also when the first throws; throws what failed first.
void run_both(const std::function<void()>& first, const std::function<void()>& second) {
  std::exception_ptr failure;
  for (const std::function<void()>* part : {&first, &second}) {
    try {
      (*part)();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

/// Where two lists of items separated by "; " part: "item, not item".
std::string first_difference(std::string_view mine, std::string_view other) {
  const auto item = [](std::string_view text, std::size_t at) {
    const std::size_t end = text.find("; ", at);
    return text.substr(at, end == std::string_view::npos ? end : end - at);
  };
  std::size_t begin = 0;
  for (std::size_t i = 0; i < mine.size() && i < other.size() && mine[i] == other[i]; ++i) {
    if (mine.substr(i).starts_with("; ")) begin = i + 2;
  }
  return concat(begin < mine.size() ? item(mine, begin) : "nothing more", ", not ",
                begin < other.size() ? item(other, begin) : "nothing more");
}

/// Where the block works in tiles.
std::string describe_tile(const ParameterSpec& spec) {
  std::string text;
  if (spec.tile != kEveryTile) text += concat(" in tile ", spec.tile);
  if (!spec.piece.whole())
    text += concat(" at ", spec.piece.first, "+", spec.piece.count, " of dim ", spec.piece.dim);
  return text;
}

/// All ranks must have the same settings and have declared the same whole model, or they would
/// wait for each other in different places.
void require_same_start(const TrainSettings& settings,
                        const std::vector<std::vector<ParameterSpec>>& blocks,
                        Communicator& world) {
  std::string model = concat(blocks.size(), " blocks");
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    for (const ParameterSpec& spec : blocks[block]) {
      model += concat("; block ", block, " has ", spec.name, " ", to_string(spec.shape),
                      spec.frozen ? " frozen" : "", spec.decay ? "" : " without decay",
                      describe_tile(spec));
    }
  }
  const std::vector<std::string> all = world.exchange(concat(describe(settings), "\n", model));
  const auto part = [&](std::size_t rank, bool of_model) {
    const std::string_view text = all[rank];
    const std::size_t end = text.find('\n');
    return of_model ? text.substr(end + 1) : text.substr(0, end);
  };
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    if (part(rank, false) != part(0, false)) {
      throw ConfigError("", concat("rank ", rank, " has another configuration than rank 0: ",
                                   first_difference(part(rank, false), part(0, false)),
                                   "; give every rank the same file and options"));
    }
    throw_invalid(concat("rank ", rank, " has another model than rank 0: ",
                         first_difference(part(rank, true), part(0, true)),
                         "; give every rank the same model and options"));
  }
}

/// All that stands against it at once.
void require_mesh_fits(const Module& module, const TrainSettings& settings,
                       const Topology& topology) {
  const std::vector<std::string> problems = mesh_problems(module, settings, topology.degrees());
  if (problems.empty()) return;
  std::string message = concat("the model cannot be cut over ", topology.factors(), ":");
  for (const std::string& problem : problems) message += concat("\n  ", problem);
  throw ConfigError("", message);
}

std::uint64_t hash_of(const ConstView& values, std::uint64_t so_far) {
  if (!values.defined()) return so_far;
  return so_far * 0x9E3779B97F4A7C15u +
         hash_name(reinterpret_cast<const char*>(values.data()), values.bytes());
}

}  // namespace

Engine::Engine(const TrainSettings& settings, const Module& module, const Mesh& mesh,
               Device& device, const EngineOptions& options)
    : settings_(settings), module_(module), mesh_(mesh), device_(device), options_(options) {
  const std::vector<std::vector<ParameterSpec>> blocks = declared_parameters(module, options);
  require_same_start(settings, blocks, mesh.world());
  require_mesh_fits(module, settings, mesh.topology());
  settings_.pipeline.partition = measured_partition(settings, module, mesh, device, options);
  Communicator& tensor = mesh.group(Axis::tp);
  if (tensor.size() > 1) tp_group_ = tensor.split(0, tensor.rank());
  if (tensor.size() > 1 && settings.overlap_tp) tp_beside_ = tensor.split(0, tensor.rank());
  if (Communicator& sequence = mesh.group(Axis::sp); sequence.size() > 1)
    sp_group_ = sequence.split(0, sequence.rank());
  options_.block_names = names_of_blocks(module);
  settings_ =
      fit_to_budgets(settings_, module, mesh, options_, smallest_budget(mesh, device.memory()),
                     smallest_budget(mesh, device.memory(Tier::pinned)));
  model_ = std::make_unique<ShardedModel>(settings_, blocks, mesh, device, options_);
  if (runs_whole_steps() && !settings.managed_accumulation)
    throw ConfigError("", "a step that is run as a whole needs managed accumulation");
  if (const int stages = mesh.size(Axis::pp); mesh.leads() && settings.accumulation < stages) {
    log_warning(concat(settings.accumulation, " micro-batches of a step on ", stages,
                       " stages leave some of them waiting; raise gradient_accumulation_steps "
                       "(they wait ",
                       static_cast<int>(100 * model_->plan().bubble(settings) + 0.5),
                       "% of their time)"));
  }
  window_.emplace(model_->state(), settings.accumulation, settings.managed_accumulation);
  const RankStreams& streams = model_->streams();
  if (model_->plan().pipeline.whole && !options.plan_only) {
    links_ = std::make_unique<StageLinks>(*streams.send, *streams.receive,
                                          model_->plan().pipeline.shape, mesh);
  }
  runner_ = std::make_unique<BlockRunner>(
      module, *model_, device, model_->compute(),
      RunnerOptions{model_->plan().dtype(),
                    mesh.world().rank(),
                    model_->plan().stage,
                    {&device.memory(Tier::pinned), streams.copy_in.get(), streams.copy_out.get()},
                    links_.get(),
                    tensor_parallel(),
                    settings.split_kept,
                    evaluation_tensor_parallel(),
                    sequence_parallel()});
  last_.grad_norm = std::numeric_limits<double>::quiet_NaN();
  if (options.sequence_length > 0) plan_for({settings.micro_batch, options.sequence_length});
  plan_checkpoints();
  last_step_end_ns_ = now_ns();
}

Engine::~Engine() = default;

/// Within what the host has left beside the inputs that passes keep there.
void Engine::plan_checkpoints() {
  const bool asynchronous = options_.checkpoints.saves_asynchronously;
  std::int64_t room = model_->checkpoint_room(asynchronous);
  if (options_.sequence_length > 0)
    room -= activation_bytes({settings_.micro_batch, options_.sequence_length}, false).pinned;
  const std::int64_t bytes =
      checkpoint_bytes(*model_, options_.checkpoints, std::max<std::int64_t>(0, room));
  model_->plan_checkpoints(bytes, asynchronous);
}

ActivationBytes Engine::activation_bytes(const Shape& shape, bool whole) const {
  const ZeroPlan& plan = model_->plan();
  return peak_activation_bytes(
      module_, plan.layout, plan.training, plan.dtype(), shape[0], shape[1],
      {tensor_parallel().without_links(), settings_.split_kept,
       whole ? SequenceParallel() : sequence_parallel()},
      plan.stage, borders(shape, true, whole), borders(shape, false, whole));
}

SequenceParallel Engine::sequence_parallel() const {
  const SequenceParallel dry = sequence_parallel_of(settings_, mesh_);
  return {dry.rank(), dry.size(), sp_group_.get(), dry.grain()};
}

TensorParallel Engine::tensor_parallel() const {
  return {mesh_.rank(Axis::tp),
          mesh_.size(Axis::tp),
          {tp_group_.get(), tp_beside_.get(), model_->streams().tp.get()},
          settings_.split_rows};
}

TensorParallel Engine::evaluation_tensor_parallel() const {
  return tensor_parallel().with_whole_sequences();
}

MemoryEstimate Engine::memory_estimate(std::int64_t batch, std::int64_t sequence) const {
  return with_passes(model_->memory(), model_->plan(), model_->passes(),
                     activation_bytes({batch, sequence}, false), sequence_parallel(), batch,
                     sequence);
}

/// Kept inputs beside what the plan has of host memory.
void Engine::require_host_room(const ActivationBytes& activations) const {
  if (activations.pinned == 0) return;
  MemoryEstimate estimate = model_->memory();
  estimate[Tier::pinned][Category::activations] = activations.pinned;
  estimate.require_within(TrackingResource::kUnlimited, device_.memory(Tier::pinned).budget());
}

/// Refuses what the blocks refuse, by a dry run. The first shape's plan is made by all ranks; what
/// takes more must fit beside it, since other ranks may have nothing new to plan for.
void Engine::plan_for(const Shape& shape, bool whole) {
  const auto holds = [](const Shape& one, const Shape& other) {
    return one[0] >= other[0] && one[1] >= other[1];
  };
  std::vector<Shape>& planned_shapes = whole ? planned_whole_ : planned_shapes_;
  for (const Shape& planned : planned_shapes)
    if (holds(planned, shape)) return;
  const ActivationBytes bytes = activation_bytes(shape, whole);
  if (planned_shapes_.empty() && planned_whole_.empty()) {
    fail_together(mesh_.world(), [&] {
      require_host_room(bytes);
      model_->reserve_activations(bytes.device);
    });
  } else {
    require_host_room(bytes);
    model_->add_activations(bytes.device);
  }
  std::erase_if(planned_shapes, [&](const Shape& planned) { return holds(shape, planned); });
  planned_shapes.push_back(shape);
}

void Engine::require_batch(const MicroBatch& batch) {
  const Shape& shape = batch.tokens.shape();
  if (!batch.tokens.defined() || shape.rank() != 2 || batch.tokens.dtype() != DType::i32 ||
      shape.numel() == 0) {
    throw_invalid(concat("tokens must be int32 [batch, sequence] in host memory, not ",
                         name_of(batch.tokens.dtype()), " ", to_string(shape)));
  }
  if (!batch.targets.defined())
    throw_invalid("a batch needs targets: int32 [batch, sequence], -100 where no loss is taken");
  if (batch.targets.shape() != shape || batch.targets.dtype() != DType::i32) {
    throw_invalid(concat("targets must be int32 ", to_string(shape), " like the tokens, not ",
                         name_of(batch.targets.dtype()), " ", to_string(batch.targets.shape())));
  }
}

/// Before any work of a call begins.
void Engine::accept(std::span<const MicroBatch> batches) {
  model_->require_made();
  for (const MicroBatch& batch : batches) require_batch(batch);
  Shape largest{0, 0};  // with a schedule they may be there at once
  for (const MicroBatch& batch : batches) {
    const Shape& shape = batch.tokens.shape();
    largest = {std::max(largest[0], shape[0]), std::max(largest[1], shape[1])};
    if (!runs_whole_steps()) plan_for(shape);
  }
  if (runs_whole_steps()) plan_for(largest);
}

/// Ranks that share layers or sequences work on one batch: held to that once, with the first.
void Engine::require_same_inputs(const MicroBatch& batch) {
  if (std::exchange(compared_inputs_, true)) return;
  require_same_inputs(batch, Axis::tp,
                      "it shares every layer: give tensor-parallel ranks the same");
  require_same_inputs(batch, Axis::sp,
                      "it shares sequences: give ranks of one sp group the same whole");
}

void Engine::require_same_inputs(const MicroBatch& batch, Axis axis, const char* why) {
  Communicator& group = mesh_.group(axis);
  if (group.size() == 1) return;
  const std::string mine =
      concat(hash_of(batch.targets, hash_of(batch.tokens, 0)), " ", to_string(batch.tokens.shape()),
             " ", batch.first_sample.value_or(-1));
  const std::vector<std::string> all = group.exchange(mine);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const Topology& topology = mesh_.topology();
    const std::vector<int> ranks = topology.group(axis, mesh_.world().rank());
    throw_invalid(concat(mesh_.describe(ranks[rank]), " was given another batch than ",
                         mesh_.describe(ranks[0]), ", with which ", why,
                         " samples (divide the data by dp rank, Mesh::rank(Axis::dp))"));
  }
}

/// The same sample has the same number within the step however ranks divide the batch.
RandomKey Engine::random_key(const MicroBatch& batch, int micro_batch) const {
  RandomKey key;
  key.seed = state().seed;
  key.step = static_cast<std::uint32_t>(state().steps + 1);
  const std::int64_t before = micro_batch * mesh_.size(Axis::dp) + mesh_.rank(Axis::dp);
  key.sample =
      static_cast<std::uint64_t>(batch.first_sample.value_or(before * batch.tokens.shape()[0]));
  return key;
}

void Engine::require_trainable() const {
  if (!model_->plan().pipeline.trains) throw_invalid("every parameter is frozen: nothing to train");
}

void Engine::forward(const MicroBatch& batch) {
  require_piecewise("forward()");
  const AccumulationWindow::MicroStep micro = window_->next_forward();
  require_trainable();
  accept({&batch, 1});
  fail_together(mesh_.world(), [&] {
    require_same_inputs(batch);
    run_forward(batch, micro);
  });
  window_->forward(micro, batch.tokens.numel() * mesh_.size(Axis::dp));
}

void Engine::begin_micro_batch(int index, const MicroBatch& batch, bool last) {
  BatchInput input;
  input.tokens = batch.tokens;
  input.targets = batch.targets;
  input.key = random_key(batch, index);
  input.last = last;
  input.loss_gradient = static_cast<float>(model_->loss_seed(settings_.accumulation));
  input.borders = &borders(batch.tokens.shape(), true, false);
  runner_->begin(index, input);
}

/// `ops` of the micro-batches from `first_micro_batch` on.
void Engine::run_ops(std::span<const Op> ops, int first_micro_batch) {
  std::optional<StepPhase> phase;
  for (Op op : ops) {
    const bool forward = op.kind == OpKind::load_batch || op.kind == OpKind::forward;
    const StepPhase wanted = forward ? StepPhase::forward : StepPhase::backward;
    if (!is_transfer(op.kind) && phase != wanted) {
      model_->times().mark(model_->compute(), wanted);
      phase = wanted;
    }
    op.micro_batch += first_micro_batch;
    runner_->run(op);
  }
}

void Engine::run_forward(const MicroBatch& batch, const AccumulationWindow::MicroStep& micro) {
  micro_batch_ = micro.index;
  model_->begin_training(micro_batch_);
  begin_micro_batch(micro_batch_, batch, micro.last);
  run_ops(forward_part(model_->plan().training), micro_batch_);
}

/// Waits for (sum of losses, number of targets) to arrive; nothing without a target.
std::optional<double> Engine::mean_loss(const Readback& loss) {
  const float* pair = loss.wait().as<float>();
  if (pair[1] == 0) return std::nullopt;
  return static_cast<double>(pair[0]) / static_cast<double>(pair[1]);
}

double Engine::loss() {
  if (model_->plan().pipeline.whole) require_piecewise("loss()");
  if (!runner_->last_loss().defined()) throw_invalid("loss() without a forward");
  return mean_loss(runner_->last_loss()).value_or(std::numeric_limits<double>::quiet_NaN());
}

void Engine::backward() {
  require_piecewise("backward()");
  window_->backward();
  fail_together(mesh_.world(), [&] { run_backward(); });
}

void Engine::run_backward() {
  const std::span<const Op> ops = model_->plan().training;
  run_ops(ops.subspan(forward_part(ops).size()), micro_batch_);
  model_->times().stop(model_->compute());
}

void Engine::no_sync(const std::function<void()>& body) {
  require_piecewise("no_sync()");
  if (settings_.sharding.what.gradients) {
    throw_invalid(
        "no_sync needs ZeRO stage 0 or 1: with sharded gradients every micro-batch is reduced");
  }
  without_boundary("no_sync", body);
}

void Engine::coalesce_grad_reduction(const std::function<void()>& body) {
  require_piecewise("coalesce_grad_reduction()");
  if (!settings_.sharding.what.optimizer_state)
    throw_invalid("coalesce_grad_reduction needs ZeRO stage 1, 2 or 3");
  window_->require_no_forward("coalesce_grad_reduction()");
  without_boundary("coalesce_grad_reduction", [&] {
    fail_together(mesh_.world(), [&] { model_->begin_coalescing(); });
    run_both(body, [&] { fail_together(mesh_.world(), [&] { model_->end_coalescing(); }); });
  });
}

void Engine::without_boundary(const char* scope, const std::function<void()>& body) {
  window_->enter_scope(scope);
  run_both(body, [&] { window_->leave_scope(); });
}

void Engine::step() {
  require_piecewise("step()");
  end_micro_batch();
}

void Engine::end_micro_batch() {
  if (const auto ended = window_->step())
    fail_together(mesh_.world(), [&] { optimizer_step(*ended); });
}

void Engine::optimizer_step(const AccumulationWindow::Ended& window) {
  const StepOutcome outcome = model_->step();
  state().samples += settings_.micro_batch * settings_.accumulation * mesh_.size(Axis::dp);
  const std::int64_t now = now_ns();
  last_.step = state().steps;
  last_.loss = outcome.loss;
  last_.ignored_micro_batches =
      std::int64_t{window.micro_batches} * mesh_.size(Axis::dp) - outcome.losses;
  last_.grad_norm =
      outcome.applied ? outcome.gradient_norm : std::numeric_limits<double>::infinity();
  last_.clip_factor = outcome.clip_factor;
  last_.lr = outcome.lr;
  last_.loss_scale = outcome.loss_scale;
  last_.skipped = !outcome.applied;
  last_.tokens = window.tokens;
  last_.seconds = static_cast<double>(now - last_step_end_ns_) * 1e-9;
  last_.phase_seconds = model_->times().take();
  last_step_end_ns_ = now;
  if (settings_.offload.on()) {
    const OffloadUse use = model_->offload_use();
    last_.offload = use - std::exchange(offload_before_, use);
  }
  last_.updates = model_->update_use();
  if (last_.updates && last_.skipped) last_.updates = UpdateUse{.waiting = last_.updates->waiting};
  poll_checkpoint();
  const std::int64_t every = settings_.log_every;
  if (every > 0 && last_.step % every == 0 && mesh_.leads()) {
    log_info(concat("step=", last_.step, ", skipped=", skipped_steps(), ", lr=", outcome.lr,
                    ", loss=", outcome.loss, ", grad_norm=", last_.grad_norm));
  }
}

StepResult Engine::train_batch(std::span<const MicroBatch> micro_batches) {
  if (static_cast<std::int64_t>(micro_batches.size()) != settings_.accumulation) {
    throw_invalid(concat("train_batch takes the ", settings_.accumulation,
                         " micro-batches of a step, not ", micro_batches.size()));
  }
  window_->require_start();
  require_trainable();
  accept(micro_batches);
  if (runs_whole_steps()) {
    fail_together(mesh_.world(), [&] {
      if (reads_batches()) require_same_inputs(micro_batches.front());
      run_schedule(micro_batches);
    });
    end_micro_batch();
    return last_;
  }
  for (std::size_t i = 0; i < micro_batches.size(); ++i) {
    forward(micro_batches[i]);
    backward();
    if (settings_.managed_accumulation || i + 1 == micro_batches.size()) step();
  }
  return last_;
}

std::vector<double> Engine::get_lr() const {
  std::vector<double> rates;
  for (const GroupSettings& group : model_->settings()) rates.push_back(group.lr);
  return rates;
}

TrainingSession initialize(const TrainSettings& settings, const Module& module, Communicator& world,
                           const EngineOptions& options, int threads, DeviceChoice choice) {
  CpuDeviceOptions device_options;
  device_options.rank = world.rank();
  device_options.threads = threads;
  const DeviceKind kind = device_kind(choice);
  auto device = make_device(kind, device_options, kind == DeviceKind::cuda ? local_rank(world) : 0);
  const Topology topology =
      Topology::with_rest_as_dp(world.size(), settings.tp, settings.pp, settings.sp);
  auto mesh = std::make_unique<Mesh>(world, topology.degrees());
  auto engine = std::make_unique<Engine>(settings, module, *mesh, *device, options);
  return TrainingSession(std::move(mesh), std::move(device), std::move(engine));
}

}  // namespace zero3d
