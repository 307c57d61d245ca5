#include "train_run.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "plan_report.h"
#include "progress.h"
#include "schedule_report.h"
#include "stop_signal.h"
#include "train_resume.h"
#include "train_saves.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/data/sampler.h"
#include "zero3d/device/device_choice.h"
#include "zero3d/engine/engine.h"
#include "zero3d/engine/pipeline/measured_partition.h"
#include "zero3d/formats/problem_list.h"
#include "zero3d/kernels/loss.h"
#include "zero3d/models/build.h"
#include "zero3d/models/choose_tiles.h"
#include "zero3d/models/generate.h"
#include "zero3d/models/hf_folder.h"
#include "zero3d/parallel/agree.h"
#include "zero3d/parallel/comm/launcher.h"
#include "zero3d/parallel/comm/mpi_communicator.h"

namespace zero3d::tools {
namespace {

constexpr std::int64_t kEvalMicroBatches = 16;  // per rank and evaluation

/// Data that does not fill a batch is read over again: no sample counts twice.
void ignore_repeated(Batch& batch, std::int64_t samples) {
  const std::int64_t fresh =
      std::clamp(samples - batch.first_position, std::int64_t{0}, batch.rows);
  std::fill(batch.targets.begin() + fresh * batch.sequence_length, batch.targets.end(),
            kernels::kIgnoreTarget);
}

/// Micro-batches that the host may enqueue before it waits for one: what is enqueued takes memory.
constexpr std::int64_t kRunAhead = 32;

MicroBatch view_of(const Batch& batch) {
  const Shape shape{batch.rows, batch.sequence_length};
  const auto view = [&](const std::vector<std::int32_t>& values) {
    return ConstView(reinterpret_cast<const std::byte*>(values.data()), DType::i32, shape);
  };
  return {view(batch.tokens), view(batch.targets), batch.first_in_step};
}

/// Freezing and weight decay by name, as the command line asks.
std::function<void(ParameterSpec&)> adjustments(const TrainPlan& plan) {
  return [&plan](ParameterSpec& spec) {
    if (plan.freeze.find_in(spec.name)) spec.frozen = true;
    spec.decay = !plan.no_decay.find_in(spec.name);
  };
}

/// "0: cpus 0-3, 1: cpus 4-7", or that ranks share what they are allowed. Collective.
std::string describe_binding(Communicator& world, const std::string& cpus) {
  const std::vector<std::string> all = world.exchange(cpus);
  std::string text;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) return "threads of all ranks share the cores they may use";
    text += concat(rank == 0 ? "" : ", ", "rank ", rank, " on ", all[rank]);
  }
  return text;
}

GridDegrees grid(const ParallelDegrees& degrees) {
  return {degrees.dp, degrees.tp, degrees.pp, degrees.sp};
}

class RankRun {
 public:
  RankRun(const TrainPlan& plan, Communicator& world)
      : plan_(plan),
        request_(plan.request),
        settings_(plan.settings),
        degrees_(plan.loaded.config.degrees),
        mesh_(world, grid(degrees_)) {
    CpuDeviceOptions options;
    options.rank = world.rank();
    options.threads = plan.threads;
    options.budget_bytes = plan.device_memory;
    options.host_budget_bytes = plan.host_memory;
    place_ = plan.device == DeviceKind::cuda ? local_rank(world) : 0;
    device_ = make_device(plan.device, options, place_);
    EngineOptions engine;
    engine.source = plan.resumed == nullptr ? plan.weights.get() : plan.initial.get();
    engine.seed = request_.seed;
    engine.adjust = adjustments(plan);
    engine.sequence_length = plan.sequence_length;
    const bool saves = !request_.save.empty();
    engine.checkpoints = {saves, saves && request_.save_async, plan.resumed != nullptr};
    engine.max_consecutive_skips = request_.max_skipped_steps;
    engine.reduce_each_micro_batch = request_.reduce_each_micro_batch;
    engine.exports = !request_.export_folder.empty();
    const int ranks = ranks_of_this_machine(world);
    if (!request_.dry_run) {
      engine.approve_memory = [this, ranks](const MemoryEstimate& memory) {
        require_held(memory, ranks);
        require_drives_hold(memory, ranks, settings_.offload);
      };
    }
    engine.plan_only = request_.dry_run;
    if (settings_.pipeline.partition.method == PartitionMethod::time) {
      const std::unique_ptr<Module> whole = build_model(plan.model);
      settings_.pipeline.partition = measured_partition(settings_, *whole, mesh_, *device_, engine);
    }
    tiles_ = choose_tiles(plan.model, settings_, mesh_, engine, plan.device_memory);
    module_ = build_model(plan.model, tiles_);
    if (plan.metrics) plan.metrics->set_tiles(tiles_);
    engine_ = std::make_unique<Engine>(settings_, *module_, mesh_, *device_, engine);
    memory_ = engine_->memory_estimate(settings_.micro_batch, plan.sequence_length);
    tell_stages();
    memory_.require_within(plan.device_memory, plan.host_memory);
    if (request_.dry_run)
      warn_of_machine(ranks);
    else
      require_held(memory_, ranks);
  }

