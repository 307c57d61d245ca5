#include "train_plan.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <utility>

#include "schedule_report.h"
#include "train_resume.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/device/cuda/cuda_device.h"
#include "zero3d/device/device_choice.h"
#include "zero3d/ds_config/settings.h"
#include "zero3d/ds_config/trainable.h"
#include "zero3d/engine/checkpoint/state_loader.h"
#include "zero3d/engine/mesh_problems.h"
#include "zero3d/formats/input_file.h"
#include "zero3d/models/build.h"
#include "zero3d/models/hf_folder.h"
#include "zero3d/parallel/comm/mpi_communicator.h"

namespace zero3d::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kDefaultSequence = 1024;

std::string resolved_config_path(const TrainRequest& request) {
  return request.metrics + ".ds_config.json";
}

std::vector<ParameterSpec> parameters_of(const ModelConfig& model) {
  return list_parameters(*build_model(model));
}

/// "owner/name" with nothing there names a model of the Hugging Face Hub.
void refuse_hub_id(const std::string& model) {
  std::error_code code;
  if (model.find("://") != std::string::npos)
    throw_invalid(concat("--model ", model,
                         ": expected a folder, found an address, and zero3d does not download: get "
                         "its files (hf download, git clone) and give the folder"));
  const std::size_t slash = model.find('/');
  if (fs::exists(model, code) || fs::is_symlink(model, code) || slash == 0 ||
      slash + 1 == model.size() || model.find('/', slash + 1) != std::string::npos ||
      model[0] == '.' || fs::exists(model.substr(0, slash), code))
    return;
  throw_invalid(concat("--model ", model,
                       ": there is no such folder. It may be the id of a model of "
                       "the Hugging Face Hub, which zero3d does not download: get its files "
                       "(hf download ",
                       model, " --local-dir FOLDER) and give that folder"));
}

/// A folder, or a built-in shape whose weights are drawn.
void open_model(TrainPlan& plan) {
  const TrainRequest& request = plan.request;
  if (!means_built_in(request.model)) {
    std::error_code code;
    refuse_hub_id(request.model);
    if (fs::is_regular_file(request.model, code) && !request.from_scratch)
      throw_invalid(concat("--model ", request.model,
                           ": expected a model's folder, found a file; give ",
                           fs::absolute(request.model, code).parent_path().string()));
    plan.model = read_model_config(request.model);
    if (!request.from_scratch) plan.weights = open_model_folder(request.model, plan.model);
  } else {
    plan.model = built_in_model_config(request.model);
  }
}

/// Bytes are the tokens of few models.
void warn_of_bytes(const TrainPlan& plan, const Dataset& data) {
  constexpr std::int64_t kLargestOfBytes = 512;  // 256, special tokens and padding
  if (data.tokens().looks_like_json())
    log_warning(concat(data.tokens().description(),
                       ": it begins as JSON does, and its braces and keys are trained on like its "
                       "text; where the text alone is meant, take it out first"));
  if (!data.tokens().is_text() || plan.model.vocab_size <= kLargestOfBytes) return;
  log_warning(concat(data.tokens().description(),
                     ": the bytes of the text are taken as tokens, and "
                     "the model has a vocabulary of ",
                     format_count(plan.model.vocab_size),
                     ": was it trained with a tokenizer, give the tokens that it makes"));
}

/// Tokens are checked against the vocabulary here while that takes no time, else as they are read.
std::unique_ptr<Dataset> open_data(const TrainPlan& plan, const std::vector<std::string>& paths) {
  constexpr std::int64_t kCheckedAtOnce = std::int64_t{1} << 25;
  auto data =
      std::make_unique<Dataset>(TokenFile(paths, parse_token_format(plan.request.data_format)),
                                plan.sequence_length, plan.model.vocab_size);
  if (data->tokens().tokens() <= kCheckedAtOnce) data->check();
  return data;
}

