// Settings that no loader checked: each field is held to its range, and told by its name.
#include <gtest/gtest.h>

#include <climits>
#include <functional>
#include <limits>
#include <string>

#include "zero3d/core/error.h"
#include "zero3d/engine/train_settings.h"

namespace zero3d {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

struct Field {
  const char* name;
  std::int64_t least;
  std::function<void(TrainSettings&, std::int64_t)> set;
  std::int64_t most = kMost;
};

const Field kFields[] = {
    {"accumulation", 1, [](auto& s, auto v) { s.accumulation = v; },
     std::numeric_limits<int>::max()},
    {"micro_batch", 1, [](auto& s, auto v) { s.micro_batch = v; }},
    {"dp", 0, [](auto& s, auto v) { s.dp = static_cast<int>(v); }, 1 << 30},
    {"tp", 1, [](auto& s, auto v) { s.tp = static_cast<int>(v); }, 1 << 30},
    {"pp", 1, [](auto& s, auto v) { s.pp = static_cast<int>(v); }, 1 << 30},
    {"sp", 1, [](auto& s, auto v) { s.sp = static_cast<int>(v); }, 1 << 30},
    {"optimizer_tile", 0, [](auto& s, auto v) { s.optimizer_tile = v; }},
    {"tiles.linear", 0, [](auto& s, auto v) { s.tiles.linear = static_cast<int>(v); }, 1 << 30},
    {"tiles.head", 0, [](auto& s, auto v) { s.tiles.head = static_cast<int>(v); }, 1 << 30},
    {"recomputation.interval", 0,
     [](auto& s, auto v) { s.recomputation.interval = static_cast<int>(v); }, 1 << 30},
    {"recomputation.groups", 0,
     [](auto& s, auto v) { s.recomputation.groups = static_cast<int>(v); }, 1 << 30},
    {"sharding.ranks", 0, [](auto& s, auto v) { s.sharding.ranks = static_cast<int>(v); }, 1 << 30},
    {"sharding.secondary_ranks", 1,
     [](auto& s, auto v) { s.sharding.secondary_ranks = static_cast<int>(v); }, 1 << 30},
    {"sharding.gather_bucket", 0, [](auto& s, auto v) { s.sharding.gather_bucket = v; }},
    {"sharding.prefetch", 0, [](auto& s, auto v) { s.sharding.prefetch = v; }},
    {"sharding.max_live", 0, [](auto& s, auto v) { s.sharding.max_live = v; }},
    {"sharding.max_reuse_distance", 0, [](auto& s, auto v) { s.sharding.max_reuse_distance = v; }},
    {"sharding.persistent_parameter", 0,
     [](auto& s, auto v) { s.sharding.persistent_parameter = v; }},
    {"sharding.persistent_total", 0, [](auto& s, auto v) { s.sharding.persistent_total = v; }},
    {"delayed_updates.select_every", 0,
     [](auto& s, auto v) { s.delayed_updates.select_every = v; }},
    {"delayed_updates.select_epochs", 0,
     [](auto& s, auto v) { s.delayed_updates.select_epochs = v; }, INT_MAX},
    {"delayed_updates.steps_of_epoch", 0,
     [](auto& s, auto v) { s.delayed_updates.steps_of_epoch = v; }, INT_MAX},
    {"delayed_updates.warm_up", 0, [](auto& s, auto v) { s.delayed_updates.warm_up = v; }},
    {"gradients.reduce_bucket", 0, [](auto& s, auto v) { s.gradients.reduce_bucket = v; }},
};

/// "" when they are in range.
std::string refusal(const TrainSettings& settings) {
  try {
    require_in_range(settings);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return error.what();
  }
}

TEST(SettingsRange, EndsWhereItIsSaidToAndNamesTheField) {
  EXPECT_EQ(refusal({}), "");
  for (const Field& field : kFields) {
    SCOPED_TRACE(field.name);
    TrainSettings settings;
    field.set(settings, field.least);
    EXPECT_EQ(refusal(settings), "");
    field.set(settings, field.most);
    EXPECT_EQ(refusal(settings), "");
    for (const std::int64_t low : {field.least - 1, std::int64_t{-1000}}) {
      field.set(settings, low);
      const std::string told = refusal(settings);
      EXPECT_NE(
          told.find(std::string("TrainSettings::") + field.name + " is " + std::to_string(low) +
                    "; expected a number from " + std::to_string(field.least)),
          std::string::npos)
          << told;
    }
  }
  TrainSettings settings;
  settings.accumulation = std::int64_t{std::numeric_limits<int>::max()} + 1;
  EXPECT_NE(refusal(settings).find("accumulation is 2147483648"), std::string::npos);
}

TEST(SettingsRange, DividesByAFiniteNumberOtherThanZero) {
  TrainSettings settings;
  for (const double fine : {0.5, 1.0, -2.0, 1e300}) {
    settings.gradients.predivide_factor = fine;
    EXPECT_EQ(refusal(settings), "");
  }
  for (const double wrong : {0.0, -0.0, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
    settings.gradients.predivide_factor = wrong;
    EXPECT_NE(refusal(settings).find("gradients.predivide_factor"), std::string::npos) << wrong;
  }
}

}  // namespace
}  // namespace zero3d