  /// `binding` is for people to read. Returns what train_rank does.
  RunEnd run(const std::string& binding) {
    if (leads())
      print_plan(plan_, *engine_, tiles_, memory_, process_bytes(), device_by_stage_, binding);
    if (leads() && !request_.print_schedule.empty()) print_schedule(plan_);
    if (request_.dry_run) {
      if (leads())
        std::printf("dry run   no memory was taken and nothing %swas written\n",
                    request_.print_schedule.empty() ? "" : "but the schedule ");
      return {};
    }
    if (plan_.resumed != nullptr) resume();
    const std::int64_t first = engine_->global_steps() + 1;
    if (leads()) progress_.emplace(request_.steps, first);
    Sampler sampler(*plan_.data, split(), {request_.order == "shuffled", engine_->state().seed});
    int stopped_by = 0;
    for (std::int64_t step = first; step <= request_.steps && stopped_by == 0; ++step) {
      const StepResult result = train_step(sampler);
      if (step == request_.steps) engine_->flush_updates();
      if (leads()) {
        if (plan_.metrics) plan_.metrics->train(result);
        progress_->step(result);
        losses_.push_back(result.loss);
      }
      tokens_ += result.tokens;
      seconds_ += result.seconds;
      for (std::size_t phase = 0; phase < phases_.size(); ++phase)
        phases_[phase] += result.phase_seconds[phase];
      const bool evaluate =
          plan_.eval_data && (step == request_.steps ||
                              (request_.eval_interval > 0 && step % request_.eval_interval == 0));
      if (evaluate) evaluate_at(step);
      if (step < request_.steps) stopped_by = asked_to_stop();
      saves_.after_step(step, stopped_by != 0);
    }
    if (leads()) progress_->finish();
    saves_.finish();
    if (stopped_by != 0) return {"", stopped_by};
    if (!request_.export_folder.empty()) export_model();
    summarise(first);
    if (!request_.generate.empty()) generate_text();
    return {skipped_at_the_end()};
  }

 private:
  bool leads() const { return mesh_.leads(); }

  /// The signal that asks a rank to save, or to clear its drives, and leave; 0: none does.
  int asked_to_stop() {
    if (!leaves_in_order(plan_)) return 0;
    const auto signal = static_cast<int>(maximum(mesh_.world(), stop_signal()));
    if (signal != 0 && leads()) {
      progress_->finish();
      log_info(concat("asked to stop (signal ", signal,
                      "): ", request_.save.empty() ? "leaving without a checkpoint" : "saving"));
    }
    return signal;
  }

  void resume() {
    const LoadedCheckpoint loaded =
        engine_->load_checkpoint(*plan_.resumed, resume_options(request_));
    if (!leads()) return;
    const RunState& state = engine_->state();
    std::printf("resume    %s: step %lld, %s samples%s\n", loaded.path.c_str(),
                static_cast<long long>(state.steps), format_count(state.data_position).c_str(),
                state.steps >= request_.steps ? "; no step of --steps is left to train" : "");
    for (const std::string& change : loaded.changes)
      log_info(concat("resume: ", change, " in the checkpoint; the configuration wins"));
  }

  /// A GPU has memory of its own, which the ranks that take it in turn share.
  void require_held(const MemoryEstimate& memory, int ranks) const {
    if (plan_.device == DeviceKind::cpu)
      return require_machine_holds(memory, ranks, plan_.machine_memory);
    require_machine_holds(memory, ranks, plan_.machine_memory, kHostTiers);
    const auto gpus = static_cast<int>(plan_.gpu_memory.size());
    const int gpu = place_ % gpus;
    const int sharing = launched_by_mpi() ? 1 : (ranks - 1 - gpu) / gpus + 1;
    require_gpu_holds(memory, sharing, plan_.gpu_memory[static_cast<std::size_t>(gpu)]);
  }

  /// The plan may be for another machine.
  void warn_of_machine(int here) const {
    try {
      require_held(memory_, here);
      require_drives_hold(memory_, here, settings_.offload);
    } catch (const Error& error) {
      if (leads()) log_warning(concat("this machine does not hold the run: ", error.what()));
    }
  }

