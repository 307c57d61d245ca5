// Loading a ds_config: sources, keys, values, origins, and what comes out again.
#include "zero3d/ds_config/load.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/docs.h"
#include "zero3d/ds_config/trainable.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d {
namespace {

LoadResult load(const std::string& text, const LoadOptions& options = {}) {
  return load_config_text(text, "file", options);
}

/// `members` in a configuration that is fine otherwise.
LoadResult load_with(const std::string& members) {
  return load("{\"train_batch_size\": 8, " + members + "}");
}

bool mentions(const std::vector<ConfigMessage>& messages, const std::string& path,
              const std::string& word) {
  for (const ConfigMessage& entry : messages) {
    if (entry.path == path && entry.message.find(word) != std::string::npos) return true;
  }
  return false;
}

std::string slurp(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(LoadConfig, IntegersWrittenAsFloats) {
  const auto bucket = [](const std::string& value) {
    return load_with("\"zero_optimization\": {\"reduce_bucket_size\": " + value + "}");
  };
  for (const char* value : {"5e8", "500000000", "5.0e8", "\"500000000\"", "\" 500_000_000.0 \""}) {
    const LoadResult loaded = bucket(value);
    ASSERT_TRUE(loaded.ok()) << value;
    EXPECT_EQ(loaded.config.integer("zero_optimization.reduce_bucket_size"), 500'000'000) << value;
  }
  const std::string path = "zero_optimization.reduce_bucket_size";
  EXPECT_TRUE(mentions(bucket("\"5e8\"").errors, path, "write 5e8 without the quotes"));
  EXPECT_TRUE(mentions(bucket("15099494.4").errors, path, "15099494 or 15099495"));
  EXPECT_TRUE(mentions(bucket("1e19").errors, path, "largest"));
  EXPECT_TRUE(mentions(bucket("-1").errors, path, "> 0"));
  EXPECT_TRUE(mentions(bucket("0").errors, path, "> 0"));
  const LoadResult twice =
      load("{\"train_batch_size\": 8,\n\"zero_optimization\": {\"stage\": 1,\n\"stage\": 2}}");
  EXPECT_TRUE(mentions(twice.errors, "zero_optimization.stage", "lines 2 and 3"));
}

TEST(LoadConfig, KeysThatDoNothing) {
  EXPECT_TRUE(mentions(load_with("\"gradient_cliping\": 1.0").warnings, "gradient_cliping",
                       "did you mean \"gradient_clipping\""));
  EXPECT_TRUE(mentions(load_with("\"zero_optimisation\": {\"stage\": 3}").warnings,
                       "zero_optimisation", "did you mean \"zero_optimization\""));
  LoadOptions strict;
  strict.strict = true;
  EXPECT_TRUE(mentions(load("{\"train_batch_size\": 8, \"gradient_cliping\": 1}", strict).errors,
                       "gradient_cliping", "gradient_clipping"));
  EXPECT_TRUE(mentions(load_with("\"zero_optimization\": {\"overlap_com\": true}").errors,
                       "zero_optimization.overlap_com", "did you mean \"overlap_comm\""));
  EXPECT_TRUE(mentions(load_with("\"tensor_parallel\": {\"tp\": {\"x\": 1}}").errors,
                       "tensor_parallel.tp.x", "no such key in \"tensor_parallel.tp\""));
  EXPECT_TRUE(mentions(
      load_with("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"max_grad_norm\": 1.0}}")
          .train_errors,
      "optimizer.params.max_grad_norm", "did you mean \"gradient_clipping\""));
  EXPECT_TRUE(mentions(
      load_with("\"zero_optimization\": {\"stage\": 2, \"offload_param\": {\"device\": \"cpu\"}}")
          .warnings,
      "zero_optimization", "without effect at stage 2: offload_param"));
  EXPECT_TRUE(mentions(
      load_with("\"zero_optimization\": {\"stage\": 1, \"stage3_prefetch_bucket_size\": 1e6}")
          .warnings,
      "zero_optimization", "without effect at stage 1: stage3_prefetch_bucket_size"));
}

TEST(LoadConfig, AllErrorsAtOnce) {
  const LoadResult loaded = load(
      "{\"train_batch_size\": \"many\",\n \"fp16\": {\"enabled\": 3, \"loss_scale\": -1},\n"
      " \"zero_optimization\": {\"stage\": 7, \"overlap\": 1}}");
  ASSERT_EQ(loaded.errors.size(), 5u);
  for (std::size_t i = 1; i < 5; ++i) {
    EXPECT_LE(loaded.errors[i - 1].position.line, loaded.errors[i].position.line);
  }
  try {
    loaded.require_ok();
    FAIL();
  } catch (const ConfigError& error) {
    for (const ConfigMessage& entry : loaded.errors) {
      EXPECT_NE(std::string(error.what()).find(entry.message), std::string::npos);
    }
  }
}

TEST(LoadConfig, TakesAPathTextOrBase64) {
  test::TemporaryFolder folder;
  const std::string text = "{\"train_batch_size\": 24}";
  const std::string path = folder.write("ds_config.json", text);
  EXPECT_EQ(load_config(path, {}).config.integer("train_batch_size"), 24);
  EXPECT_EQ(load_config("  \n" + text, {}).config.integer("train_batch_size"), 24);
  EXPECT_EQ(load_config("eyJ0cmFpbl9iYXRjaF9zaXplIjogMjR9", {}).config.integer("train_batch_size"),
            24);
  EXPECT_EQ(load_config("eyJ0cmFpbl9iYXRjaF9zaXplIjoyNH0=", {}).config.integer("train_batch_size"),
            24);
}

TEST(LoadConfig, NamesAMissingFile) {
  test::TemporaryFolder folder;
  const std::string path = folder.write("config.json", "{}");
  const std::string wrong = path.substr(0, path.size() - 11) + "confg.json";
  const LoadResult loaded = load_config(wrong, {});
  ASSERT_EQ(loaded.errors.size(), 1u);
  const std::string& message = loaded.errors[0].message;
  EXPECT_NE(message.find("No such file"), std::string::npos) << message;
  EXPECT_NE(message.find("did you mean " + path), std::string::npos) << message;
  EXPECT_EQ(message.find("base64"), std::string::npos);
  const LoadResult bare = load_config("confg.json", {});
  EXPECT_NE(bare.errors[0].message.find(std::filesystem::current_path().string()),
            std::string::npos);
  EXPECT_FALSE(load_config(path.substr(0, path.size() - 12), {}).ok());  // a folder
}

TEST(LoadConfig, ResolvesByStage) {
  for (int stage = 0; stage <= 3; ++stage) {
    const LoadResult loaded = load_with(concat("\"zero_optimization\": {\"stage\": ", stage, "}"));
    ASSERT_TRUE(loaded.ok());
    EXPECT_EQ(loaded.config.flag("zero_optimization.overlap_comm"), stage == 3);
  }
}

TEST(LoadConfig, ReadsDeprecatedForms) {
  const LoadResult offload =
      load_with("\"zero_optimization\": {\"stage\": 2, \"cpu_offload\": true}");
  ASSERT_TRUE(offload.ok());
  EXPECT_EQ(offload.config.text("zero_optimization.offload_optimizer.device"), "cpu");
  EXPECT_EQ(offload.warnings.size(), 1u);
  EXPECT_EQ(load_with("\"zero_optimization\": true").config.stage(), 1);
  EXPECT_TRUE(load_with("\"bfloat16\": {\"enabled\": true}").config.flag("bf16.enabled"));
  EXPECT_FALSE(
      load_with("\"bfloat16\": {\"enabled\": true}, \"bf16\": {}").config.flag("bf16.enabled"));
}

TEST(LoadConfig, TellsWhereValuesComeFrom) {
  LoadOptions options;
  options.autos.lr = 3e-4;
  options.autos.hidden_size = 1000;
  const LoadResult loaded = load(
      "{\"train_micro_batch_size_per_gpu\": 2,\n \"optimizer\": {\"type\": \"AdamW\", \"params\": "
      "{\"lr\": \"auto\"}},\n \"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": "
      "\"auto\", "
      "\"stage3_max_live_parameters\": \"auto\", \"max_reuse_distance\": 7}}",
      options);
  ASSERT_TRUE(loaded.ok()) << loaded.errors[0].message;
  const auto source = [&](const char* path) { return loaded.provenance.at(path).source; };
  EXPECT_EQ(source("train_micro_batch_size_per_gpu"), ValueSource::file);
  EXPECT_EQ(source("train_batch_size"), ValueSource::derived);
  EXPECT_EQ(source("optimizer.params.lr"), ValueSource::command_line);
  EXPECT_EQ(source("zero_optimization.reduce_bucket_size"), ValueSource::auto_value);
  EXPECT_EQ(source("zero_optimization.stage3_max_live_parameters"), ValueSource::auto_value);
  EXPECT_EQ(source("zero_optimization.stage3_max_reuse_distance"), ValueSource::file);
  EXPECT_EQ(loaded.provenance.count("zero_optimization.sub_group_size"), 0u);
  EXPECT_EQ(loaded.config.integer("zero_optimization.reduce_bucket_size"), 1'000'000);
}

TEST(LoadConfig, PathsAreWrittenAsPythonDoes) {
  for (const auto& [stated, plain] : {std::pair("/a/b/", "/a/b"),
                                      {"/a//b/./c", "/a/b/c"},
                                      {"a/", "a"},
                                      {"./a/../b", "a/../b"},
                                      {"/", "/"},
                                      {"//a", "//a"},
                                      {"///a", "/a"},
                                      {"", "."},
                                      {".", "."},
                                      {"/local nvme", "/local nvme"}}) {
    const LoadResult loaded = load_with(concat(
        "\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\", "
        "\"nvme_path\": \"",
        stated, "\"}}"));
    ASSERT_TRUE(loaded.ok()) << stated;
    EXPECT_EQ(loaded.config.text("zero_optimization.offload_optimizer.nvme_path"), plain) << stated;
  }
  EXPECT_TRUE(
      mentions(load_with("\"zero_optimization\": {\"offload_param\": {\"nvme_path\": 5}}").errors,
               "zero_optimization.offload_param.nvme_path", "found 5"));
}

TEST(LoadConfig, KeepsOptimizerParameters) {
  const LoadResult loaded = load_with(
      "\"optimizer\": {\"type\": \"adamw\", \"params\": {\"lr\": 1e-3, \"betas\": [0.8, 0.9], "
      "\"zeta\": \"x\", \"eps\": null}}");
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded.config.text("optimizer.type"), "adamw");
  EXPECT_EQ(loaded.config.at("optimizer.params").dump(),
            R"({"lr": 0.001, "betas": [0.8, 0.9], "zeta": "x", "eps": null})");
  EXPECT_TRUE(mentions(loaded.train_errors, "optimizer.params.zeta", "no such parameter"));
}

TEST(LoadConfig, WhatItWritesLoadsAgain) {
  std::vector<std::string> texts = {
      "{\"train_batch_size\": 8}",
      "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 2, "
      "\"cpu_offload\": true}, \"fp16\": {\"enabled\": true, "
      "\"min_loss_scale\": 0.5}, \"datastates_ckpt\": null}"};
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    if (entry.path().extension() != ".json") continue;
    ++files;
    texts.push_back(slurp(entry.path()));
  }
  EXPECT_GE(files, 6);
  LoadOptions options;
  options.ranks = 2;
  options.autos.lr = 1e-4;
  options.autos.weight_decay = 0.1;
  options.autos.betas = {0.9, 0.95};
  options.autos.eps = 1e-8;
  options.autos.max_grad_norm = 1;
  options.autos.warmup_steps = 10;
  options.autos.steps = 100;
  options.autos.micro_batch = 4;
  options.autos.accumulation = 2;
  options.autos.hidden_size = 64;
  LoadOptions plain;
  plain.ranks = 2;
  for (const std::string& text : texts) {
    LoadResult first = load(text, options);
    if (!first.ok()) first = load(text, plain);
    ASSERT_TRUE(first.ok()) << text << first.errors[0].message;
    const LoadResult second = load(loadable_json(first.config).dump(2), plain);
    ASSERT_TRUE(second.ok()) << second.errors[0].path << second.errors[0].message;
    EXPECT_EQ(config_fingerprint(first.config), config_fingerprint(second.config));
  }
}

