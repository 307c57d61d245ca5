// Descriptions of the monitors, comms_logger, flops_profiler, timers and autotuning.
#include "zero3d/ds_config/observability_sections.h"

#include "zero3d/ds_config/field.h"

namespace zero3d::config {

namespace {

Section file_monitor(const char* name) {
  using C = FileMonitorConfig;
  SectionBuilder<C> b(name, true);
  b.add("enabled", &C::enabled, "Write the run's scalars.");
  b.add("output_path", &C::output_path, "Folder of the files; \"\" is the working folder.");
  b.add("job_name", &C::job_name, "Folder inside output_path.");
  return b.build();
}

}  // namespace

const Section& tensorboard_section() {
  static const Section section = file_monitor("tensorboard");
  return section;
}

const Section& csv_monitor_section() {
  static const Section section = file_monitor("csv_monitor");
  return section;
}

const Section& wandb_section() {
  static const Section section = [] {
    using C = WandbConfig;
    SectionBuilder<C> b("wandb", true);
    b.add("enabled", &C::enabled, "Send the run's scalars to Weights & Biases.");
    b.add("group", &C::group, "Group of runs.");
    b.add("team", &C::team, "Team that owns the run.");
    b.add("project", &C::project, "Project of the run.");
    return b.build();
  }();
  return section;
}

const Section& comet_section() {
  static const Section section = [] {
    using C = CometConfig;
    SectionBuilder<C> b("comet", true);
    b.add("enabled", &C::enabled, "Send the run's scalars to Comet.");
    b.add("samples_log_interval", &C::samples_log_interval, "Samples between values.");
    b.add("project", &C::project, "Project of the run.");
    b.add("workspace", &C::workspace, "Workspace of the project.");
    b.add("api_key", &C::api_key, "Key of the account.");
    b.add("experiment_name", &C::experiment_name, "Name of the run.");
    b.add("experiment_key", &C::experiment_key, "Key of the run.");
    b.add("online", &C::online, "Send while running.");
    b.add("mode", &C::mode, "Create, get or either.");
    return b.build();
  }();
  return section;
}

const Section& comms_logger_section() {
  static const Section section = [] {
    using C = CommsLoggerConfig;
    SectionBuilder<C> b("comms_logger", true);
    b.add("enabled", &C::enabled,
          "Log every collective. (DeepSpeed logs when the section is there.)");
    b.add("prof_all", &C::prof_all, "All operations, not only those of prof_ops.");
    b.custom(
        "prof_ops", "list of strings", "Operations to log.",
        [](Reader& r, const Field& f, const std::string& path, const JsonValue& value, C& out) {
          if (!value.is_array()) {
            r.refuse(f, path, value, "a list of names", value.is_string() ? "put it in [ ]" : "");
            return;
          }
          for (const JsonValue& item : value.items()) {
            out.prof_ops.push_back(item.is_string() ? item.as_string() : item.dump());
          }
        },
        [](const C& in) { return write_value(in.prof_ops); });
    b.add("verbose", &C::verbose, "A line for each operation.");
    b.add("debug", &C::debug, "With the caller's name.");
    return b.build();
  }();
  return section;
}

const Section& flops_profiler_section() {
  static const Section section = [] {
    using C = FlopsProfilerConfig;
    SectionBuilder<C> b("flops_profiler", false);
    b.custom(
         "enabled", "bool", "Profile one step; also turns wall_clock_breakdown on.",
         [](Reader& r, const Field& f, const std::string& path, const JsonValue& value, C& out) {
           read_bit(r, f, path, value, out.enabled);
         },
         [](const C& in) { return JsonValue(in.enabled); })
        .check();
    b.add("recompute_fwd_factor", &C::recompute_fwd_factor, "Share of the forward run again.");
    b.add("profile_step", &C::profile_step, "The step to profile.");
    b.add("module_depth", &C::module_depth, "Depth of the report; -1 all.");
    b.add("top_modules", &C::top_modules, "Modules listed at each depth.");
    b.add("detailed", &C::detailed, "With every module.");
    b.add("output_file", &C::output_file, "File of the report; null prints it.");
    return b.build();
  }();
  return section;
}

namespace {

const Section& throughput_section() {
  static const Section section = [] {
    using C = ThroughputTimerConfig;
    SectionBuilder<C> b("timers.throughput", true);
    b.add("enabled", &C::enabled, "Measure samples a second.");
    b.add("synchronized", &C::synchronized, "Wait for the device before reading the clock.");
    return b.build();
  }();
  return section;
}

const Section& model_info_section() {
  static const Section section = [] {
    using C = AutotuningModelInfo;
    SectionBuilder<C> b("autotuning.model_info", false);
    b.add("profile", &C::profile, "Measure the model.");
    b.add("num_params", &C::num_params, "Parameters of the model.");
    b.add("hidden_size", &C::hidden_size, "Hidden size of the model.");
    b.add("num_layers", &C::num_layers, "Layers of the model.");
    return b.build();
  }();
  return section;
}

}  // namespace

const Section& timers_section() {
  static const Section section = [] {
    SectionBuilder<TimersConfig> b("timers", false);
    b.nest("throughput", &TimersConfig::throughput, throughput_section(), "The throughput timer.");
    return b.build();
  }();
  return section;
}

const Section& autotuning_section() {
  static const Section section = [] {
    using C = AutotuningConfig;
    SectionBuilder<C> b("autotuning", false);
    b.add("enabled", &C::enabled, "Search for the fastest settings instead of training.");
    b.add("fast", &C::fast, "Only micro-batch size and ZeRO stage.");
    b.add("results_dir", &C::results_dir, "Folder of the results.");
    b.add("exps_dir", &C::exps_dir, "Folder of the experiments.");
    b.add("overwrite", &C::overwrite, "Replace earlier results.");
    b.add("start_profile_step", &C::start_profile_step, "First step measured.");
    b.add("end_profile_step", &C::end_profile_step, "Last step measured.");
    b.add("metric", &C::metric, "What is maximised.");
    b.add("metric_path", &C::metric_path, "File of the metric.");
    b.add("tuner_type", &C::tuner_type, "gridsearch, random or model_based.");
    b.add("tuner_early_stopping", &C::tuner_early_stopping,
          "Trials without a gain before the end.");
    b.add("tuner_num_trials", &C::tuner_num_trials, "Trials at most.");
    b.add("arg_mappings", &C::arg_mappings, "Command-line names of settings.").or_null();
    b.nest("model_info", &C::model_info, model_info_section(), "Facts of the model.");
    b.add("model_info_path", &C::model_info_path, "File with them.");
    b.add("mp_size", &C::mp_size, "Model-parallel degree.");
    b.add("max_train_batch_size", &C::max_train_batch_size, "Largest global batch tried.");
    b.add("min_train_batch_size", &C::min_train_batch_size, "Smallest global batch tried.");
    b.add("max_train_micro_batch_size_per_gpu", &C::max_train_micro_batch_size_per_gpu,
          "Largest micro-batch tried.");
    b.add("min_train_micro_batch_size_per_gpu", &C::min_train_micro_batch_size_per_gpu,
          "Smallest micro-batch tried.");
    b.add("num_tuning_micro_batch_sizes", &C::num_tuning_micro_batch_sizes,
          "Micro-batch sizes tried.");
    return b.build();
  }();
  return section;
}

}  // namespace zero3d::config
