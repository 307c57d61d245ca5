#include "zero3d/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "zero3d/core/error.h"
#include "zero3d/core/narrow.h"
#include "zero3d/core/text.h"
#include "zero3d/optim/known_types.h"

namespace zero3d {
namespace {

std::vector<double> base_rates(std::span<const GroupSettings> groups) {
  std::vector<double> rates;
  for (const GroupSettings& group : groups) rates.push_back(group.lr);
  return rates;
}

/// One value per group from a number, a list, or (when empty) the fallback.
std::vector<double> per_group(const ParameterReader& reader, std::string_view key,
                              std::vector<double> values, const std::vector<double>& fallback) {
  if (values.empty()) return fallback;
  if (values.size() == 1) values.assign(fallback.size(), values.front());
  if (values.size() != fallback.size())
    reader.fail(key, concat("expected one value or one per parameter group (", fallback.size(),
                            "), found ", values.size()));
  return values;
}

std::string text_of(const std::vector<double>& values) {
  const bool same = std::all_of(values.begin(), values.end(),
                                [&](double value) { return value == values.front(); });
  std::string text;
  for (std::size_t i = 0; i < (same ? std::min<std::size_t>(1, values.size()) : values.size()); ++i)
    text += concat(i ? ", " : "", values[i]);
  return text;
}

/// Where DeepSpeed's counter stands for the update after `applied` ones: -1 is its constructor's
/// value.
class Counter {
 public:
  explicit Counter(ParameterReader& reader) : start_(reader.integer("last_batch_iteration")) {
    if (start_ < -1) reader.fail("last_batch_iteration", "expected -1 or more");
  }
  std::int64_t at(std::int64_t applied) const { return start_ + applied; }

 private:
  std::int64_t start_;
};

/// The rise shared by DeepSpeed's three warm-ups: steps, kind and gamma(i) for 0 <= i < steps().
class Warmup {
 public:
  Warmup(ParameterReader& reader, std::vector<std::string>& warnings) {
    steps_ = std::max<std::int64_t>(2, reader.integer("warmup_num_steps"));
    const std::string type = reader.text("warmup_type");
    log_ = type != "linear";
    if (log_ && type != "log")
      warnings.push_back(concat(reader.path(), ".warmup_type: \"", type,
                                "\" is neither \"log\" nor \"linear\"; log is used"));
  }
  std::int64_t steps() const { return steps_; }
  double gamma(std::int64_t i) const {
    const double n = static_cast<double>(steps_);
    return log_ ? std::log(static_cast<double>(i + 1)) / std::log(n) : static_cast<double>(i) / n;
  }
  std::string description() const {
    return concat(log_ ? "log" : "linear", " warm-up over ", steps_, " updates");
  }

 private:
  std::int64_t steps_ = 0;
  bool log_ = true;
};

std::int64_t required_total(ParameterReader& reader, const Warmup& warmup,
                            std::vector<std::string>& warnings) {
  const std::int64_t total = reader.integer("total_num_steps");
  if (total < warmup.steps())
    warnings.push_back(concat(reader.path(), ".total_num_steps: ", total, " is below the ",
                              warmup.steps(),
                              " updates of warm-up; the rate drops to the minimum after them"));
  return total;
}

class WarmupLR : public Schedule {
 public:
  /// With `decay`: WarmupDecayLR.
  WarmupLR(ParameterReader& reader, std::span<const GroupSettings> groups, bool decay)
      : counter_(reader), warmup_(reader, warnings_) {
    const std::vector<double> base = base_rates(groups);
    min_ = per_group(reader, "warmup_min_lr", reader.numbers("warmup_min_lr"), base);
    max_ = per_group(reader, "warmup_max_lr", reader.numbers("warmup_max_lr"), base);
    if (decay) total_ = required_total(reader, warmup_, warnings_);
    base_ = base;
  }

  void apply(std::int64_t applied, std::span<GroupSettings> groups) const override {
    const std::int64_t i = counter_.at(applied);
    for (std::size_t group = 0; group < groups.size(); ++group)
      groups[group].lr = min_[group] + (max_[group] - min_[group]) * gamma(i);
  }

