#include "zero3d/tests/support/run_engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/load.h"
#include "zero3d/ds_config/settings.h"
#include "zero3d/parallel/comm/forwarding.h"
#include "zero3d/parallel/comm/thread_communicator.h"
#include "zero3d/tests/support/host_access.h"

namespace zero3d::test {
namespace {

/// A communicator that somebody else owns, for decorators that want to own theirs.
class Borrowed final : public detail::ForwardingCommunicator {
 public:
  explicit Borrowed(Communicator& inner)
      : ForwardingCommunicator(std::shared_ptr<Communicator>(&inner, [](Communicator*) {})) {}
  std::unique_ptr<Communicator> split(int color, int key) override {
    return inner_->split(color, key);
  }
};

/// This rank's shard of a unit's averaged gradient, in host memory.
Tensor reduced_gradient(ShardedModel& model, int unit) {
  Tensor copy(model.device().memory(Tier::pageable), model.compute(),
              model.reducer().accumulation_dtype(), Shape{model.plan().layout.unit(unit).shard},
              Category::other);
  model.reducer().copy_reduced(model.compute(), unit, copy);
  model.synchronize();
  return copy;
}

/// Whole tensors that ranks write their pieces into; two writers of a byte must agree on it.
class Collector {
 public:
  explicit Collector(ModelState& state) : state_(state) {}

  void add(ShardedModel& model) {
    const ParamLayout& layout = model.plan().layout;
    model.compute().synchronize();
    for (int unit = 0; unit < layout.unit_count(); ++unit) add_gradient(model, unit);
    model.optimizer().for_each_slice(
        [&](const StateSlice& slice, Stream& stream) { add_state(model, slice, stream); });
    model.for_each_parameter([&](const ParameterSpec& spec, const ConstView& whole) {
      const std::lock_guard lock(mutex_);
      put(spec.name, "value", state_[spec.name].value, whole.bytes(), 0, whole);
    });
  }

 private:
  void add_gradient(ShardedModel& model, int unit) {
    const ParamLayout& layout = model.plan().layout;
    const Unit& entry = layout.unit(unit);
    if (entry.frozen || entry.shard == 0) return;
    const std::int64_t begin = model.store().shard_rank() * entry.shard;
    const Tensor copy = reduced_gradient(model, unit);
    const ConstView gradient = copy;
    const std::lock_guard lock(mutex_);
    for (const ParameterRun& run : layout.runs(unit, begin, entry.shard)) {
      const LayoutParameter& p = layout.parameter(run.parameter);
      put(p, "gradient", state_[p.spec.name].gradient, run.first,
          gradient.flat(run.offset, run.count));
    }
    if (model.state().optimizer_steps > 0) check_padding(model, unit, gradient);
  }

  void add_state(ShardedModel& model, const StateSlice& slice, Stream& stream) {
    const LayoutParameter& p = model.plan().layout.parameter(slice.parameter);
    const auto take = [&](const char* what, std::vector<std::byte>& target, const View& view) {
      const Readback copy = read_back(stream, view);
      put(p, what, target, slice.first, copy.wait());
    };
    const std::lock_guard lock(mutex_);
    ParameterState& state = state_[p.spec.name];
    if (slice.master.defined()) {  // one of the parameter's dtype is the parameter
      const bool copies = slice.master.dtype() == model.plan().dtype();
      take("master", copies ? state.value : state.master, slice.master);
    }
    state.states.resize(slice.states.size());
    for (std::size_t i = 0; i < slice.states.size(); ++i)
      take("state", state.states[i], slice.states[i]);
  }

  /// `piece` is of the stored parameter from element `first` on.
  void put(const LayoutParameter& p, const char* what, std::vector<std::byte>& target,
           std::int64_t first, const ConstView& piece) {
    const std::size_t size = size_of(piece.dtype());
    for (const GlobalRun& run : global_runs(p.placement, first, piece.numel())) {
      put(p.spec.name, what, target, static_cast<std::size_t>(p.spec.shape.numel()) * size,
          static_cast<std::size_t>(run.global_first) * size, piece.flat(run.offset, run.count));
    }
  }

  void put(const std::string& name, const char* what, std::vector<std::byte>& target,
           std::size_t bytes, std::size_t at, const ConstView& piece) {
    target.resize(bytes);
    std::vector<bool>& known = written_[&target];
    known.resize(bytes);
    for (std::size_t i = 0; i < piece.bytes(); ++i) {
      const std::byte value = piece.data()[i];
      if (known[at + i] && target[at + i] != value) {
        ADD_FAILURE() << what << " of " << name << ": ranks disagree about byte " << at + i;
        return;
      }
      target[at + i] = value;
      known[at + i] = true;
    }
  }