  BatchSplit split() const {
    return {settings_.micro_batch, settings_.accumulation, mesh_.size(Axis::dp)};
  }

  StepResult train_step(Sampler& sampler) {
    sampler.restore(engine_->state().data_position);
    if (engine_->runs_whole_steps()) {
      train_whole(sampler);
    } else {
      train_piecewise(sampler);
    }
    sampler.advance();
    engine_->state().data_position = sampler.consumed();
    return engine_->last_step();
  }

  /// Micro-batches of this rank's samples; without what is in them where the rank does not look.
  Batch read(Sampler& sampler, std::int64_t micro) {
    const int replica = mesh_.rank(Axis::dp);
    return engine_->reads_batches() ? sampler.read(micro, replica) : sampler.blank(micro, replica);
  }

  void train_whole(Sampler& sampler) {
    std::vector<Batch> batches;
    for (std::int64_t micro = 0; micro < settings_.accumulation; ++micro)
      batches.push_back(read(sampler, micro));
    std::vector<MicroBatch> views;
    for (const Batch& batch : batches) views.push_back(view_of(batch));
    engine_->train_batch(views);
  }

  void train_piecewise(Sampler& sampler) {
    for (std::int64_t micro = 0; micro < settings_.accumulation; ++micro) {
      const Batch batch = read(sampler, micro);
      engine_->forward(view_of(batch));
      engine_->backward();
      if (micro % kRunAhead == kRunAhead - 1) engine_->loss();  // waits
      if (settings_.managed_accumulation || micro + 1 == settings_.accumulation) engine_->step();
    }
  }

  /// What each stage of a pipeline takes, which is not what the others do.
  void tell_stages() {
    Communicator& stages = mesh_.group(Axis::pp);
    const std::int64_t device = memory_.total();
    const std::int64_t rank = host_bytes();
    for (const std::string& text : stages.exchange(concat(device, " ", rank))) {
      device_by_stage_.push_back(std::stoll(text));
      replica_bytes_ += std::stoll(text.substr(text.find(' ') + 1));
    }
  }

  /// What the rank needs of the machine's memory, which a CPU device's is.
  std::int64_t host_bytes() const {
    const std::int64_t device = plan_.device == DeviceKind::cpu ? memory_.total() : 0;
    return device + memory_.total(kHostTiers) + kRankOverhead;
  }

  /// The highest the process will go: its ranks' plans beside what it holds without them.
  std::int64_t process_bytes() const {
    if (launched_by_mpi()) return plan_.resident_bytes + host_bytes();
    return plan_.resident_bytes + mesh_.world().size() / mesh_.size(Axis::pp) * replica_bytes_;
  }

  /// A loss scale on its way down explains as many skipped steps as it bears, unless there were no
  /// others.
  std::string skipped_at_the_end() const {
    const std::int64_t skipped = engine_->state().consecutive_skips;
    const std::optional<LossScalerOptions>& scale = settings_.precision.loss_scale;
    const bool adapts = scale && scale->static_scale == 0;
    const std::int64_t borne = adapts ? std::max<std::int64_t>(1, scale->hysteresis) : 0;
    if (skipped == 0 || (skipped <= borne && skipped < request_.steps)) return "";
    return concat("the last ", skipped, " of ", request_.steps,
                  " steps were all skipped (the warnings say why): the model is what it was after "
                  "step ",
                  request_.steps - skipped,
                  "; lower the learning rate, check the data, or train in bf16");
  }

  void evaluate_at(std::int64_t step) {
    Sampler sampler(*plan_.eval_data, {settings_.micro_batch, 1, mesh_.size(Axis::dp)}, {});
    const std::int64_t per_step = sampler.split().samples_per_step();
    const std::int64_t count =
        std::clamp(plan_.eval_data->samples() / per_step, std::int64_t{1}, kEvalMicroBatches);
    std::vector<Batch> batches;
    for (std::int64_t i = 0; i < count; ++i) {
      Batch& batch = batches.emplace_back(read(sampler, 0));
      ignore_repeated(batch, plan_.eval_data->samples());
      sampler.advance();
    }
    std::vector<MicroBatch> views;
    for (const Batch& batch : batches) views.push_back(view_of(batch));
    const double loss = engine_->eval_batch(views);
    if (!leads()) return;
    if (plan_.metrics) plan_.metrics->evaluation(step, loss);
    progress_->evaluation(step, loss);
  }