void open_config(TrainPlan& plan, int ranks) {
  LoadOptions options = plan.request.loading.resolved();
  options.ranks = ranks;
  options.autos.steps = plan.request.steps;
  options.autos.steps_must_match = false;
  options.autos.hidden_size = plan.model.hidden_size;
  if (plan.resumed == nullptr || plan.request.overrides.empty()) {
    plan.loaded = load_config_file(plan.request.config, options);
  } else {
    const std::string text = InputFile(plan.request.config).read_all(1u << 20);
    plan.loaded = load_config_text(overridden_config(plan.request, *plan.resumed, text),
                                   plan.request.config, options);
  }
  plan.loaded.require_ok();
}

/// Frozen weights that a checkpoint leaves out come from where the run began.
void open_initial(TrainPlan& plan) {
  if (plan.resumed == nullptr) return;
  require_same_model(*plan.resumed, parameters_of(plan.model));
  if (plan.weights == nullptr)
    plan.weights = make_initial_values_source(plan.resumed->run().state.seed);
  plan.initial = make_saved_source(*plan.resumed, plan.weights.get());
}

/// As the engine would, but once and before any rank starts.
void require_mesh_fits(const TrainPlan& plan) {
  const auto& [ranks, dp, tp, pp, sp] = plan.loaded.config.degrees;
  std::string message;
  const std::unique_ptr<Module> module = build_model(plan.model, plan.settings.tiles);
  for (const std::string& problem : mesh_problems(*module, plan.settings, {dp, tp, pp, sp}))
    message += concat("\n  ", problem);
  if (message.empty()) return;
  const Topology topology(ranks, {dp, tp, pp, sp});
  throw_invalid(
      concat(plan.request.model, " cannot be cut over ", topology.factors(), ":", message));
}

/// NCCL buffers no messages, and MPI reaches no memory of a GPU.
void require_messages(const TrainPlan& plan) {
  if (plan.device != DeviceKind::cuda || !launched_by_mpi()) return;
  if (plan.loaded.config.degrees.pp > 1)
    throw_invalid(
        "--device cuda: stages of a pipeline that are processes do not exchange activations of "
        "GPUs yet; let the ranks be threads of one process (--ranks N without mpirun), or take "
        "--device cpu");
}

/// Warnings once, not from every rank; then whatever stops a training run.
void check_config(const TrainPlan& plan, bool leads) {
  const TrainCheck check = check_trainable(plan.loaded, {plan.request.allow_unsupported});
  if (leads) {
    for (const ConfigMessage& warning : plan.loaded.warnings) log_warning(warning.text());
    if (!check.not_implemented.empty()) log_warning(check.not_implemented);
  }
  check.require_ok(plan.loaded);
}

/// Whether both name one file or folder, there already or not. What takes bytes as they come is no
/// such place.
bool same_place(const std::string& a, const std::string& b) {
  std::error_code code;
  if (fs::exists(a, code) && fs::is_other(a, code)) return false;
  if (fs::equivalent(a, b, code)) return true;
  const fs::path place = fs::weakly_canonical(follow_links(a), code);
  return !code && place == fs::weakly_canonical(follow_links(b), code) && !code;
}

/// No output may take the place of something that the run reads, or of another output.
void require_outputs_apart(const TrainRequest& request) {
  std::vector<std::pair<std::string, std::string>> taken = {{"--config", request.config},
                                                            {"--model", request.model}};
  for (const std::string& path : request.data) taken.emplace_back("--data", path);
  for (const std::string& path : request.eval_data) taken.emplace_back("--eval-data", path);
  const auto claim = [&taken](const char* option, const std::string& path) {
    if (path.empty()) return;
    for (const auto& [other, other_path] : taken) {
      if (!same_place(path, other_path)) continue;
      throw_invalid(concat(option, " ", path, " is what ", other,
                           " names too and would overwrite it; choose another path"));
    }
    taken.emplace_back(option, path);
  };
  claim("--metrics", request.metrics);
  if (!request.metrics.empty())
    claim("the resolved configuration of --metrics", resolved_config_path(request));
  claim("--trace", request.trace);
  claim("--print-schedule", request.print_schedule);
  claim("--export", request.export_folder);
  claim("--save", request.save);
}