  std::string description() const override {
    return concat(total_ ? "WarmupDecayLR: " : "WarmupLR: ", warmup_.description(), " from ",
                  text_of(min_), " to ", text_of(max_),
                  total_ ? concat(", then linear to the minimum at update ", *total_) : "",
                  "; the first two updates use the minimum");
  }

 private:
  double gamma(std::int64_t i) const {
    if (i < 0) return 0;
    if (i < warmup_.steps()) return warmup_.gamma(i);
    if (!total_) return 1;
    const auto left = static_cast<double>(*total_ - i);
    const auto length = static_cast<double>(std::max<std::int64_t>(1, *total_ - warmup_.steps()));
    return std::max(0.0, left / length);
  }

  Counter counter_;
  Warmup warmup_;
  std::optional<std::int64_t> total_;
  std::vector<double> min_, max_, base_;
};

class WarmupCosineLR : public Schedule {
 public:
  WarmupCosineLR(ParameterReader& reader, std::span<const GroupSettings> groups)
      : counter_(reader), warmup_(reader, warnings_), base_(base_rates(groups)) {
    total_ = required_total(reader, warmup_, warnings_);
    warmup_min_ = reader.number("warmup_min_ratio");
    cosine_min_ = reader.number("cos_min_ratio");
  }

  void apply(std::int64_t applied, std::span<GroupSettings> groups) const override {
    const double ratio = ratio_at(counter_.at(applied));
    for (std::size_t group = 0; group < groups.size(); ++group)
      groups[group].lr = base_[group] * ratio;
  }

  std::string description() const override {
    return concat("WarmupCosineLR: ", warmup_.description(), " from ratio ", warmup_min_, " of ",
                  text_of(base_), ", then cosine to ratio ", cosine_min_, " at update ", total_,
                  "; the first update uses 0");
  }

 private:
  double ratio_at(std::int64_t i) const {
    if (i < 0) return 0;
    if (i < warmup_.steps()) return warmup_min_ + (1 - warmup_min_) * warmup_.gamma(i);
    const auto length = static_cast<double>(std::max<std::int64_t>(1, total_ - warmup_.steps()));
    // Held at its end: the cosine would rise again.
    const double progress = std::min(1.0, static_cast<double>(i - warmup_.steps() + 1) / length);
    const double wave = (1 + std::cos(std::numbers::pi * progress)) / 2;
    return std::max(0.0, cosine_min_ + (1 - cosine_min_) * wave);
  }

  Counter counter_;
  Warmup warmup_;
  std::vector<double> base_;
  std::int64_t total_ = 0;
  double warmup_min_ = 0, cosine_min_ = 0;
};

class LRRangeTest : public Schedule {
 public:
  LRRangeTest(ParameterReader& reader, std::span<const GroupSettings> groups) : counter_(reader) {
    min_ = per_group(reader, "lr_range_test_min_lr", reader.numbers("lr_range_test_min_lr"),
                     base_rates(groups));
    step_size_ = reader.integer("lr_range_test_step_size");
    rate_ = reader.number("lr_range_test_step_rate");
    staircase_ = reader.flag("lr_range_test_staircase");
  }

  void apply(std::int64_t applied, std::span<GroupSettings> groups) const override {
    double intervals =
        static_cast<double>(counter_.at(applied) + 1) / static_cast<double>(step_size_);
    if (staircase_) intervals = std::floor(intervals);
    for (std::size_t group = 0; group < groups.size(); ++group)
      groups[group].lr = min_[group] * (1 + rate_ * intervals);
  }

  std::string description() const override {
    return concat("LRRangeTest: from ", text_of(min_), ", growing by ", rate_, " of it every ",
                  step_size_, " updates", staircase_ ? " in stairs" : "");
  }

