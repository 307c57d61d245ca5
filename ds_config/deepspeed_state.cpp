#include "zero3d/ds_config/deepspeed_state.h"

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/printable.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/pipeline_names.h"
#include "zero3d/optim/schedule.h"

namespace zero3d {
namespace {

std::vector<std::int64_t> dims_of(const Shape& shape) {
  std::vector<std::int64_t> dims;
  for (int dim = 0; dim < shape.rank(); ++dim) dims.push_back(shape[dim]);
  return dims;
}

Shape shape_of(const DeepspeedParameter& parameter, const std::string& path) {
  if (parameter.shape.size() > Shape::kMaxRank)
    throw IoError(path, 0,
                  concat(printable(parameter.name, 120), " has ", parameter.shape.size(),
                         " dims; expected at most ", Shape::kMaxRank));
  Shape shape;
  for (const std::int64_t dim : parameter.shape) shape.append(dim);
  return shape;
}

std::vector<std::vector<NamedShape>> names_of(
    const std::vector<std::vector<ParameterSpec>>& blocks) {
  std::vector<std::vector<NamedShape>> names;
  for (const std::vector<ParameterSpec>& block : blocks) {
    names.emplace_back();
    for (const ParameterSpec& spec : block)
      names.back().push_back({spec.name, dims_of(spec.shape)});
  }
  return names;
}

}  // namespace

DeepspeedState::DeepspeedState(const std::string& path)
    : checkpoint_(path), path_(checkpoint_.facts().folder) {
  read_run();
  std::vector<SavedParameter> entries;
  for (const DeepspeedParameter& parameter : checkpoint_.parameters()) {
    sources_.emplace(parameter.name, &parameter);
    entries.push_back(entry_of(parameter));
  }
  set_parameters(std::move(entries));
}

DeepspeedState::DeepspeedState(const std::string& path,
                               const std::vector<std::vector<ParameterSpec>>& blocks,
                               const std::map<std::string, std::string>& renames)
    : checkpoint_(path), path_(checkpoint_.facts().folder) {
  read_run();
  const MatchedNames matched = match_names(checkpoint_, names_of(blocks), renames);
  remarks_.insert(remarks_.end(), matched.remarks.begin(), matched.remarks.end());
  std::vector<SavedParameter> entries;
  for (const std::vector<ParameterSpec>& block : blocks) {
    for (const ParameterSpec& spec : block) {
      const auto name = matched.names.find(spec.name);
      if (name == matched.names.end()) continue;
      const DeepspeedParameter* const source = checkpoint_.find(name->second);
      if (!sources_.emplace(spec.name, source).second) continue;  // tied: it is there already
      entries.push_back(entry_of(*source));
      entries.back().name = spec.name;
    }
  }
  set_parameters(std::move(entries));
}

SavedParameter DeepspeedState::entry_of(const DeepspeedParameter& parameter) const {
  SavedParameter entry;
  entry.name = parameter.name;
  entry.shape = shape_of(parameter, path_);
  entry.frozen = parameter.frozen;
  const DType weights = checkpoint_.facts().dtype.value_or(DType::f32);
  entry.tensors.emplace(kWeight, parameter.frozen ? weights : DType::f32);
  for (const std::string& state : parameter.states) entry.tensors.emplace(state, DType::f32);
  return entry;
}

void DeepspeedState::read_run() {
  const DeepspeedFacts& facts = checkpoint_.facts();
  remarks_ = facts.remarks;
  RunState& state = run_.state;
  state.steps = facts.global_steps;
  state.samples = state.data_position = facts.global_samples;
  state.skipped_steps = facts.skipped_steps;
  for (const DeepspeedGroup& group : facts.groups)
    state.optimizer_steps = std::max(state.optimizer_steps, group.step);
  for (const DeepspeedParameter& parameter : checkpoint_.parameters())
    state.optimizer_steps = std::max(state.optimizer_steps, parameter.step);
  if (state.optimizer_steps == 0)
    state.optimizer_steps = std::max<std::int64_t>(0, state.steps - state.skipped_steps);
  const auto schedule = facts.scheduler.find("last_batch_iteration");
  state.schedule_steps =
      schedule == facts.scheduler.end()
          ? state.optimizer_steps
          : std::max<std::int64_t>(0, applied_updates(static_cast<std::int64_t>(schedule->second)));
  if (facts.loss_scale) {
    const DeepspeedLossScale& scale = *facts.loss_scale;
    run_.scale = scale.dynamic ? SavedScale::dynamic : SavedScale::fixed;
    state.scaler = {scale.scale, scale.iteration, scale.last_overflow, scale.hysteresis};
  }
  run_.knows_seed = false;
  run_.mesh = {facts.zero_ranks, facts.tensor_ranks, facts.pipeline_stages, 1};
  run_.writer =
      concat("DeepSpeed", facts.ds_version.empty() ? "" : " ", printable(facts.ds_version, 40),
             facts.universal  ? ", universal"
             : facts.pipeline ? concat(", pipeline, ZeRO stage ", facts.zero_stage)
                              : concat(", ZeRO stage ", facts.zero_stage));
}

void DeepspeedState::read(const SavedParameter& parameter, std::string_view tensor,
                          std::span<const GlobalRun> runs, const View& dst) const {
  const DeepspeedParameter& source = *sources_.at(parameter.name);
  const std::string_view what = tensor == kWeight ? DeepspeedCheckpoint::kMaster : tensor;
  for (const GlobalRun& run : runs)
    checkpoint_.read(source, what, run.global_first, dst.flat(run.offset, run.count));
}

}  // namespace zero3d