  static void check_padding(ShardedModel& model, int unit, const ConstView& gradient) {
    if (gradient.dtype() != DType::f32) return;
    const std::int64_t shard = model.plan().layout.unit(unit).shard;
    const std::int64_t begin = model.store().shard_rank() * shard;
    for (const auto& [from, to] : model.plan().layout.gaps(unit)) {
      for (std::int64_t i = std::max(from, begin); i < std::min(to, begin + shard); ++i) {
        const float value = gradient.as<float>()[i - begin];
        if (value == 0) continue;
        ADD_FAILURE() << "padding of unit " << unit << " has the gradient " << value;
        return;
      }
    }
  }

  ModelState& state_;
  std::map<const void*, std::vector<bool>> written_;
  std::mutex mutex_;
};

CommVolume difference(const CommVolume& after, const CommVolume& before) {
  CommVolume result = after;
  for (const auto& [name, entry] : before.operations) {
    result.operations[name].calls -= entry.calls;
    result.operations[name].elements -= entry.elements;
    result.operations[name].bytes -= entry.bytes;
  }
  return result;
}

/// What the threads of one run share.
struct Shared {
  std::mutex mutex;
  RunResult result;
  std::vector<std::vector<StepResult>> steps;    // per rank
  std::vector<std::vector<CommVolume>> volumes;  // per rank and step
  Collector final_state{result.state};
};

class RankRun {
 public:
  RankRun(const TrainSettings& settings, const RunOptions& options, Communicator& communicator,
          Shared& shared)
      : settings_(settings), options_(options), rank_(communicator.rank()), shared_(shared) {
    std::unique_ptr<Communicator> world = std::make_unique<Borrowed>(communicator);
    if (options.wrap) world = options.wrap(std::move(world));
    world_ = make_counting(std::move(world), counter_);
    const Topology grid =
        Topology::with_rest_as_dp(world_->size(), settings.tp, settings.pp, settings.sp);
    mesh_ = std::make_unique<Mesh>(*world_, grid.degrees());
    CpuDeviceOptions device;
    device.rank = rank_;
    device.threads = options.threads;
    device.budget_bytes = options.budget_bytes;
    device.host_budget_bytes = options.host_budget_bytes;
    device.jitter_seed = options.jitter_seed == 0 ? 0 : options.jitter_seed + rank_;
    device_ = make_cpu_device(device);
    module_ = options.make_module(rank_);
    EngineOptions engine = options.engine;
    engine.exports = options.exports;
    engine_ = std::make_unique<Engine>(settings, *module_, *mesh_, *device_, engine);
  }

  void run() {
    const CommVolume setup = counter_.volume();
    if (options_.body) {
      options_.body(*engine_, *module_, rank_);
      shared_.steps[rank()].push_back(engine_->last_step());
    } else {
      for (int step = 0; step < options_.steps; ++step) train(step);
    }
    if (options_.after) options_.after(*engine_, rank_);
    engine_->model().compute().synchronize();
    const TokenBatch batch = options_.batch({mesh_->rank(Axis::dp), 0, 0});
    const Shape shape = batch.view().tokens.shape();
    {
      const std::lock_guard lock(shared_.mutex);
      shared_.result.memory[rank()] = device_->memory().use();
      shared_.result.pinned_memory[rank()] = device_->memory(Tier::pinned).use();
      shared_.result.estimates[rank()] = engine_->memory_estimate(shape[0], shape[1]);
      if (rank_ == 0) shared_.result.setup_volume = setup;
    }
    if (options_.collects) shared_.final_state.add(engine_->model());
  }

 private:
  std::size_t rank() const { return static_cast<std::size_t>(rank_); }

  void train(int step) {
    const CommVolume before = counter_.volume();
    if (engine_->runs_whole_steps()) {
      train_whole(step);
    } else {
      train_piecewise(step);
    }
    shared_.steps[rank()].push_back(engine_->last_step());
    shared_.volumes[rank()].push_back(difference(counter_.volume(), before));
    take_gradients(step);
    if (options_.after_step) options_.after_step(*engine_, rank_, step);
  }

  /// Ranks that do not read batches are given tokens that no model has.
  void train_whole(int step) {
    std::vector<TokenBatch> batches;
    std::vector<MicroBatch> views;
    for (int micro = 0; micro < settings_.accumulation; ++micro) {
      batches.push_back(options_.batch({mesh_->rank(Axis::dp), step, micro}));
      if (engine_->reads_batches()) continue;
      std::fill(batches.back().tokens.begin(), batches.back().tokens.end(), -7);
      std::fill(batches.back().targets.begin(), batches.back().targets.end(), -7);
    }
    for (const TokenBatch& batch : batches) views.push_back(batch.view());
    engine_->train_batch(views);
  }

