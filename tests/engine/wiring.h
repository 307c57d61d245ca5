// What the tests of configuration keys look at: a short run of a probe of eight blocks of one
// parameter of 2,048 elements each, and what is seen of it.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "zero3d/core/text.h"
#include "zero3d/engine/zero/step_report.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/run_engine.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {

inline constexpr double kUnit = 2048;
inline constexpr double kModel = 8 * kUnit;

/// What is seen of a run: of rank 0, after the last step.
struct Seen {
  std::mutex mutex;  ///< Held by ranks that write what is the same on all.
  RunResult run;
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  double loss_scale = 0;
  double state_elements = 0;   ///< That the optimizer keeps here.
  double record_elements = 0;  ///< Of the first unit.
  double arena = 0;
  double warnings = 0;    ///< Of the optimizer.
  double lines = 0;       ///< Of progress.
  double recomputed = 0;  ///< Blocks, and the groups they make.
  double groups = 0;
  bool saved = false;

  double gradient() const { return run.gradients.back().at("p0").at(0); }
  double calls(const char* operation) const { return entry(operation).calls; }
  double elements(const char* operation) const { return entry(operation).elements; }
  /// Without the exchange of norm and loss.
  double gathered() const {
    const auto ranks = static_cast<int>(run.memory.size());
    const std::int64_t part = StepReporter::exchange_bytes(1) - StepReporter::exchange_bytes(0);
    return elements("all_gather") - static_cast<double>(part) * ranks;
  }
  double bytes(Category category, Tier tier = Tier::device) const {
    return static_cast<double>(run.estimates[0][tier][category]);
  }
  const ParameterState& p0() const { return run.state.at("p0"); }

 private:
  CommVolume::Entry entry(const char* operation) const {
    CommVolume volume = run.volumes.back();
    return volume.operations[operation];
  }
};

using Keys = std::map<std::string, std::string>;
using Gradient = std::function<float(const Moment&)>;

/// A key, two values of it as JSON, and what must be seen of each.
struct Row {
  const char* key;
  const char* values[2];
  Keys with;  ///< Other keys; a stage not given is 3.
  std::function<double(const Seen&)> look;
  double expected[2];
  int ranks = 2;
  int steps = 1;
  Gradient gradient = [](const Moment& at) {
    return static_cast<float>((at.rank + 1) << at.micro_batch);  // mean over two ranks 1.5 2^m
  };
};

/// {"a.b": "1", "c": "2"} as {"a": {"b": 1}, "c": 2}; keys come in order.
inline std::string json_of(const Keys& keys) {
  std::string text = "{";
  std::vector<std::string> open;
  for (const auto& [key, value] : keys) {
    std::vector<std::string> path;
    std::size_t begin = 0;
    for (std::size_t dot; (dot = key.find('.', begin)) != std::string::npos; begin = dot + 1)
      path.push_back(key.substr(begin, dot - begin));
    std::size_t common = 0;
    while (common < std::min(open.size(), path.size()) && open[common] == path[common]) ++common;
    text.append(open.size() - common, '}');
    if (text.back() != '{') text += ", ";
    open.resize(common);
    for (; common < path.size(); ++common) {
      text += concat('"', path[common], "\": {");
      open.push_back(path[common]);
    }
    text += concat('"', key.substr(begin), "\": ", value);
  }
  return text + std::string(open.size() + 1, '}');
}

inline RunOptions options_of(const Row& row, Seen& seen, const std::string& folder) {
  RunOptions options = probe_options(
      std::vector<std::int64_t>(8, static_cast<std::int64_t>(kUnit)),
      [gradient = row.gradient](int, const Moment& at) { return gradient(at); }, row.ranks);
  options.steps = row.steps;
  options.engine.state_store = [&seen](Device& device, const std::vector<RecordLayout>& records) {
    double elements = 0;
    for (const RecordLayout& unit : records) elements += static_cast<double>(unit.elements());
    const std::lock_guard lock(seen.mutex);
    seen.state_elements = elements;
    seen.record_elements = static_cast<double>(records[0].record_elements());
    return make_device_state_store(device, records);
  };
  options.after = [&seen, folder](Engine& engine, int rank) {
    const bool saved = engine.save_16bit_model(folder);
    if (rank != 0) return;
    seen.saved = saved;
    seen.steps = engine.global_steps();
    seen.samples = engine.global_samples();
    seen.loss_scale = engine.loss_scale();
    seen.arena = static_cast<double>(engine.model().passes().arena_elements());
    for (const Op& op : engine.model().plan().training) {
      seen.recomputed += op.kind == OpKind::recompute ? 1 : 0;
      seen.groups += keeps_inputs(op.keep) ? 1 : 0;
    }
    seen.warnings = static_cast<double>(engine.model().setup().rules().warnings.size());
  };
  return options;
}

/// What `row` looks at when its key has `value`. @NVME@ is a folder of the run's own.
inline double see(const Row& row, const std::string& value) {
  Keys keys = {{"train_micro_batch_size_per_gpu", "1"},
               {"optimizer.type", R"("Adam")"},
               {"optimizer.params.lr", "0.125"},
               {"zero_allow_untested_optimizer", "true"},
               {"zero_optimization.stage", "3"},
               {"zero_optimization.stage3_param_persistence_threshold", "0"},
               {"zero_optimization.stage3_max_reuse_distance", "0"},
               {"zero_optimization.stage3_prefetch_bucket_size", "0"}};
  for (const auto& [key, other] : row.with) keys[key] = other;
  keys[row.key] = value;
  const TemporaryFolder folder;
  const LogCapture log;
  Seen seen;
  std::string text = json_of(keys);
  if (const std::size_t at = text.find("@NVME@"); at != std::string::npos)
    text.replace(at, 6, folder.file("drive"));
  seen.run = run_engine(text, options_of(row, seen, folder.file("out")));
  seen.lines = static_cast<double>(log.with("step=").size());
  return row.look(seen);
}

}  // namespace zero3d::test
