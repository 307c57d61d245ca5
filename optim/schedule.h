// Learning-rate schedules as DeepSpeed and the Hugging Face Trainer define them. A schedule is a
// pure function of the number of updates applied so far, which is its whole state: a skipped step
// does not move it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zero3d/optim/parameters.h"
#include "zero3d/optim/update_rule.h"

namespace zero3d {

class Schedule {
 public:
  virtual ~Schedule() = default;
  /// Sets lr (and, for OneCycle, beta1 and beta2) of each group to what the next update uses when
  /// `applied` updates went before it. `groups` are as many as the schedule was made for; fields it
  /// does not drive stay as they are.
  virtual void apply(std::int64_t applied, std::span<GroupSettings> groups) const = 0;
  /// One line for the start-up log.
  virtual std::string description() const = 0;
  /// "path: what of the parameters has another effect than it seems", for the start-up log.
  const std::vector<std::string>& warnings() const { return warnings_; }

 protected:
  std::vector<std::string> warnings_;
};

/// DeepSpeed's `last_batch_iteration` after `applied` updates, as its checkpoints store it, and
/// back.
inline std::int64_t last_batch_iteration(std::int64_t applied) { return applied - 1; }
inline std::int64_t applied_updates(std::int64_t last_batch_iteration) {
  return last_batch_iteration + 1;
}

struct ScheduleChoice {
  std::string type;  ///< "WarmupLR"; see make_schedule.
  ParameterMap params;
};

/// Schedules of the configuration: WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest, OneCycle
/// (exact case), with DeepSpeed's parameters, defaults and formulas; and of our own: constant,
/// constant_with_warmup, linear and cosine (warmup_num_steps, total_num_steps, min_ratio), as the
/// Hugging Face schedules of those names. `groups` holds the optimizer's own settings at the start;
/// a list of min or max rates must be as long. `has_betas`: the optimizer keeps betas (OneCycle
/// drives them; else a warning says that momentum is left alone). Throws ConfigError under `path`
/// ("scheduler").
///
/// Values are those that update number 1, 2, ... uses. DeepSpeed's warm-ups start twice from the
/// minimum: its constructor sets it, and its first advance gives it again.
std::unique_ptr<Schedule> make_schedule(const std::string& type, const ParameterMap& parameters,
                                        std::span<const GroupSettings> groups,
                                        bool has_betas = true,
                                        const std::string& path = "scheduler");

/// The types make_schedule knows, in the order above.
std::vector<std::string> schedule_types();

}  // namespace zero3d