  void train_piecewise(int step) {
    for (int micro = 0; micro < settings_.accumulation; ++micro) {
      const Moment moment{mesh_->rank(Axis::dp), step, micro};
      if (options_.before_forward) options_.before_forward(*module_, moment);
      const TokenBatch batch = options_.batch(moment);
      engine_->forward(batch.view());
      engine_->backward();
      engine_->step();
    }
  }

  static float element(const ConstView& view, std::int64_t i) {
    return view.dtype() == DType::f32    ? view.as<float>()[i]
           : view.dtype() == DType::bf16 ? to_float(view.as<bf16>()[i])
                                         : to_float(view.as<f16>()[i]);
  }

  void take_gradients(int step) {
    ShardedModel& model = engine_->model();
    for (int unit = 0; unit < model.plan().layout.unit_count(); ++unit) {
      const Unit& entry = model.plan().layout.unit(unit);
      if (entry.frozen) continue;
      const Tensor copy = reduced_gradient(model, unit);
      const ConstView view = copy;
      const std::lock_guard lock(shared_.mutex);
      for (const ParameterRun& run :
           model.plan().layout.runs(unit, model.store().shard_rank() * entry.shard, entry.shard)) {
        const LayoutParameter& parameter = model.plan().layout.parameter(run.parameter);
        std::vector<float>& target =
            shared_.result.gradients[static_cast<std::size_t>(step)][parameter.spec.name];
        target.resize(static_cast<std::size_t>(parameter.spec.shape.numel()));
        for (const GlobalRun& part : global_runs(parameter.placement, run.first, run.count)) {
          for (std::int64_t i = 0; i < part.count; ++i)
            target[static_cast<std::size_t>(part.global_first + i)] =
                element(view, run.offset + part.offset + i);
        }
      }
    }
  }