TEST(LoadConfig, FingerprintTellsConfigurationsApart) {
  const auto print = [](const std::string& text, int ranks) {
    LoadOptions options;
    options.ranks = ranks;
    return config_fingerprint(load(text, options).config);
  };
  const std::string base = print("{\"train_batch_size\": 8}", 2);
  EXPECT_EQ(base.size(), 16u);
  EXPECT_EQ(base, print("train_batch_size: 8.0 # the same", 2));
  EXPECT_NE(base, print("{\"train_batch_size\": 8}", 4));
  EXPECT_NE(base, print("{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 1}}", 2));
  // A fixed value: it must not change between machines or builds.
  EXPECT_EQ(base, "474efcf49f048bc0");
}

TEST(LoadConfig, HostileInput) {
  for (const std::size_t depth : {100u, 199u, 300u, 100'000u}) {
    const std::string lists = std::string(depth, '[') + std::string(depth, ']');
    std::string objects;
    for (std::size_t i = 0; i < depth; ++i) objects += "{a:";
    for (const std::string& inner : {lists, objects, std::string(depth, '[')}) {
      const LoadResult loaded = load("{\"train_batch_size\": 8, \"x\": " + inner + "}");
      EXPECT_EQ(loaded.ok(), depth < 200 && inner == lists) << depth;
    }
  }
  std::string many = "{\"train_batch_size\": 8";
  for (int i = 0; i < 40'000; ++i) many += concat(",\"k", i, "\":1");
  const LoadResult loaded = load(many + "}");
  EXPECT_TRUE(loaded.ok());
  EXPECT_LE(loaded.warnings.size(), 201u);
  EXPECT_FALSE(load(std::string(3u << 20, ' ')).ok());
  EXPECT_FALSE(load(std::string("\xff\xfe{", 3)).ok());
  LoadOptions none;
  none.ranks = 0;
  EXPECT_FALSE(load("{\"train_batch_size\": 8}", none).ok());
}

TEST(LoadConfig, IsFast) {
  const std::string text = slurp("configs/zero3_offload.json");
  const auto start = std::chrono::steady_clock::now();
  LoadOptions options;
  options.ranks = 2;
  for (int i = 0; i < 858; ++i) ASSERT_FALSE(load(text, options).name.empty());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(NDEBUG)
  EXPECT_LT(seconds.count(), 1.0);
#endif
}

TEST(ConfigReference, FileIsCurrent) {
  EXPECT_EQ(slurp("docs/config.md"), config_reference())
      << "run: zero3d config-docs > docs/config.md";
}

}  // namespace
}  // namespace zero3d
