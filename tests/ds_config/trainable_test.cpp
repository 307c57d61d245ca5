// What a run demands beyond the reader.
#include "zero3d/ds_config/trainable.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "loading.h"
#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/settings.h"

namespace zero3d {
namespace {

TEST(Trainable, PlainConfigurationsPassInSilence) {
  for (const char* members :
       {"\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}",
        "\"zero_optimization\": {\"stage\": 3}, \"bf16\": {\"enabled\": true}",
        "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {}}, \"gradient_clipping\": 0.5",
        "\"activation_checkpointing\": {\"partition_activations\": true, \"number_checkpoints\": "
        "4}",
        "\"pipeline\": {\"activation_checkpoint_interval\": 2}",
        "\"activation_checkpointing\": {\"profile\": false}, \"tensorboard\": {\"enabled\": false}",
        "\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"none\"}}",
        // Without effect at these stages.
        "\"zero_optimization\": {\"stage\": 1, \"zero_quantized_weights\": true}",
        "\"zero_optimization\": {\"stage\": 2, \"mics_hierarchical_params_gather\": true}",
        "\"zero_optimization\": {\"stage\": 0, \"zenflow\": {}}"}) {
    const LoadResult loaded = load(members);
    const TrainCheck check = check_trainable(loaded);
    EXPECT_TRUE(check.ok()) << members << check.errors[0].message;
    EXPECT_EQ(check.not_implemented, "") << members;
    EXPECT_NO_THROW(check.require_ok(loaded));
  }
}

TEST(Trainable, ListsWhatIsAcceptedButMissingInOneWarning) {
  const TrainCheck check = check_trainable(
      load("\"tensorboard\": {\"enabled\": true}, \"comms_logger\": {\"enabled\": true}, "
           "\"activation_checkpointing\": {\"profile\": true}"));
  EXPECT_TRUE(check.ok());
  for (const char* section : {"tensorboard", "comms_logger", "profile (would time"}) {
    EXPECT_NE(check.not_implemented.find(section), std::string::npos) << section;
  }
}

TEST(Trainable, SaysOfSavedActivationsWhatIsNotDoneYet) {
  const auto missing = [](const char* members) {
    return check_trainable(load(concat("\"activation_checkpointing\": {", members, "}")))
        .not_implemented;
  };
  EXPECT_NE(missing("\"profile\": true").find("checkpointing.profile (would time"),
            std::string::npos);
  EXPECT_EQ(missing("\"contiguous_memory_optimization\": true, \"partition_activations\": true, "
                    "\"number_checkpoints\": 2"),
            "");
  EXPECT_EQ(missing("\"synchronize_checkpoint_boundary\": true"), "");
  const LoadResult loaded = load(
      "\"activation_checkpointing\": {\"cpu_checkpointing\": true, "
      "\"profile\": true}");
  const auto why = [&](const char* key) {
    return why_without_effect(loaded.config, concat("activation_checkpointing.", key));
  };
  EXPECT_EQ(why("cpu_checkpointing"), "") << "something is computed again";
  EXPECT_EQ(why("profile"), "not implemented yet");
}

TEST(Trainable, RefusesWhatWouldChangeTheResult) {
  for (const char* members :
       {"\"zero_optimization\": {\"stage\": 3, \"zero_quantized_gradients\": true}",
        "\"hybrid_engine\": {\"enabled\": true}", "\"torch_autocast\": {\"enabled\": true}",
        "\"data_efficiency\": {\"enabled\": true, \"data_sampling\": {\"enabled\": true}}"}) {
    const LoadResult loaded = load(members);
    const TrainCheck check = check_trainable(loaded);
    ASSERT_EQ(check.errors.size(), 1u) << members;
    EXPECT_NE(check.errors[0].message.find("--allow-unsupported"), std::string::npos);
    EXPECT_THROW(check.require_ok(loaded), ConfigError);
    const TrainCheck allowed = check_trainable(loaded, {.allow_unsupported = true});
    EXPECT_TRUE(allowed.ok());
    EXPECT_NE(allowed.not_implemented.find(check.errors[0].path), std::string::npos);
  }
}

TEST(Trainable, ErrorsSayWhereTheyStand) {
  const LoadResult loaded =
      load("\"optimizer\": {\"type\": \"AdamW\",\n \"params\": {\"lr\": -1, \"eps\": -2}}");
  try {
    check_trainable(loaded).require_ok(loaded);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    for (const char* part : {"file: 2 errors\n", "file:2:19: optimizer.params.lr: ", "file:2:30: "})
      EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(Trainable, TakesSharedSequences) {
  const LoadResult loaded =
      load("\"sequence_parallel_size\": 2, \"communication_data_type\": \"bf16\"");
  EXPECT_TRUE(check_trainable(loaded).ok());
  EXPECT_NE(why_without_effect(loaded.config, "communication_data_type"), "");
  EXPECT_EQ(why_without_effect(loaded.config, "seq_parallel_communication_data_type"), "");
  const LoadResult alone = load("\"seq_parallel_communication_data_type\": \"bf16\"");
  EXPECT_NE(why_without_effect(alone.config, "seq_parallel_communication_data_type"), "");
}

TEST(Trainable, TakesPipelinesOfEveryStageAndRefusesWhatTheyCannotBe) {
  const auto stages = [](const char* pipeline, const char* more) {
    return concat("\"pipeline\": {\"stages\": 2", pipeline, "}", more);
  };
  for (const char* good :
       {"", ", \"zero_optimization\": {\"stage\": 3}", ", \"zero3d\": {\"schedule\": \"zb-v\"}",
        ", \"zero3d\": {\"schedule\": \"interleaved\", \"virtual_stages\": 3}",
        ", \"zero3d\": {\"partition\": \"type:h\"}"})
    EXPECT_TRUE(check_trainable(load(stages("", good))).ok()) << good;
  for (const char* bad :
       {", \"zero3d\": {\"schedule\": \"gpipe\", \"virtual_stages\": 2}",
        ", \"zero3d\": {\"partition\": \"profile\"}", ", \"managed_gradient_accumulation\": false"})
    EXPECT_FALSE(check_trainable(load(stages("", bad))).ok()) << bad;
  EXPECT_FALSE(check_trainable(load(stages(", \"partition\": \"2,x\"", ""))).ok());
  EXPECT_TRUE(check_trainable(load("\"pipeline\": {\"partition\": \"profile\"}")).ok())
      << "one stage: nobody reads it";
}

TEST(Trainable, RefusesWhatTheConstructorsWould) {
  for (const char* members :
       {"\"optimizer\": {\"type\": \"OneBitAdam\"}", "\"optimizer\": {\"type\": \"sgd\"}",
        "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"amsgrad\": true}}",
        "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"max_grad_norm\": 0}}",
        "\"zero_optimization\": {\"stage\": 2}, \"optimizer\": {\"type\": \"Lamb\"}",
        "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {}}",
        "\"scheduler\": {\"type\": \"Cosine\"}",
        "\"zero_optimization\": {\"stage\": 1, \"compute_grad_norm\": false}",
        "\"data_types\": {\"param_dtype\": \"bf16\"}",
        "\"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 3}",
        "\"zero_optimization\": {\"stage\": 1, \"mics_shard_size\": 3}",
        "\"zero_optimization\": {\"stage\": 2, \"mics_shard_size\": 3}",
        "\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 3}"}) {
    EXPECT_FALSE(check_trainable(load(members)).ok()) << members;
  }
}

TEST(Trainable, RefusesWhatTheEngineWouldRefuse) {
  const auto adam = [](const char* params) {
    return concat("\"optimizer\": {\"type\": \"AdamW\", \"params\": {", params, "}}");
  };
  const auto schedule = [](const char* type, const char* params) {
    return concat("\"scheduler\": {\"type\": \"", type, "\", \"params\": {", params, "}}");
  };
  const struct {
    std::string members;
    const char* path;
    const char* message;
  } faults[] = {
      {adam("\"lr\": -1"), "optimizer.params.lr", "expected at least 0, found -1"},
      {adam("\"lr\": null"), "optimizer.params.lr", "expected a number, found null"},
      {adam("\"lr\": 1e300"), "optimizer.params.lr", "expected a number from -3.4"},
      {adam("\"lr\": \"1e-3\""), "optimizer.params.lr", "expected a number, found"},
      {adam("\"betas\": [0.9, 1]"), "optimizer.params.betas", "below 1, found 1"},
      {adam("\"betas\": [0.9]"), "optimizer.params.betas", "a list of two numbers"},
      {adam("\"eps\": -1e-8"), "optimizer.params.eps", "at least 0"},
      {adam("\"foreach\": true"), "optimizer.params.foreach", "no such parameter"},
      {adam("\"torch_adam\": true, \"maximize\": true"), "optimizer.params.maximize",
       "negate the loss"},
      {"\"optimizer\": {\"type\": \"Lamb\", \"params\": {\"min_coeff\": 20}}",
       "optimizer.params.min_coeff", "must not exceed max_coeff"},
      {"\"optimizer\": {\"type\": \"SGD\", \"params\": {\"nesterov\": true}}",
       "optimizer.params.nesterov", "requires a momentum"},
      {"\"optimizer\": {\"type\": \"Muon\", \"params\": {\"ns_method\": \"x\"}}",
       "optimizer.params.ns_method", "gram"},
      {"", "optimizer", "training needs an optimizer"},
      {"\"optimizer\": {}", "optimizer.type", "there is no optimizer"},
      {schedule("WarmupLR", "\"warmup_num_steps\": 0"), "scheduler.params.warmup_num_steps",
       "at least 1, found 0"},
      {schedule("WarmupLR", "\"warmup_max_lr\": [1, 2, 3]"), "scheduler.params.warmup_max_lr",
       "one per parameter group"},
      {schedule("WarmupLR", "\"warmup_max_lr\": 1e39"), "scheduler.params.warmup_max_lr",
       "expected a number from"},
      {schedule("WarmupLR", "\"warmup_min_lr\": [0, -1]"), "scheduler.params.warmup_min_lr",
       "at least 0, found -1"},
      {schedule("OneCycle", "\"cycle_min_lr\": 0, \"cycle_max_lr\": 1, \"cycle_max_mom\": 1"),
       "scheduler.params.cycle_max_mom", "below 1, found 1"},
      {schedule("WarmupLR", "\"last_batch_iteration\": -2"),
       "scheduler.params.last_batch_iteration", "-1 or more"},
      {schedule("WarmupDecayLR", "\"total_num_steps\": 1e30"), "scheduler.params.total_num_steps",
       "expected an integer"},
      {schedule("OneCycle",
                "\"cycle_min_lr\": 0, \"cycle_max_lr\": 1, \"cycle_first_step_size\": 2147483648"),
       "scheduler.params.cycle_first_step_size", "expected a number from"},
      {"\"fp16\": {\"enabled\": true, \"initial_scale_power\": 4294967300}",
       "fp16.initial_scale_power", "expected a number from"},
      {"\"fp16\": {\"enabled\": true, \"initial_scale_power\": 2000}", "fp16", "2^2000"},
      {"\"fp16\": {\"enabled\": true, \"loss_scale\": 1e39}", "fp16.loss_scale",
       "expected a number from"},
      {"\"gradient_predivide_factor\": 1e39", "gradient_predivide_factor",
       "expected a number from"},
  };
  for (const auto& fault : faults) {
    const LoadResult loaded = load(fault.members);
    const TrainCheck check = check_trainable(loaded);
    bool found = false;
    for (const ConfigMessage& entry : check.errors) {
      if (entry.path != fault.path) continue;
      EXPECT_NE(entry.message.find(fault.message), std::string::npos) << entry.text();
      EXPECT_TRUE(std::exchange(found, true) == false) << "twice: " << entry.text();
      EXPECT_TRUE(entry.position.line > 0 || entry.path.rfind("optimizer", 0) == 0) << entry.text();
    }
    EXPECT_TRUE(found) << fault.members;
  }
}

TEST(Trainable, WhatPassesIsTakenByTheEngine) {
  for (const char* members : {"\"gradient_accumulation_steps\": 1", "\"fp16\": {\"enabled\": true}",
                              "\"optimizer\": {\"type\": \"Muon\", \"params\": {\"lr\": 0.02}}"}) {
    const LoadResult loaded = load(members);
    ASSERT_TRUE(check_trainable(loaded).ok()) << members;
    EXPECT_NO_THROW(train_settings(loaded.config)) << members;
    EXPECT_TRUE(read_settings(loaded.config).problems.empty()) << members;
  }
  EXPECT_THROW(train_settings(load("").config), ConfigError);
}

TEST(Trainable, WarnsOfWhatTheEngineWarnsOf) {
  const LoadResult loaded = load(
      "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 10,\n"
      " \"warmup_num_steps\": 100,\n \"warmup_type\": \"cosine\"}}, \"optimizer\": {\"type\": "
      "\"AdamW\", \"params\": {\"adam_w_mode\": false}}");
  EXPECT_TRUE(check_trainable(loaded).ok());
  ASSERT_EQ(loaded.train_warnings.size(), 3u);
  EXPECT_EQ(loaded.train_warnings[0].path, "scheduler.params.total_num_steps");
  EXPECT_EQ(loaded.train_warnings[1].path, "scheduler.params.warmup_type");
  EXPECT_EQ(loaded.train_warnings[1].position.line, 3);
  EXPECT_EQ(loaded.train_warnings[2].path, "optimizer.params.adam_w_mode");
}

TEST(Trainable, TheScheduleIsTriedWithoutAnOptimizerToo) {
  const LoadResult loaded = load(
      "\"optimizer\": {\"type\": \"sgd\"}, \"scheduler\": {\"type\": \"WarmupLR\", "
      "\"params\": {\"warmup_type\": \"cosine\"}}");
  EXPECT_EQ(loaded.train_warnings.size(), 1u);
}

TEST(Trainable, WhyAValueHasNoEffect) {
  const Config config =
      load("\"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": {\"device\": \"cpu\"}}")
          .config;
  const auto why = [&](const char* path) { return why_without_effect(config, path); };
  EXPECT_EQ(why("zero_optimization.stage3_max_live_parameters"), "only at stage 3");
  EXPECT_EQ(why("zero_optimization.offload_optimizer.device"), "");
  EXPECT_EQ(why("zero_optimization.offload_optimizer.pin_memory"), "");
  EXPECT_EQ(why("zero_optimization.offload_optimizer.buffer_count"), "only with device nvme");
  EXPECT_EQ(why("zero_optimization.offload_optimizer.ratio"), "only with a device, at stage 3");
  EXPECT_EQ(why("zero_optimization.offload_optimizer.fast_init"), "nothing to do for it here");
  EXPECT_EQ(why("aio.block_size"), "only with device nvme");
  EXPECT_EQ(why("zero3d.checksums"), "only with device nvme");
  EXPECT_EQ(why("zero_optimization.contiguous_gradients"), "nothing to do for it here");
  EXPECT_EQ(why("fp16.loss_scale"), "fp16 is not enabled");
  for (const char* path : {"fp16.enabled", "train_batch_size", "optimizer.params.lr",
                           "zero_optimization.reduce_bucket_size", "no.such.key"})
    EXPECT_EQ(why(path), "") << path;
}

TEST(Trainable, MicsWorksWhereTheWarningsSaySo) {
  for (int stage = 0; stage <= 3; ++stage) {
    const LoadResult loaded = load(
        concat("\"optimizer\": {\"type\": \"Adam\"}, \"zero_optimization\": {\"stage\": ", stage,
               ", \"mics_shard_size\": 4}"));
    bool without_effect = false;
    for (const ConfigMessage& warning : loaded.warnings)
      without_effect |= warning.message.find("mics_shard_size") != std::string::npos;
    EXPECT_EQ(without_effect, stage == 0) << stage;
    EXPECT_TRUE(check_trainable(loaded).ok());
  }
}

}  // namespace
}  // namespace zero3d