  void export_model() {
    const std::vector<ParameterSpec> specs =
        engine_->model().plan().model_layout().whole_parameters();
    const DType dtype = engine_->model().plan().dtype();
    std::optional<FolderWriter> writer;
    if (leads()) {  // the start of the run found nothing against the place
      writer.emplace(request_.export_folder, to_config_json(plan_.model, dtype),
                     exported_tensors(specs, dtype), FolderWriter::kMaxShardBytes,
                     FolderWriter::Check::at_commit);
    }
    engine_->model().for_each_parameter([&](const ParameterSpec& spec, const ConstView& value) {
      if (writer) writer->write(spec.name, value);
    });
    if (!writer) return;
    not_carried_ = writer->carry(request_.model);
    writer->commit();
  }

  void summarise(std::int64_t first) {
    const std::int64_t device_peak = maximum(mesh_.world(), device_->memory().use().peak);
    const std::int64_t host_peak =
        maximum(mesh_.world(), device_->memory(Tier::pinned).use().peak +
                                   device_->memory(Tier::pageable).use().peak);
    if (!leads()) return;
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    if (losses_.size() > 1) std::printf("\n%s", draw_curve(losses_, 10, 70, first).c_str());
    std::printf("\nsteps     %lld, %lld skipped; %s tokens in %.1f s: %s tokens/s\n",
                static_cast<long long>(request_.steps),
                static_cast<long long>(engine_->skipped_steps()), format_count(tokens_).c_str(),
                seconds_,
                format_count(static_cast<std::int64_t>(static_cast<double>(tokens_) /
                                                       std::max(seconds_, 1e-9)))
                    .c_str());
    double total = 1e-12;
    for (double phase : phases_) total += phase;
    std::printf("step time forward %.0f%%, backward %.0f%%, reduce %.0f%%, optimizer %.0f%%\n",
                100 * phases_[0] / total, 100 * phases_[1] / total, 100 * phases_[2] / total,
                100 * phases_[3] / total);
    std::printf("peak      device %s per rank, host staging %s per rank, process %s\n",
                format_bytes(device_peak).c_str(), format_bytes(host_peak).c_str(),
                format_bytes(static_cast<std::int64_t>(usage.ru_maxrss) * 1024).c_str());
    if (!request_.metrics.empty()) std::printf("metrics   %s\n", request_.metrics.c_str());
    if (!request_.export_folder.empty())
      std::printf("model     %s\n", request_.export_folder.c_str());
    if (!not_carried_.empty())
      std::printf("model     left in %s: %s\n", request_.model.c_str(),
                  name_list(not_carried_).c_str());
    std::fflush(stdout);
  }

  void generate_text() {
    GenerateOptions options;
    options.max_new_tokens = request_.generate_tokens;
    options.max_context = std::min(plan_.sequence_length, plan_.model.max_positions);
    options.sampling.temperature = request_.temperature;
    options.sampling.seed = request_.seed;
    const auto tokens = generate(
        tokens_from_bytes(request_.generate), options,
        [&](std::span<const std::int32_t> context) { return engine_->next_logits(context); });
    if (leads())
      std::printf("\n--- sample ---\n%s\n--------------\n",
                  printable(bytes_from_tokens(tokens)).c_str());
  }

  const TrainPlan& plan_;
  const TrainRequest& request_;
  TrainSettings settings_;
  const ParallelDegrees degrees_;
  const Mesh mesh_;
  TileSettings tiles_;
  std::unique_ptr<Module> module_;
  std::unique_ptr<Device> device_;
  int place_ = 0;  ///< Among the ranks of the machine, which the GPU follows.
  std::unique_ptr<Engine> engine_;
  TrainSaves saves_{plan_, engine_};
  MemoryEstimate memory_;
  std::vector<std::int64_t> device_by_stage_;
  std::int64_t replica_bytes_ = 0;  ///< Of one rank of each stage.
  std::optional<Progress> progress_;
  std::vector<double> losses_;
  std::vector<std::string> not_carried_;  ///< Files of the model's folder that the export lacks.
  std::int64_t tokens_ = 0;
  double seconds_ = 0;
  std::array<double, StepTimes::kPhases> phases_{};
};

}  // namespace

RunEnd train_rank(const TrainPlan& plan, Communicator& world, const Share& share) {
  set_log_rank(world.size() > 1 ? world.rank() : -1);
  const std::vector<int> cpus = plan.request.no_bind
                                    ? std::vector<int>{}
                                    : cpus_of_share(plan.allowed_cpus, share, plan.threads);
  const bool bound = !cpus.empty() && bind_this_thread(cpus);
  RankRun run(plan, world);
  return run.run(describe_binding(world, bound ? format_cpus(cpus) : ""));
}

}  // namespace zero3d::tools
