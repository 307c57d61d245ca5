// From a run's settings to what drives the optimizer: groups with their rules and settings, the
// schedule.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zero3d/engine/module.h"
#include "zero3d/optim/make_rule.h"
#include "zero3d/optim/schedule.h"

namespace zero3d {

/// Parameters that share settings which differ from the run's. The first group that
/// matches a parameter takes it; what none takes forms the default group, with weight decay where
/// ParameterSpec::decay is set.
struct ParameterGroup {
  std::function<bool(const ParameterSpec&)> matches;
  std::optional<double> lr;
  std::optional<double> weight_decay;
  std::optional<double> beta1;
  std::optional<double> beta2;
  std::optional<double> eps;
};

/// Every parameter belongs to one group: (user group or default) x (decay or not) x (rule or Muon's
/// Adam half).
class OptimizerSetup {
 public:
  /// Throws ConfigError for what cannot be trained.
  OptimizerSetup(const OptimizerChoice& optimizer, const ScheduleChoice& schedule,
                 std::vector<ParameterGroup> user_groups);

  int group_of(const ParameterSpec& parameter) const;
  int group_count() const { return static_cast<int>(group_rules_.size()); }
  const UpdateRule& rule(int group) const { return *group_rules_[static_cast<std::size_t>(group)]; }
  /// What update number `applied` + 1 uses, per group.
  std::vector<GroupSettings> settings(std::int64_t applied) const;
  const OptimizerRules& rules() const { return rules_; }
  bool bf16_states() const { return rules_.bf16_states; }
  /// Lines for the start-up log.
  std::vector<std::string> description() const;
  /// "optimizer.params.x: why it is not what it seems": of the optimizer and the schedule.
  std::vector<std::string> warnings() const;

 private:
  std::vector<ParameterGroup> user_groups_;
  OptimizerRules rules_;
  std::vector<const UpdateRule*> group_rules_;
  std::vector<GroupSettings> base_;
  std::unique_ptr<Schedule> schedule_;
};

}  // namespace zero3d
