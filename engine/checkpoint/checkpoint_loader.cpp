// load_checkpoint: what the ranks agree on before they load, and what of the run's numbers comes
// from the checkpoint.
#include <algorithm>
#include <map>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/checkpoint/checkpoint.h"
#include "zero3d/engine/checkpoint/state_loader.h"
#include "zero3d/engine/checkpoint/try_together.h"

namespace zero3d {
namespace {

/// Names of this rank's parameters, a line each.
std::string own_names(const ShardedModel& model) {
  std::string names;
  for (const LayoutParameter& parameter : model.plan().layout.parameters())
    names += concat(parameter.spec.name, "\n");
  return names;
}

void require_goes_with(const SavedState& saved, const ShardedModel& model, const LoadWhat& what) {
  Communicator& world = model.mesh().world();
  std::vector<std::string> names;
  for (const std::string& all : world.exchange(own_names(model)))
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t end = all.find('\n', at);
      names.push_back(all.substr(at, end - at));
      at = end + 1;
    }
  try_together(world, [&] {
    std::string problem = find_mismatch(saved, model, what);
    if (problem.empty()) problem = find_strangers(saved, names);
    if (!problem.empty()) throw Error(ErrorKind::kInvalid, concat(saved.path(), ": ", problem));
    return std::string();
  });
}

/// A loss scale that adapts goes on from where it was; one that does not is the run's own.
bool scale_goes_on(const SavedRun& saved, const ShardedModel& model) {
  return saved.scale == SavedScale::dynamic && model.loss_scaler().dynamic();
}

void take_numbers(const SavedRun& saved, ShardedModel& model,
                  const LoadCheckpointOptions& options) {
  const RunState& from = saved.state;
  RunState& state = model.state();
  if (options.load_steps) {
    state.steps = from.steps;
    state.samples = from.samples;
    state.micro_steps = from.micro_steps;
    state.skipped_steps = from.skipped_steps;
    state.consecutive_skips = from.consecutive_skips;
    if (options.load_lr_scheduler_states) state.schedule_steps = from.schedule_steps;
  }
  if (options.load_optimizer_states) state.optimizer_steps = from.optimizer_steps;
  if (options.load_optimizer_states && options.load_loss_scale && scale_goes_on(saved, model))
    state.scaler = from.scaler;
  if (options.load_data_position) state.data_position = from.data_position;
  if (options.load_seed && saved.knows_seed) state.seed = from.seed;
}

/// The settings that are compared, and the longest name of which each has the beginning.
constexpr std::string_view kCompared[] = {"micro-batch", "accumulation", "gradient clipping",
                                          "optimizer", "schedule"};
/// They begin like one of those.
constexpr std::string_view kOthers[] = {"accumulation in", "optimizer state", "optimizer tile"};

/// Name and value of what a run is compared by: "optimizer lr" and "0.001".
std::map<std::string, std::string> compared(const std::string& settings) {
  std::map<std::string, std::string> result;
  for (std::size_t at = 0; at < settings.size();) {
    const std::size_t end = std::min(settings.find("; ", at), settings.size());
    const std::string_view item = std::string_view(settings).substr(at, end - at);
    at = end + 2;
    const auto begins = [&](std::string_view name) {
      return item.starts_with(name) && item.size() > name.size() && item[name.size()] == ' ';
    };
    if (std::any_of(std::begin(kOthers), std::end(kOthers), begins)) continue;
    const auto name = std::find_if(std::begin(kCompared), std::end(kCompared), begins);
    if (name == std::end(kCompared)) continue;
    std::string_view rest = item.substr(name->size() + 1);
    std::string key(*name);
    const std::size_t blank = rest.find(' ');
    if ((*name == "optimizer" || *name == "schedule") && blank != std::string_view::npos) {
      key += concat(" ", rest.substr(0, blank));
      rest = rest.substr(blank + 1);
    }
    result.emplace(std::move(key), rest);
  }
  return result;
}

}  // namespace

std::vector<std::string> changed_settings(const std::string& before, const std::string& now) {
  if (before.empty()) return {};
  const std::map<std::string, std::string> old = compared(before);
  const std::map<std::string, std::string> fresh = compared(now);
  std::vector<std::string> lines;
  for (const auto& [name, value] : fresh) {
    const auto was = old.find(name);
    if (was == old.end())
      lines.push_back(concat(name, " is ", value, ", and was not given when it was saved"));
    else if (was->second != value)
      lines.push_back(concat(name, " is ", value, ", and was ", was->second));
  }
  for (const auto& [name, value] : old)
    if (fresh.count(name) == 0)
      lines.push_back(concat(name, " was ", value, ", and is not given now"));
  return lines;
}

LoadedCheckpoint load_checkpoint(ShardedModel& model, const SavedState& saved,
                                 const LoadCheckpointOptions& options) {
  require_nothing_delayed(model, "load_checkpoint()");
  LoadWhat what;
  what.parameters = !options.parameters_are_there;
  what.states = options.load_optimizer_states && !options.load_module_only;
  require_goes_with(saved, model, what);
  Communicator& world = model.mesh().world();
  try_together(world, [&] {
    model.plan_checkpoints(load_bytes(model.plan()), false);
    return std::string();
  });
  fail_together(world, [&] { load_state(saved, model, what); });
  LoadedCheckpoint result;
  result.path = saved.path();
  if (options.load_module_only) return result;
  take_numbers(saved.run(), model, options);
  // A window of another number of micro-batches has other counts at its start.
  const std::int64_t accumulation = model.train_settings().accumulation;
  RunState& state = model.state();
  if (state.micro_steps % accumulation != 0 || state.micro_steps < state.steps)
    state.micro_steps = state.steps * accumulation;
  result.client_state = saved.run().client_state;
  result.changes = changed_settings(saved.run().settings, describe(model.train_settings()));
  return result;
}

}  // namespace zero3d
