// "auto": filled from options and the model, or one error that lists what is left.
#include <gtest/gtest.h>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/load.h"

namespace zero3d {
namespace {

constexpr const char* kTrainerFile = R"({
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
  "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW", "params":
    {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupDecayLR", "params":
    {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto",
     "total_num_steps": "auto"}},
  "zero_optimization": {"stage": STAGE, "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": "auto"}
})";

std::string trainer_file(int stage) {
  std::string text = kTrainerFile;
  return text.replace(text.find("STAGE"), 5, std::to_string(stage));
}

AutoValues all_values() {
  AutoValues values;
  values.lr = 2e-4;
  values.betas = {0.9, 0.98};
  values.eps = 1e-7;
  values.weight_decay = 0.05;
  values.warmup_steps = 30;
  values.steps = 500;
  values.micro_batch = 2;
  values.accumulation = 4;
  values.max_grad_norm = 0.7;
  values.precision = {"bf16"};
  values.hidden_size = 1001;
  return values;
}

LoadResult load(const std::string& text, const AutoValues& values, int ranks = 8) {
  LoadOptions options;
  options.ranks = ranks;
  options.autos = values;
  return load_config_text(text, "file", options);
}

TEST(Auto, TakesEveryOption) {
  const LoadResult loaded = load(trainer_file(3), all_values());
  ASSERT_TRUE(loaded.ok()) << loaded.errors[0].message;
  const Config& config = loaded.config;
  EXPECT_EQ(config.integer("train_batch_size"), 64);
  EXPECT_EQ(config.number("gradient_clipping"), 0.7);
  EXPECT_TRUE(config.flag("bf16.enabled"));
  EXPECT_FALSE(config.flag("fp16.enabled"));
  EXPECT_EQ(config.at("optimizer.params.betas").dump(), "[0.9, 0.98]");
  EXPECT_EQ(config.number("scheduler.params.warmup_min_lr"), 0);
  EXPECT_EQ(config.number("scheduler.params.warmup_max_lr"), 2e-4);
  EXPECT_EQ(config.integer("scheduler.params.warmup_num_steps"), 30);
  EXPECT_EQ(config.integer("scheduler.params.total_num_steps"), 500);
  EXPECT_EQ(config.integer("zero_optimization.reduce_bucket_size"), 1001 * 1001);
  EXPECT_EQ(config.integer("zero_optimization.stage3_prefetch_bucket_size"),
            901800);  // 0.9 x 1001^2 = 901800.9
  EXPECT_EQ(config.integer("zero_optimization.stage3_param_persistence_threshold"), 10010);
  EXPECT_EQ(config.integer("zero_optimization.stage3_max_live_parameters"), 1'000'000'000);
}

TEST(Auto, HiddenSizeRulesOfStage3StayThere) {
  for (int stage = 0; stage < 3; ++stage) {
    const LoadResult loaded = load(trainer_file(stage), all_values());
    ASSERT_TRUE(loaded.ok());
    EXPECT_EQ(loaded.config.integer("zero_optimization.reduce_bucket_size"), 1001 * 1001);
    EXPECT_EQ(loaded.config.integer("zero_optimization.stage3_prefetch_bucket_size"), 50'000'000);
    EXPECT_EQ(loaded.config.integer("zero_optimization.stage3_param_persistence_threshold"),
              100'000);
  }
}

TEST(Auto, WhatIsLeftIsOneError) {
  const LoadResult loaded = load(trainer_file(3), {});
  ASSERT_EQ(loaded.errors.size(), 1u);
  const std::string& message = loaded.errors[0].message;
  for (const char* part :
       {"train_micro_batch_size_per_gpu (--micro-batch)",
        "gradient_accumulation_steps (--accumulation)", "gradient_clipping (--max-grad-norm)",
        "optimizer.params.lr (--lr)", "optimizer.params.betas (--betas)",
        "optimizer.params.eps (--eps)", "optimizer.params.weight_decay (--weight-decay)",
        "scheduler.params.warmup_max_lr (--lr)", "scheduler.params.total_num_steps (--steps)",
        "scheduler.params.warmup_num_steps (--warmup-steps)",
        "zero_optimization.reduce_bucket_size (--model or --hidden-size)",
        "zero_optimization.stage3_prefetch_bucket_size (--model or --hidden-size)"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
  EXPECT_EQ(message.find("enabled"), std::string::npos);
}

TEST(Auto, WithoutPrecisionIsOff) {
  AutoValues values = all_values();
  values.precision.clear();
  const LoadResult loaded = load(trainer_file(1), values);
  ASSERT_TRUE(loaded.ok());
  EXPECT_FALSE(loaded.config.flag("bf16.enabled"));
  EXPECT_FALSE(loaded.config.flag("fp16.enabled"));
}

TEST(Auto, AStatedValueMustEqualTheOption) {
  AutoValues values;
  values.lr = 1e-4;
  const std::string with =
      "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\", \"params\": ";
  EXPECT_TRUE(load(with + "{\"lr\": 0.0001}}}", values).ok());
  EXPECT_TRUE(load(with + "{}}}", values).ok());
  const LoadResult wrong = load(with + "{\"lr\": 0.01}}}", values);
  ASSERT_EQ(wrong.errors.size(), 1u);
  EXPECT_EQ(wrong.errors[0].path, "optimizer.params.lr");
  values = {};
  values.precision = {"bf16"};
  EXPECT_FALSE(load("{\"train_batch_size\": 8, \"fp16\": {\"enabled\": true}}", values).ok());
  values = {};
  values.micro_batch = 2;
  values.accumulation = 2;
  EXPECT_FALSE(load("{\"train_batch_size\": 64}", values).ok());
  EXPECT_TRUE(load("{\"train_batch_size\": 32}", values).ok());
}

TEST(Auto, TheBatchTripleDeterminesItself) {
  const char* micro = "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": 4}";
  EXPECT_EQ(load(micro, {}).config.integer("train_batch_size"), 32);
  const char* accumulation =
      "{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 4, "
      "\"gradient_accumulation_steps\": \"auto\"}";
  EXPECT_EQ(load(accumulation, {}).config.integer("gradient_accumulation_steps"), 2);
  EXPECT_FALSE(
      load("{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": \"auto\"}", {}).ok());
}

TEST(Auto, InStrictSectionsIsTheDefault) {
  const LoadResult loaded = load(
      "{\"train_batch_size\": 8, \"fp16\": {\"loss_scale\": \"auto\"}, \"steps_per_print\": "
      "\"auto\", "
      "\"zero_optimization\": {\"stage\": \"auto\", \"offload_param\": \"auto\", \"mystery\": "
      "\"auto\"}, "
      "\"tensorboard\": \"auto\"}",
      {});
  ASSERT_TRUE(loaded.ok()) << loaded.errors[0].path << loaded.errors[0].message;
  EXPECT_EQ(loaded.config.stage(), 0);
  EXPECT_FALSE(loaded.config.has("steps_per_print"));
  EXPECT_EQ(loaded.warnings.size(), 2u);
  EXPECT_FALSE(load("{\"train_batch_size\": 8, \"fp16\": \"auto\"}", {}).ok());
  EXPECT_FALSE(load("{\"train_batch_size\": 8, \"wall_clock_breakdown\": \"auto\"}", {}).ok());
}

}  // namespace
}  // namespace zero3d
