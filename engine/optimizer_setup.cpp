#include "zero3d/engine/optimizer_setup.h"

#include "zero3d/core/error.h"

namespace zero3d {
namespace {

OptimizerRules make_rules(const OptimizerChoice& choice) {
  if (choice.type.empty())
    throw ConfigError("optimizer", "training needs an optimizer: name its type, for example AdamW");
  return make_update_rule(choice);
}

GroupSettings with_overrides(GroupSettings settings, const ParameterGroup& group) {
  settings.lr = group.lr.value_or(settings.lr);
  settings.weight_decay = group.weight_decay.value_or(settings.weight_decay);
  settings.beta1 = group.beta1.value_or(settings.beta1);
  settings.beta2 = group.beta2.value_or(settings.beta2);
  settings.eps = group.eps.value_or(settings.eps);
  return settings;
}

}  // namespace

OptimizerSetup::OptimizerSetup(const OptimizerChoice& optimizer, const ScheduleChoice& schedule,
                               std::vector<ParameterGroup> user_groups)
    : user_groups_(std::move(user_groups)), rules_(make_rules(optimizer)) {
  user_groups_.push_back({.matches = [](const ParameterSpec&) { return true; }});
  for (const ParameterGroup& user : user_groups_) {
    for (const bool decay : {true, false}) {
      for (const bool aux : {false, true}) {
        if (aux && !rules_.aux_rule) continue;
        GroupSettings settings = with_overrides(aux ? rules_.aux_settings : rules_.settings, user);
        if (!decay) settings.weight_decay = 0;
        base_.push_back(settings);
        group_rules_.push_back(aux ? rules_.aux_rule.get() : rules_.rule.get());
      }
    }
  }
  if (!schedule.type.empty())
    schedule_ = make_schedule(schedule.type, schedule.params, base_, rules_.has_betas);
}

int OptimizerSetup::group_of(const ParameterSpec& parameter) const {
  const int halves = rules_.aux_rule ? 2 : 1;
  const int aux = rules_.aux_rule && !muon_takes(parameter.name, parameter.shape) ? 1 : 0;
  int user = 0;
  while (!user_groups_[static_cast<std::size_t>(user)].matches(parameter)) ++user;
  return (user * 2 + (parameter.decay ? 0 : 1)) * halves + aux;
}

std::vector<GroupSettings> OptimizerSetup::settings(std::int64_t applied) const {
  std::vector<GroupSettings> current = base_;
  if (schedule_) schedule_->apply(applied, current);
  return current;
}

std::vector<std::string> OptimizerSetup::description() const {
  std::vector<std::string> lines = {rules_.rule->description()};
  if (rules_.aux_rule) lines.push_back("other parameters: " + rules_.aux_rule->description());
  lines.push_back(schedule_ ? schedule_->description() : "constant learning rate");
  return lines;
}

std::vector<std::string> OptimizerSetup::warnings() const {
  std::vector<std::string> all = rules_.warnings;
  if (schedule_) all.insert(all.end(), schedule_->warnings().begin(), schedule_->warnings().end());
  return all;
}

}  // namespace zero3d
