// From the keys of zenflow to settings, and what is refused in which words.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "loading.h"
#include "zero3d/ds_config/settings.h"
#include "zero3d/ds_config/trainable.h"

namespace zero3d {
namespace {

const char* const kToCpu = R"("offload_optimizer": {"device": "cpu"})";

LoadResult load_zenflow(const std::string& keys, const std::string& zero = kToCpu,
                        const std::string& members = "") {
  return load(concat(R"("zero_optimization": {"stage": 2, "zenflow": {)", keys, "}",
                     zero.empty() ? "" : ", ", zero, "}", members.empty() ? "" : ", ", members));
}

DelayedUpdateSettings delayed(const std::string& keys) {
  const LoadResult loaded = load_zenflow(keys);
  const TrainCheck check = check_trainable(loaded);
  EXPECT_TRUE(check.ok()) << keys << ": " << (check.ok() ? "" : check.errors[0].text());
  EXPECT_EQ(check.not_implemented, "");
  return train_settings(loaded.config).delayed_updates;
}

TEST(ZenFlow, EveryKeyReachesItsSetting) {
  const DelayedUpdateSettings s = delayed(
      R"("topk_ratio": 0.25, "select_strategy": "step", "select_interval": 12, "update_interval": 3,
         "overlap_step": true, "full_warm_up_rounds": 7, "steps_per_epoch": 50)");
  EXPECT_TRUE(s.on());
  EXPECT_EQ(s.share, 0.25);
  EXPECT_EQ(s.select_every, 12);
  EXPECT_EQ(s.select_epochs, 0);
  EXPECT_EQ(s.update_every, 3);
  EXPECT_TRUE(s.overlap);
  EXPECT_EQ(s.warm_up, 7);
  EXPECT_EQ(s.steps_of_epoch, 50);
}

TEST(ZenFlow, TakesDeepSpeedsDefaultsAndFourStepsForAuto) {
  const DelayedUpdateSettings s = delayed("");
  EXPECT_EQ(s.share, 0.1);
  EXPECT_EQ(s.update_every, 4);
  EXPECT_EQ(s.select_epochs, 1) << "auto: once an epoch";
  EXPECT_EQ(s.select_every, 0);
  EXPECT_EQ(s.steps_of_epoch, 0) << "to be counted";
  EXPECT_FALSE(s.overlap);
  EXPECT_EQ(s.warm_up, 0);
  EXPECT_EQ(delayed(R"("select_strategy": "epoch", "select_interval": 2)").select_epochs, 2);
  const LoadResult loaded = load_zenflow("");
  bool warned = false;
  for (const ConfigMessage& warning : loaded.warnings)
    warned |= warning.text().find("\"auto\" is 4 steps") != std::string::npos;
  EXPECT_TRUE(warned);
  EXPECT_FALSE(
      train_settings(load("\"zero_optimization\": {\"stage\": 2}").config).delayed_updates.on());
}

TEST(ZenFlow, HasNoEffectAtStageZero) {
  const LoadResult loaded =
      load(R"("zero_optimization": {"stage": 0, "zenflow": {"offload": true}})");
  EXPECT_TRUE(check_trainable(loaded).ok());
  EXPECT_FALSE(train_settings(loaded.config).delayed_updates.on());
  EXPECT_EQ(why_without_effect(loaded.config, "zero_optimization.zenflow.topk_ratio"),
            "only at stages 1 to 3");
  const LoadResult other = load_zenflow("");
  EXPECT_EQ(why_without_effect(other.config, "zero_optimization.zenflow.topk_ratio"), "");
  for (const char* key : {"auto_ratio", "pt_reserved_cores_perc"})
    EXPECT_EQ(why_without_effect(other.config, concat("zero_optimization.zenflow.", key)),
              "nothing to do for it here");
}

TEST(ZenFlow, RefusesWithWhatToChange) {
  struct Refused {
    LoadResult loaded;
    const char* message;
  };
  const char* const kStep = R"("select_strategy": "step", )";
  for (const Refused& refused : {
           Refused{load_zenflow("", ""), "offload_optimizer.device is none"},
           Refused{
               load_zenflow("", R"("offload_optimizer": {"device": "nvme", "nvme_path": "/a"})"),
               "offload_optimizer.device is nvme"},
           Refused{load(concat(R"("zero_optimization": {"stage": 3, "zenflow": {}, )", kToCpu,
                               R"(, "offload_param": {"device": "cpu"}})")),
                   "offload_param moves them off it"},
           Refused{load_zenflow("", kToCpu, R"("optimizer": {"type": "Lion"})"),
                   "Adam and AdamW only, and optimizer.type is Lion"},
           Refused{load_zenflow("", concat(kToCpu, R"(, "compute_grad_norm": false)"),
                                R"("gradient_clipping": 0)"),
                   "compute_grad_norm true only"},
           Refused{load_zenflow(R"("offload": true)"), "stay on the device"},
           Refused{load_zenflow(R"("full_warm_up_rounds": -1)"), "expected 0 or more, found -1"},
           Refused{load_zenflow(R"("steps_per_epoch": 0)"), "expected 1 or more, found 0"},
           Refused{load_zenflow(concat(kStep, R"("select_interval": 0)")),
                   "expected 1 or more, found 0"},
           Refused{load_zenflow(concat(kStep, R"("select_interval": 3)")),
                   "is 4, more than select_interval 3"},
           Refused{load_zenflow(concat(kStep, R"("select_interval": 3, "update_interval": 9)")),
                   "is 9, more than select_interval 3"},
           Refused{load_zenflow(R"("select_interval": 3)"), "a number needs select_strategy"},
       }) {
    const TrainCheck check = check_trainable(refused.loaded, {.allow_unsupported = true});
    ASSERT_EQ(check.errors.size(), 1u) << refused.message;
    EXPECT_NE(check.errors[0].text().find(refused.message), std::string::npos)
        << check.errors[0].text();
    EXPECT_EQ(check.errors[0].path.rfind("zero_optimization.zenflow", 0), 0u);
  }
}

}  // namespace
}  // namespace zero3d