void open_patterns(TrainPlan& plan) {
  plan.freeze = NamePatterns("--freeze", plan.request.freeze);
  plan.no_decay = NamePatterns("--no-decay", plan.request.no_decay);
}

void require_patterns_found(const TrainPlan& plan) {
  if (plan.request.freeze.empty() && plan.request.no_decay.empty()) return;
  std::vector<std::string> names;
  for (const ParameterSpec& spec : parameters_of(plan.model)) names.push_back(spec.name);
  plan.freeze.require_found(names);
  plan.no_decay.require_found(names);
}

/// What cannot be saved to must not be found out after hours.
void require_savable(const std::string& folder) {
  const fs::path at = existing_folder(folder);
  std::error_code code;
  if (!fs::is_directory(at, code))
    throw IoError(at.string(), ENOTDIR, "expected a folder for --save");
  if (::access(at.c_str(), W_OK) != 0)
    throw IoError(at.string(), errno, "--save cannot write there", "; choose another folder");
}

/// What is written at the end of a run must not fail only then.
void open_outputs(TrainPlan& plan) {
  const TrainRequest& request = plan.request;
  if (!request.metrics.empty())
    plan.metrics = std::make_unique<MetricsFile>(request.metrics, first_step(plan));
  if (!request.save.empty()) require_savable(request.save);
  if (!request.trace.empty()) plan.trace = std::make_unique<OutputFile>(request.trace);
  if (!request.export_folder.empty()) {
    const DType dtype = model_dtype(plan.loaded.config);
    FolderWriter(request.export_folder, to_config_json(plan.model, dtype),
                 exported_tensors(parameters_of(plan.model), dtype));
  }
  if (plan.metrics != nullptr && plan.metrics->is_regular())
    write_text_file(resolved_config_path(request),
                    loadable_json(plan.loaded.config).dump(2) + "\n");
}

/// A larger one would hold samples twice.
void require_micro_batch(const TrainPlan& plan) {
  const std::int64_t rows = plan.settings.micro_batch;
  const std::int64_t samples = plan.data->samples();
  if (rows <= samples) return;
  throw_invalid(concat("train_micro_batch_size_per_gpu is ", rows, ", and --data has ", samples,
                       " samples of ", plan.sequence_length,
                       " tokens; make it smaller, give more data or a shorter --seq-len"));
}

/// Choices by epochs need to know how long one is.
void set_epoch(TrainPlan& plan) {
  DelayedUpdateSettings& delayed = plan.settings.delayed_updates;
  if (!delayed.on() || delayed.select_epochs == 0) return;
  const std::int64_t samples =
      plan.settings.micro_batch * plan.settings.accumulation * plan.settings.dp;
  if (delayed.steps_of_epoch == 0)
    delayed.steps_of_epoch = std::max<std::int64_t>(1, plan.data->samples() / samples);
  if (delayed.steps_between_choices() >= delayed.update_every) return;
  throw ConfigError(
      "zero_optimization.zenflow.update_interval",
      concat("is ", delayed.update_every, ", more than the ", delayed.steps_between_choices(),
             " steps between choices (", delayed.select_epochs, " epochs of ",
             delayed.steps_of_epoch, "); make it smaller, or raise select_interval"));
}

/// Which blocks are updated how often, and what waits, is in no checkpoint.
void require_no_checkpoint(const TrainPlan& plan) {
  if (!plan.settings.delayed_updates.on()) return;
  for (const auto& [option, value] :
       {std::pair("--save", &plan.request.save), std::pair("--resume", &plan.request.resume)}) {
    if (value->empty()) continue;
    throw ConfigError("zero_optimization.zenflow",
                      concat("works without ", option,
                             ": what its updates have under way is in no checkpoint; remove the "
                             "section or the option (--export writes the model)"));
  }
}

