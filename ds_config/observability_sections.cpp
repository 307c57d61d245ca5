// The keys of the monitors, comms_logger, flops_profiler, timers and autotuning.
#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/reader.h"

namespace zero3d::config {

namespace {

constexpr std::nullopt_t none = std::nullopt;

constexpr std::array kFileMonitorRows =
    strictly(std::array{flag("enabled", false, "Write the run's scalars."),
                        text("output_path", "", "Folder of the files; \"\" is the working folder."),
                        text("job_name", "DeepSpeedJobName", "Folder inside output_path.")});

constexpr std::array kWandbRows = strictly(
    std::array{flag("enabled", false, "Send the run's scalars to Weights & Biases."),
               text("group", none, "Group of runs."), text("team", none, "Team that owns the run."),
               text("project", "deepspeed", "Project of the run.")});

constexpr std::array kCometRows = strictly(std::array{
    flag("enabled", false, "Send the run's scalars to Comet."),
    integer("samples_log_interval", 100, "Samples between values."),
    text("project", none, "Project of the run."),
    text("workspace", none, "Workspace of the project."),
    text("api_key", none, "Key of the account."), text("experiment_name", none, "Name of the run."),
    text("experiment_key", none, "Key of the run."), flag("online", none, "Send while running."),
    text("mode", none, "Create, get or either.")});

/// Names; whatever else stands in the list counts by its text.
void read_operations(Reader& r, const Stated& s, JsonValue& out) {
  if (!s.value.is_array()) {
    r.refuse(s, "a list of names", s.value.is_string() ? "put it in [ ]" : "");
    return;
  }
  for (const JsonValue& item : s.value.items())
    out.push_back(item.is_string() ? item : JsonValue(item.dump()));
}

constexpr std::array kCommsLoggerRows = strictly(std::array{
    flag("enabled", false, "Log every collective. (DeepSpeed logs when the section is there.)"),
    flag("prof_all", true, "All operations, not only those of prof_ops."),
    texts("prof_ops", "", "Operations to log.").by(read_operations),
    flag("verbose", false, "A line for each operation."),
    flag("debug", false, "With the caller's name.")});

constexpr std::array kFlopsProfilerRows = {
    bit("enabled", false, "Profile one step; also turns wall_clock_breakdown on.").check(),
    number("recompute_fwd_factor", 0.0, "Share of the forward run again."),
    integer("profile_step", 1, "The step to profile."),
    integer("module_depth", -1, "Depth of the report; -1 all."),
    integer("top_modules", 1, "Modules listed at each depth."),
    flag("detailed", true, "With every module."),
    text("output_file", none, "File of the report; null prints it.")};

constexpr std::array kThroughputRows = strictly(
    std::array{flag("enabled", true, "Measure samples a second."),
               flag("synchronized", true, "Wait for the device before reading the clock.")});
constexpr Section kThroughput = {kThroughputRows, true};
constexpr std::array kTimersRows = {nested("throughput", kThroughput, "The throughput timer.")};

constexpr std::array kModelInfoRows = {flag("profile", false, "Measure the model."),
                                       integer("num_params", none, "Parameters of the model."),
                                       integer("hidden_size", none, "Hidden size of the model."),
                                       integer("num_layers", none, "Layers of the model.")};
constexpr Section kModelInfo = {kModelInfoRows};

constexpr std::array kAutotuningRows = {
    flag("enabled", false, "Search for the fastest settings instead of training."),
    flag("fast", true, "Only micro-batch size and ZeRO stage."),
    text("results_dir", "autotuning_results", "Folder of the results."),
    text("exps_dir", "autotuning_exps", "Folder of the experiments."),
    flag("overwrite", true, "Replace earlier results."),
    integer("start_profile_step", 3, "First step measured."),
    integer("end_profile_step", 5, "Last step measured."),
    text("metric", "throughput", "What is maximised."),
    text("metric_path", none, "File of the metric."),
    text("tuner_type", "gridsearch", "gridsearch, random or model_based."),
    integer("tuner_early_stopping", 5, "Trials without a gain before the end."),
    integer("tuner_num_trials", 50, "Trials at most."),
    any("arg_mappings", "Command-line names of settings."),
    nested("model_info", kModelInfo, "Facts of the model.").optional(),
    text("model_info_path", none, "File with them."),
    integer("mp_size", 1, "Model-parallel degree."),
    integer("max_train_batch_size", none, "Largest global batch tried."),
    integer("min_train_batch_size", 1, "Smallest global batch tried."),
    integer("max_train_micro_batch_size_per_gpu", 1024, "Largest micro-batch tried."),
    integer("min_train_micro_batch_size_per_gpu", 1, "Smallest micro-batch tried."),
    integer("num_tuning_micro_batch_sizes", 3, "Micro-batch sizes tried.")};

}  // namespace

constexpr Section kTensorboard = {kFileMonitorRows, true};
constexpr Section kCsvMonitor = {kFileMonitorRows, true};
constexpr Section kWandb = {kWandbRows, true};
constexpr Section kComet = {kCometRows, true};
constexpr Section kCommsLogger = {kCommsLoggerRows, true};
constexpr Section kFlopsProfiler = {kFlopsProfilerRows};
constexpr Section kTimers = {kTimersRows};
constexpr Section kAutotuning = {kAutotuningRows};

}  // namespace zero3d::config