  const TrainSettings& settings_;
  const RunOptions& options_;
  const int rank_;
  Shared& shared_;
  CommCounter counter_;
  std::unique_ptr<Communicator> world_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Module> module_;
  std::unique_ptr<Engine> engine_;
};

bool same_double(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

void agree(const Shared& shared, bool same_volumes) {
  for (std::size_t rank = 1; rank < shared.steps.size(); ++rank) {
    ASSERT_EQ(shared.steps[rank].size(), shared.steps[0].size());
    for (std::size_t step = 0; step < shared.steps[0].size(); ++step) {
      const StepResult& mine = shared.steps[rank][step];
      const StepResult& first = shared.steps[0][step];
      EXPECT_TRUE(same_double(mine.loss, first.loss)) << "rank " << rank;
      EXPECT_TRUE(same_double(mine.grad_norm, first.grad_norm)) << "rank " << rank;
      EXPECT_EQ(mine.skipped, first.skipped);
    }
    for (std::size_t step = 0; same_volumes && step < shared.volumes[0].size(); ++step) {
      EXPECT_EQ(shared.volumes[rank][step].elements(), shared.volumes[0][step].elements())
          << "rank " << rank << " step " << step;
    }
  }
}

::testing::AssertionResult same_bytes(const std::string& name, const char* what,
                                      const std::vector<std::byte>& expected,
                                      const std::vector<std::byte>& actual) {
  if (expected.size() != actual.size()) {
    return ::testing::AssertionFailure() << what << " of " << name << " has " << actual.size()
                                         << " bytes, not " << expected.size();
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == actual[i]) continue;
    auto failure = ::testing::AssertionFailure()
                   << what << " of " << name << " differs in byte " << i;
    if (expected.size() % sizeof(float) == 0) {
      const std::size_t at = i / sizeof(float);
      failure << " (as fp32: " << ParameterState::floats(actual)[at] << ", not "
              << ParameterState::floats(expected)[at] << ")";
    }
    return failure;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace

TrainSettings settings_of(const std::string& json, int ranks) {
  LoadOptions options;
  options.ranks = ranks;
  LoadResult loaded = load_config_text(json, "test config", options);
  loaded.require_ok();
  return train_settings(loaded.config);
}

TokenBatch::TokenBatch(std::int64_t rows, std::int64_t sequence, std::int32_t fill)
    : tokens(static_cast<std::size_t>(rows * sequence), fill),
      targets(tokens),
      rows_(rows),
      sequence_(sequence) {}

MicroBatch TokenBatch::view() const {
  const auto of = [&](const std::vector<std::int32_t>& values) {
    return ConstView(reinterpret_cast<const std::byte*>(values.data()), DType::i32,
                     Shape{rows_, sequence_});
  };
  return {of(tokens), of(targets)};
}

std::vector<float> ParameterState::floats(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

RunResult run_engine(const std::string& json, const RunOptions& options) {
  return run_engine(settings_of(json, options.ranks), options);
}

RunResult run_engine(const TrainSettings& settings, const RunOptions& options) {
  const auto ranks = static_cast<std::size_t>(options.ranks);
  Shared shared;
  shared.steps.resize(ranks);
  shared.volumes.resize(ranks);
  shared.result.memory.resize(ranks);
  shared.result.pinned_memory.resize(ranks);
  shared.result.estimates.resize(ranks);
  if (!options.body) shared.result.gradients.resize(static_cast<std::size_t>(options.steps));
  ThreadCommOptions comm;
  comm.timeout = options.timeout;
  run_ranks(
      options.ranks, [&](Communicator& world) { RankRun(settings, options, world, shared).run(); },
      comm);
  agree(shared, settings.pp == 1 && settings.sp == 1);  // stages have other parameters
  shared.result.steps = shared.steps[0];
  shared.result.volumes = shared.volumes[0];
  if (Tracer::enabled()) shared.result.spans = Tracer::spans();
  return std::move(shared.result);
}

RunOptions probe_options(std::function<std::vector<ProbeBlockSpec>(int rank)> blocks, int ranks) {
  RunOptions options;
  options.ranks = ranks;
  options.make_module = [blocks](int rank) { return std::make_unique<ProbeModule>(blocks(rank)); };
  options.batch = [](const Moment&) { return TokenBatch(1, 1); };
  options.before_forward = [](Module& module, const Moment& moment) {
    static_cast<ProbeModule&>(module).clock = {moment.step, moment.micro_batch};
  };
  return options;
}

RunOptions probe_options(const std::vector<std::int64_t>& sizes, ProbeValues gradient, int ranks) {
  return probe_options(
      [sizes, gradient](int rank) {
        return probe_blocks(sizes, [gradient, rank](int parameter, const ProbeClock& clock) {
          return gradient(parameter, {rank, clock.step, clock.micro_batch});
        });
      },
      ranks);
}

::testing::AssertionResult same_state(const ModelState& expected, const ModelState& actual) {
  if (expected.size() != actual.size())
    return ::testing::AssertionFailure() << actual.size() << " parameters, not " << expected.size();
  for (const auto& [name, want] : expected) {
    const auto found = actual.find(name);
    if (found == actual.end()) return ::testing::AssertionFailure() << name << " is missing";
    const ParameterState& have = found->second;
    if (auto r = same_bytes(name, "gradient", want.gradient, have.gradient); !r) return r;
    if (have.states.size() != want.states.size())
      return ::testing::AssertionFailure() << name << " has " << have.states.size() << " states";
    for (std::size_t i = 0; i < want.states.size(); ++i) {
      if (auto r = same_bytes(name, "moment", want.states[i], have.states[i]); !r) return r;
    }
    if (auto r = same_bytes(name, "master", want.master, have.master); !r) return r;
    if (auto r = same_bytes(name, "value", want.value, have.value); !r) return r;
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult same_bits(const RunResult& expected, const RunResult& actual) {
  if (expected.steps.size() != actual.steps.size())
    return ::testing::AssertionFailure() << actual.steps.size() << " steps";
  for (std::size_t i = 0; i < expected.steps.size(); ++i) {
    const StepResult& want = expected.steps[i];
    const StepResult& have = actual.steps[i];
    if (!same_double(want.loss, have.loss)) {
      return ::testing::AssertionFailure()
             << "loss of step " << i + 1 << " is " << have.loss << ", not " << want.loss
             << ", a difference of " << have.loss - want.loss;
    }
    if (!same_double(want.grad_norm, have.grad_norm)) {
      return ::testing::AssertionFailure()
             << "norm of step " << i + 1 << " is " << have.grad_norm << ", not " << want.grad_norm
             << ", a difference of " << have.grad_norm - want.grad_norm;
    }
  }
  return same_state(expected.state, actual.state);
}

::testing::AssertionResult close(const RunResult& expected, const RunResult& actual,
                                 double relative) {
  if (expected.steps.size() != actual.steps.size())
    return ::testing::AssertionFailure() << actual.steps.size() << " steps";
  for (std::size_t i = 0; i < expected.steps.size(); ++i) {
    const StepResult& want = expected.steps[i];
    const StepResult& have = actual.steps[i];
    const auto near = [&](double a, double b) {
      return std::abs(a - b) <= relative * std::abs(a);  // NaN fails
    };
    if (near(want.loss, have.loss) && near(want.grad_norm, have.grad_norm)) continue;
    return ::testing::AssertionFailure()
           << "step " << i + 1 << ": loss " << have.loss << " against " << want.loss << ", norm "
           << have.grad_norm << " against " << want.grad_norm;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace zero3d::test