/// The export and MPI open files at the end of a run, which must not fail only then.
void require_descriptors() {
  constexpr std::size_t kNeeded = 16;
  std::vector<Descriptor> held;
  while (held.size() < kNeeded) {
    held.emplace_back(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0));
    if (held.back()) continue;
    throw_invalid(concat("a run needs ", kNeeded, " files beside those it has open now, and only ",
                         held.size() - 1, " can be opened; raise the limit (ulimit -n)"));
  }
}

void set_sequence_length(TrainPlan& plan) {
  const std::int64_t longest =
      plan.model.family == ModelConfig::Family::gpt2 ? plan.model.max_positions : INT64_MAX;
  plan.sequence_length = plan.request.sequence_length > 0
                             ? plan.request.sequence_length
                             : std::min(plan.model.max_positions, kDefaultSequence);
  if (plan.sequence_length > longest) {
    throw_invalid(concat("--seq-len ", plan.sequence_length, " is longer than the ", longest,
                         " positions of the model; give at most that"));
  }
}

/// What the process has in memory now; 0 where /proc does not tell.
std::int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::int64_t pages = 0;
  std::int64_t resident = 0;
  return in >> pages >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace

std::int64_t first_step(const TrainPlan& plan) {
  if (plan.resumed == nullptr || !resume_options(plan.request).load_steps) return 1;
  return plan.resumed->run().state.steps + 1;
}

TrainPlan make_plan(const TrainRequest& request, int ranks, bool leads, const Share& share) {
  TrainPlan plan;
  plan.request = request;
  plan.device = device_kind(parse_device_choice(request.device));
  open_patterns(plan);
  require_outputs_apart(request);
  if (!request.device_memory.empty()) plan.device_memory = parse_bytes(request.device_memory);
  if (!request.host_memory.empty()) plan.host_memory = parse_bytes(request.host_memory);
  open_model(plan);
  plan.resumed = open_resumed(request, plan.model);
  if (leads)
    for (const std::string& remark : plan.model.remarks)
      log_warning(concat(request.model, ": ", remark));
  require_patterns_found(plan);
  if (!request.generate.empty() && plan.model.vocab_size < 256)
    throw_invalid(concat("--generate needs a model of bytes: a vocabulary of at least 256, not ",
                         plan.model.vocab_size));
  open_config(plan, ranks);
  open_initial(plan);
  check_config(plan, leads);
  plan.settings = train_settings(plan.loaded.config);
  require_mesh_fits(plan);
  require_messages(plan);
  plan.settings.offload.io.stall_limit = std::chrono::milliseconds(
      static_cast<std::int64_t>(std::min(request.io_timeout, 1e9) * 1000));
  set_sequence_length(plan);
  plan.data = open_data(plan, request.data);
  if (leads) warn_of_bytes(plan, *plan.data);
  require_micro_batch(plan);
  if (plan.resumed != nullptr) require_same_data(plan);
  require_no_checkpoint(plan);
  set_epoch(plan);
  if (!request.eval_data.empty()) plan.eval_data = open_data(plan, request.eval_data);
  plan.allowed_cpus = read_allowed_cpus();
  plan.threads =
      request.threads > 0 ? request.threads : std::max(1, plan.allowed_cpus.count() / share.count);
  require_address_space(launched_by_mpi() ? 1 : ranks, plan.threads);
  if (!request.print_schedule.empty()) {
    require_pipeline(plan);
    if (leads) plan.schedule = std::make_unique<OutputFile>(request.print_schedule);
  }
  if (leads && !request.dry_run) open_outputs(plan);
  require_descriptors();
  plan.resident_bytes = resident_bytes();
  plan.machine_memory = read_machine_memory();
  if (plan.device == DeviceKind::cuda) {
    for (int gpu = 0; gpu < cuda_device_count(); ++gpu)
      plan.gpu_memory.push_back(cuda_free_memory(gpu));
  }
  return plan;
}

bool leaves_in_order(const TrainPlan& plan) {
  return !plan.request.dry_run &&
         (!plan.request.save.empty() || plan.settings.offload.uses_drives());
}

}  // namespace zero3d::tools
