#include "train_resume.h"

#include <algorithm>
#include <map>

#include "saved_states.h"
#include "train_facts.h"
#include "train_plan.h"
#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/load.h"
#include "zero3d/engine/checkpoint/checkpoint_folder.h"
#include "zero3d/formats/hjson.h"
#include "zero3d/formats/problem_list.h"
#include "zero3d/models/build.h"

namespace zero3d::tools {
namespace {

constexpr const char* kData = "data";
constexpr const char* kSequence = "sequence_length";
constexpr const char* kOrder = "order";

bool overrides(const TrainRequest& request, std::string_view key) {
  return std::find(request.overrides.begin(), request.overrides.end(), key) !=
         request.overrides.end();
}

/// Puts the value at `path`, a key or a section's key, of the checkpoint's configuration in the
/// place of the file's.
void take_over(const JsonValue& from, JsonValue& to, const std::string& path) {
  const JsonValue* const value = from.find_path(path);
  JsonValue* target = &to;
  std::string key = path;
  for (std::size_t dot; (dot = key.find('.')) != std::string::npos; key = key.substr(dot + 1)) {
    JsonValue* section = target->find(key.substr(0, dot));
    if (section == nullptr || !section->is_object()) {
      if (value == nullptr) return;
      section = &target->set(key.substr(0, dot), JsonValue::make_object());
    }
    target = section;
  }
  if (value == nullptr) {
    target->erase(key);
  } else {
    target->set(key, *value);
  }
}

}  // namespace

std::vector<std::vector<ParameterSpec>> blocks_of(const ModelConfig& model) {
  std::vector<std::vector<ParameterSpec>> blocks;
  const std::unique_ptr<Module> module = build_model(model);
  for (const auto& block : module->blocks()) blocks.push_back(block->parameters());
  return blocks;
}

std::unique_ptr<SavedState> open_resumed(const TrainRequest& request, const ModelConfig& model) {
  if (request.resume.empty()) return nullptr;
  std::string folder = request.resume;
  if (folder == kLatestName) {
    if (request.save.empty())
      throw_invalid("--resume latest goes on from the last checkpoint of --save: name that folder");
    folder = request.save;
    if (!is_checkpoint(folder) && !read_latest(folder)) {
      log_info(concat("--resume latest: ", folder, " has no checkpoint yet; the run begins"));
      return nullptr;
    }
  }
  return open_saved_state(folder, {blocks_of(model), request.map});
}

std::string overridden_config(const TrainRequest& request, const SavedState& saved,
                              const std::string& text) {
  const std::map<std::string, std::vector<std::string>> paths = {
      {"lr", {"optimizer.params.lr"}},
      {"clipping", {"gradient_clipping"}},
      {"batch",
       {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}},
      {"schedule", {"scheduler"}}};
  JsonValue root;
  for (const std::string& key : request.overrides) {
    const auto found = paths.find(key);
    if (found == paths.end()) continue;
    const JsonValue* const config = train_fact(saved, kTrainConfig);
    if (config == nullptr || !config->is_object())
      throw_invalid(concat(saved.path(),
                           " does not hold the configuration of its run, so that "
                           "--override ",
                           key, " has nothing to take; leave it out"));
    std::vector<HjsonProblem> duplicates;  // the loader speaks of them
    if (root.is_null()) root = parse_hjson(text, request.config, duplicates);
    for (const std::string& path : found->second) take_over(*config, root, path);
    // What the ranks of this run leave to it.
    if (key == "batch") root.erase("gradient_accumulation_steps");
  }
  return root.is_null() ? text : root.dump(2);
}

void require_same_model(const SavedState& saved, const std::vector<ParameterSpec>& parameters) {
  ProblemList problems;
  std::set<std::string_view> known;
  for (const ParameterSpec& spec : parameters) {
    known.insert(spec.name);
    const SavedParameter* const entry = saved.find(spec.name);
    if (entry == nullptr) {
      problems.add(concat(spec.name, " is not in the checkpoint"));
    } else if (entry->shape != spec.shape) {
      problems.add(concat(spec.name, " is ", to_string(entry->shape), " in the checkpoint, and ",
                          to_string(spec.shape), " in --model"));
    }
  }
  for (const SavedParameter& entry : saved.parameters())
    if (known.count(entry.name) == 0)
      problems.add(concat(entry.name, " is in the checkpoint, and not in --model"));
  if (!problems.empty())
    throw_invalid(
        concat("--resume: ", problems.text(concat(saved.path(), " is of another model"))));
}

void require_same_data(const TrainPlan& plan) {
  if (overrides(plan.request, "data")) return;
  const auto refuse = [&](const char* what, const std::string& was, const std::string& is) {
    throw_invalid(concat("--resume: ", plan.resumed->path(), " is of a run on other data: ", what,
                         " was ", was, " and is ", is,
                         "; give the same, or --override data to begin with these"));
  };
  const auto compare = [&](const char* name, const char* what, const std::string& now) {
    const JsonValue* const before = train_fact(*plan.resumed, name);
    if (before == nullptr || !before->is_string() || before->as_string() == now) return;
    refuse(what, before->as_string(), now);
  };
  compare(kData, "--data", describe_tokens(plan.data.get()));
  compare(kSequence, "--seq-len", std::to_string(plan.sequence_length));
  compare(kOrder, "--order", plan.request.order);
}

JsonValue run_facts(const TrainPlan& plan) {
  JsonValue facts = JsonValue::make_object();
  facts.set(kData, JsonValue(describe_tokens(plan.data.get())));
  facts.set(kSequence, JsonValue(std::to_string(plan.sequence_length)));
  facts.set(kOrder, JsonValue(plan.request.order));
  facts.set(kModelConfig,
            JsonValue(to_config_json(plan.model, plan.settings.precision.parameters)));
  facts.set(kModel, JsonValue(plan.request.model));
  facts.set(kTrainConfig, loadable_json(plan.loaded.config));
  JsonValue client = JsonValue::make_object();
  client.set(kTrainFacts, std::move(facts));
  return client;
}

LoadCheckpointOptions resume_options(const TrainRequest& request) {
  LoadCheckpointOptions options;
  options.parameters_are_there = true;
  options.load_steps = !overrides(request, "steps");
  options.load_optimizer_states = !overrides(request, "moments");
  options.load_loss_scale = !overrides(request, "scaler");
  options.load_data_position = !overrides(request, "data");
  options.load_seed = !overrides(request, "seed");
  return options;
}

}  // namespace zero3d::tools