 private:
  Counter counter_;
  std::vector<double> min_;
  std::int64_t step_size_ = 0;
  double rate_ = 0;
  bool staircase_ = false;
};

class OneCycle : public Schedule {
 public:
  OneCycle(ParameterReader& reader, std::span<const GroupSettings> groups, bool has_betas)
      : counter_(reader) {
    const std::vector<double> base = base_rates(groups);
    min_ = per_group(reader, "cycle_min_lr", reader.numbers("cycle_min_lr"), base);
    max_ = per_group(reader, "cycle_max_lr", reader.numbers("cycle_max_lr"), base);
    decay_lr_rate_ = reader.number("decay_lr_rate");
    const auto count = [&](const char* key, std::int64_t fallback) {
      const std::int64_t value = reader.optional_integer(key).value_or(fallback);
      if (!fits<std::int32_t>(value))  // they are multiplied
        reader.fail(key, concat("expected ", range_of<std::int32_t>(), ", found ", value));
      return value;
    };
    first_ = count("cycle_first_step_size", reader.integer("cycle_first_step_size"));
    second_ = count("cycle_second_step_size", first_);
    first_stairs_ = count("cycle_first_stair_count", reader.integer("cycle_first_stair_count"));
    second_stairs_ = count("cycle_second_stair_count", first_stairs_);
    decay_step_size_ = reader.integer("decay_step_size");
    momentum_ = reader.flag("cycle_momentum");
    min_momentum_ = reader.number("cycle_min_mom");
    max_momentum_ = reader.number("cycle_max_mom");
    decay_momentum_rate_ = reader.number("decay_mom_rate");
    if (momentum_ && !has_betas) {
      warnings_.push_back(concat(
          reader.path(), ".cycle_momentum: this optimizer has no betas; momentum stays as it is"));
      momentum_ = false;
    }
  }

  void apply(std::int64_t applied, std::span<GroupSettings> groups) const override {
    const std::int64_t i = counter_.at(applied);
    const double scale = i < 0 ? 0 : scale_at(i);
    const double decay = decay_at(i);
    for (std::size_t group = 0; group < groups.size(); ++group) {
      groups[group].lr =
          (min_[group] + (max_[group] - min_[group]) * scale) / (1 + decay_lr_rate_ * decay);
      if (!momentum_) continue;
      // DeepSpeed writes this pair whatever the optimizer's own betas are; its constructor takes
      // the minimum.
      groups[group].beta1 = i < 0 ? min_momentum_
                                  : (max_momentum_ - (max_momentum_ - min_momentum_) * scale) *
                                        (1 + decay_momentum_rate_ * decay);
      groups[group].beta2 = 0.99;
    }
  }

  std::string description() const override {
    return concat("OneCycle: lr ", text_of(min_), " to ", text_of(max_), " in ", first_,
                  " updates and back in ", second_,
                  momentum_ ? concat("; beta1 ", max_momentum_, " to ", min_momentum_,
                                     " and back, beta2 set to 0.99")
                            : "",
                  decay_step_size_ ? concat("; then decay every ", decay_step_size_) : "");
  }

 private:
  /// 0 at the ends of the cycle, 1 at its peak.
  double scale_at(std::int64_t i) const {
    const std::int64_t length = first_ + second_;
    if (i >= length) return 0;
    const std::int64_t position = (i + 1) % length;
    const bool rising = position <= first_;
    const double part = rising
                            ? static_cast<double>(position) / static_cast<double>(first_)
                            : static_cast<double>(length - position) / static_cast<double>(second_);
    const std::int64_t stairs = rising ? first_stairs_ : second_stairs_;
    if (stairs <= 0) return part;
    // Integer division: a stair begins exactly where its fraction of the leg is reached.
    const std::int64_t stair =
        rising ? position * stairs / first_ : (length - position) * stairs / second_;
    return static_cast<double>(stair) / static_cast<double>(stairs);
  }

  double decay_at(std::int64_t i) const {
    const std::int64_t length = first_ + second_;
    if (i < length || decay_step_size_ == 0) return 0;
    return static_cast<double>(i - length + 1) / static_cast<double>(decay_step_size_);
  }

