// What a run demands beyond the reader.
#include "zero3d/ds_config/trainable.h"

#include <gtest/gtest.h>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

LoadResult load(const std::string& members, int ranks = 8) {
  LoadOptions options;
  options.ranks = ranks;
  LoadResult loaded =
      load_config_text("{\"train_batch_size\": 8, " + members + "}", "file", options);
  EXPECT_TRUE(loaded.ok()) << members << ": " << (loaded.ok() ? "" : loaded.errors[0].message);
  return loaded;
}

TEST(Trainable, PlainConfigurationsPassInSilence) {
  for (const char* members :
       {"\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}",
        "\"zero_optimization\": {\"stage\": 3}, \"bf16\": {\"enabled\": true}",
        "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {}}, \"gradient_clipping\": 0.5",
        "\"activation_checkpointing\": {\"profile\": false}, \"tensorboard\": {\"enabled\": false}",
        "\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"none\"}}",
        // Without effect at these stages.
        "\"zero_optimization\": {\"stage\": 1, \"zero_quantized_weights\": true}",
        "\"zero_optimization\": {\"stage\": 2, \"mics_hierarchical_params_gather\": true}",
        "\"zero_optimization\": {\"stage\": 0, \"zenflow\": {}}"}) {
    const TrainCheck check = check_trainable(load(members));
    EXPECT_TRUE(check.ok()) << members << check.errors[0].message;
    EXPECT_EQ(check.not_implemented, "") << members;
    EXPECT_NO_THROW(check.require_ok());
  }
}

TEST(Trainable, ListsWhatIsAcceptedButMissingInOneWarning) {
  const TrainCheck check = check_trainable(
      load("\"tensorboard\": {\"enabled\": true}, \"comms_logger\": {\"enabled\": true}, "
           "\"activation_checkpointing\": {\"cpu_checkpointing\": true}"));
  EXPECT_TRUE(check.ok());
  for (const char* section : {"tensorboard", "comms_logger", "activation_checkpointing"}) {
    EXPECT_NE(check.not_implemented.find(section), std::string::npos) << section;
  }
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
    EXPECT_THROW(check.require_ok(), ConfigError);
    const TrainCheck allowed = check_trainable(loaded, {.allow_unsupported = true});
    EXPECT_TRUE(allowed.ok());
    EXPECT_NE(allowed.not_implemented.find(check.errors[0].path), std::string::npos);
  }
}

TEST(Trainable, DegreesCannotBeAllowedAway) {
  for (const char* members : {"\"tensor_parallel\": {\"autotp_size\": 2}",
                              "\"pipeline\": {\"stages\": 2}", "\"sequence_parallel_size\": 2"}) {
    EXPECT_FALSE(check_trainable(load(members), {.allow_unsupported = true}).ok()) << members;
  }
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