  Counter counter_;
  std::vector<double> min_, max_;
  std::int64_t first_ = 0, second_ = 0, first_stairs_ = 0, second_stairs_ = 0, decay_step_size_ = 0;
  double decay_lr_rate_ = 0, min_momentum_ = 0, max_momentum_ = 0, decay_momentum_rate_ = 0;
  bool momentum_ = true;
};

/// constant, constant_with_warmup, linear, cosine: the Hugging Face schedules, whose first update
/// is number 0 of the warm-up.
class PlainSchedule : public Schedule {
 public:
  enum class Kind { constant, linear, cosine };

  PlainSchedule(std::string type, ParameterReader& reader, std::span<const GroupSettings> groups)
      : type_(std::move(type)), base_(base_rates(groups)) {
    kind_ = type_ == "linear" ? Kind::linear : type_ == "cosine" ? Kind::cosine : Kind::constant;
    if (type_ != "constant") warmup_ = reader.integer("warmup_num_steps");
    if (kind_ == Kind::constant) return;
    total_ = reader.integer("total_num_steps");
    if (total_ < warmup_)
      reader.fail("total_num_steps",
                  concat("expected at least the ", warmup_, " updates of warm-up, found ", total_));
    min_ratio_ = reader.number("min_ratio");
    if (min_ratio_ > 1) reader.fail("min_ratio", concat("expected 0 to 1, found ", min_ratio_));
  }

  void apply(std::int64_t applied, std::span<GroupSettings> groups) const override {
    const double ratio = ratio_at(applied);
    for (std::size_t group = 0; group < groups.size(); ++group)
      groups[group].lr = base_[group] * ratio;
  }

  std::string description() const override {
    return concat(type_, ": ", text_of(base_),
                  warmup_ ? concat(", linear warm-up over ", warmup_, " updates") : "",
                  kind_ == Kind::constant
                      ? ""
                      : concat(", down to ratio ", min_ratio_, " at update ", total_));
  }

 private:
  double ratio_at(std::int64_t applied) const {
    if (applied < warmup_) return static_cast<double>(applied) / static_cast<double>(warmup_);
    if (kind_ == Kind::constant) return 1;
    const auto length = static_cast<double>(std::max<std::int64_t>(1, total_ - warmup_));
    const double progress = std::min(1.0, static_cast<double>(applied - warmup_) / length);
    const double left =
        kind_ == Kind::linear ? 1 - progress : (1 + std::cos(std::numbers::pi * progress)) / 2;
    return min_ratio_ + (1 - min_ratio_) * left;
  }

  std::string type_;
  Kind kind_ = Kind::constant;
  std::vector<double> base_;
  std::int64_t warmup_ = 0, total_ = 0;
  double min_ratio_ = 0;
};

std::unique_ptr<Schedule> make_typed(const std::string& type, ParameterReader& reader,
                                     std::span<const GroupSettings> groups, bool has_betas) {
  if (type == "WarmupLR") return std::make_unique<WarmupLR>(reader, groups, false);
  if (type == "WarmupDecayLR") return std::make_unique<WarmupLR>(reader, groups, true);
  if (type == "WarmupCosineLR") return std::make_unique<WarmupCosineLR>(reader, groups);
  if (type == "LRRangeTest") return std::make_unique<LRRangeTest>(reader, groups);
  if (type == "OneCycle") return std::make_unique<OneCycle>(reader, groups, has_betas);
  return std::make_unique<PlainSchedule>(type, reader, groups);
}

}  // namespace

std::vector<std::string> schedule_types() {
  std::vector<std::string> names;
  for (const KnownType& type : known_schedules()) names.emplace_back(type.name);
  return names;
}

std::unique_ptr<Schedule> make_schedule(const std::string& type, const ParameterMap& parameters,
                                        std::span<const GroupSettings> groups, bool has_betas,
                                        const std::string& path) {
  const KnownType* known_type = find_type(known_schedules(), type);
  if (known_type == nullptr) {
    throw ConfigError(path + ".type",
                      concat("unknown schedule \"", type,
                             "\" (case matters); known: ", joined(schedule_types(), ", ")));
  }
  ParameterReader reader(parameters, path + ".params", *known_type);
  std::unique_ptr<Schedule> schedule = make_typed(type, reader, groups, has_betas);
  reader.finish();
  return schedule;
}

}  // namespace zero3d
