// From the keys of offload to settings: what reaches them at which stage, what is refused, and how
// it is told.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "loading.h"
#include "zero3d/ds_config/docs.h"
#include "zero3d/ds_config/settings.h"
#include "zero3d/ds_config/trainable.h"

namespace zero3d {
namespace {

/// What the settings say of offload, for "zero_optimization": { `zero` } and further members.
OffloadSettings offload(const std::string& zero, const std::string& members = "") {
  const LoadResult loaded =
      load(concat("\"zero_optimization\": {", zero, "}", members.empty() ? "" : ", ", members));
  const TrainCheck check = check_trainable(loaded);
  EXPECT_TRUE(check.ok()) << zero << ": " << (check.ok() ? "" : check.errors[0].text());
  EXPECT_EQ(check.not_implemented, "");
  return train_settings(loaded.config).offload;
}

TEST(Offload, EveryKeyReachesItsSetting) {
  const OffloadSettings s = offload(
      R"("stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/a/", "pin_memory": false,
         "buffer_count": 7, "pipeline_read": true, "pipeline_write": true, "ratio": 0.25},
         "offload_param": {"device": "nvme", "nvme_path": "/b", "pin_memory": false,
         "buffer_count": 6, "buffer_size": 1e6, "max_in_cpu": 0})",
      R"("aio": {"block_size": 8192, "queue_depth": 32, "intra_op_parallelism": 2,
         "single_submit": true, "overlap_events": false}, "zero3d": {"checksums": true},
         "activation_checkpointing": {"cpu_checkpointing": true})");
  EXPECT_EQ(s.optimizer.device, OffloadDevice::nvme);
  EXPECT_EQ(s.optimizer.paths, std::vector<std::string>{"/a"});
  EXPECT_FALSE(s.optimizer.pin_memory);
  EXPECT_EQ(s.optimizer.buffer_count, 7);
  EXPECT_TRUE(s.optimizer.pipeline_read && s.optimizer.pipeline_write);
  EXPECT_EQ(s.optimizer.ratio, 0.25);
  EXPECT_EQ(s.parameters.device, OffloadDevice::nvme);
  EXPECT_EQ(s.parameters.paths, std::vector<std::string>{"/b"});
  EXPECT_FALSE(s.parameters.pin_memory);
  EXPECT_EQ(s.parameters.buffer_count, 6);
  EXPECT_EQ(s.parameters.buffer_elements, 1'000'000);
  EXPECT_EQ(s.parameters.max_in_cpu, 0);
  EXPECT_EQ(s.io.block_size, 8192);
  EXPECT_EQ(s.io.queue_depth, 32);
  EXPECT_EQ(s.io.intra_op_parallelism, 2);
  EXPECT_TRUE(s.io.single_submit);
  EXPECT_FALSE(s.io.overlap_events);
  EXPECT_TRUE(s.checksums && s.activations);
}

TEST(Offload, TakesDeepSpeedsDefaults) {
  const OffloadSettings s = offload(
      R"("stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/a"},
         "offload_param": {"device": "nvme", "nvme_path": "/a"})");
  EXPECT_TRUE(s.optimizer.pin_memory && s.parameters.pin_memory);
  EXPECT_EQ(s.optimizer.buffer_count, 4);
  EXPECT_EQ(s.parameters.buffer_count, 5);
  EXPECT_EQ(s.parameters.buffer_elements, 100'000'000);
  EXPECT_EQ(s.parameters.max_in_cpu, 1'000'000'000);
  EXPECT_EQ(s.io.block_size, 1'048'576);
  EXPECT_EQ(s.io.queue_depth, 8);
  EXPECT_FALSE(s.optimizer.pipeline_read || s.optimizer.pipeline_write || s.checksums);
}

TEST(Offload, TakesEffectAtTheStagesThatDeepSpeedGivesIt) {
  for (const char* device : {"cpu", "nvme"}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const OffloadSettings s =
          offload(concat("\"stage\": ", stage, R"(, "offload_optimizer": {"device": ")", device,
                         R"(", "nvme_path": "/a"}, "offload_param": {"device": ")", device,
                         R"(", "nvme_path": "/a"})"));
      EXPECT_EQ(name_of(s.optimizer.device), stage == 0 ? "none" : device) << stage;
      EXPECT_EQ(name_of(s.parameters.device), stage < 3 ? "none" : device) << stage;
    }
  }
  EXPECT_FALSE(offload(R"("stage": 3, "offload_optimizer": {}, "offload_param": null)").on());
}

TEST(Offload, TheOldSpellingsDriveTheSame) {
  const OffloadSettings s =
      offload(R"("stage": 3, "cpu_offload": true, "cpu_offload_param": true)");
  EXPECT_EQ(s.optimizer.device, OffloadDevice::cpu);
  EXPECT_EQ(s.parameters.device, OffloadDevice::cpu);
  EXPECT_TRUE(s.optimizer.pin_memory && s.parameters.pin_memory);
  EXPECT_FALSE(offload(R"("stage": 3, "cpu_offload": false, "cpu_offload_param": false)").on());
}

TEST(Offload, SeveralDrivesTakeThePlaceOfOnePath) {
  const char* const drives = R"("zero3d": {"nvme_paths": ["/d0/", "/d1"]})";
  const OffloadSettings s = offload(
      R"("stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/a"},
         "offload_param": {"device": "nvme"})",
      drives);
  const std::vector<std::string> both = {"/d0", "/d1"};
  EXPECT_EQ(s.optimizer.paths, both);
  EXPECT_EQ(s.parameters.paths, both);
  EXPECT_TRUE(offload(R"("stage": 3, "offload_optimizer": {"device": "cpu"})", drives)
                  .optimizer.paths.empty());
}

TEST(Offload, RequestsAreOfWholePages) {
  const LoadResult loaded = load(
      R"("zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme",
         "nvme_path": "/a"}}, "aio": {"block_size": 5000})");
  ASSERT_EQ(loaded.warnings.size(), 1u);
  EXPECT_EQ(loaded.warnings[0].text(),
            "aio.block_size: rounded up from 5000 to 8192, a multiple of 4096");
  EXPECT_EQ(train_settings(loaded.config).offload.io.block_size, 8192);
  EXPECT_TRUE(load(R"("aio": {"block_size": 5000})").warnings.empty()) << "nothing uses it";
}

TEST(Offload, RefusesByTheKeyWhatIsOutOfRange) {
  const std::string nvme = R"("device": "nvme", "nvme_path": "/a")";
  const auto optimizer = [&](const std::string& keys) {
    return concat(R"("zero_optimization": {"stage": 3, "offload_optimizer": {)", nvme, keys, "}}");
  };
  const auto parameters = [&](const std::string& keys) {
    return concat(R"("zero_optimization": {"stage": 3, "offload_param": {)", nvme, keys, "}}");
  };
  const struct {
    std::string members;
    const char* path;
    const char* message;
  } faults[] = {
      {optimizer(R"(, "buffer_count": 0)"), "zero_optimization.offload_optimizer.buffer_count",
       "expected 1 to 1024 buffers, found 0"},
      {optimizer(R"(, "super_offload": true)"), "zero_optimization.offload_optimizer.super_offload",
       "there is no SuperOffload here"},
      {parameters(R"(, "buffer_count": 2000)"), "zero_optimization.offload_param.buffer_count",
       "expected 1 to 1024 buffers, found 2000"},
      {parameters(R"(, "buffer_size": 0)"), "zero_optimization.offload_param.buffer_size",
       "expected 1 or more with device nvme, found 0"},
      {optimizer("") + R"(, "aio": {"queue_depth": 0})", "aio.queue_depth",
       "expected an integer > 0"},
      {optimizer("") + R"(, "aio": {"queue_depth": 5000})", "aio.queue_depth",
       "expected 1 to 4096 requests, found 5000"},
      {optimizer("") + R"(, "aio": {"intra_op_parallelism": -1})", "aio.intra_op_parallelism",
       "expected an integer > 0"},
      {optimizer("") + R"(, "aio": {"intra_op_parallelism": 1e6})", "aio.intra_op_parallelism",
       "expected 1 to 1024 threads, found 1000000"},
      {optimizer("") + R"(, "aio": {"block_size": 2e9})", "aio.block_size",
       "expected at most 1073741824, found 2000000000"},
      {R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}})",
       "zero_optimization.offload_optimizer.nvme_path", "needs the folder on the drive"},
      {R"("zero3d": {"nvme_paths": []})", "zero3d.nvme_paths", "expected one folder per drive"},
      {R"("zero3d": {"nvme_paths": "/a"})", "zero3d.nvme_paths", "expected a list of strings"},
      {R"("zero3d": {"nvme_paths": [5]})", "zero3d.nvme_paths", "expected a list of strings"},
      {R"("zero3d": {"nvme_paths": ["/a", ""]})", "zero3d.nvme_paths", "an empty path names none"},
      {R"("zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": ""}})",
       "zero_optimization.offload_param.nvme_path", "an empty path is the folder that the run"},
      {R"("zero_optimization": {"offload_optimizer": {"device": "cpu", "nvme_path": ""}})",
       "zero_optimization.offload_optimizer.nvme_path", "name the folder on the drive"},
      {R"("zero3d": {"checksum": true})", "zero3d.checksum", "did you mean \"checksums\"?"},
      {R"("zero3d": [])", "zero3d", "expected an object"},
  };
  for (const auto& fault : faults) {
    const TrainCheck check = check_trainable(load(fault.members));
    ASSERT_EQ(check.errors.size(), 1u) << fault.members;
    EXPECT_EQ(check.errors[0].path, fault.path);
    EXPECT_NE(check.errors[0].message.find(fault.message), std::string::npos)
        << check.errors[0].text();
    EXPECT_GT(check.errors[0].position.line, 0) << fault.members;
  }
}

/// As DeepSpeed reads `aio`, and ignores a section that it does not know.
TEST(Offload, NullForASectionIsItsDefaults) {
  for (const char* section : {"aio", "zero3d"}) {
    const LoadResult loaded = load(concat("\"", section, "\": null"));
    EXPECT_TRUE(check_trainable(loaded).ok()) << section;
    EXPECT_TRUE(loaded.warnings.empty()) << section;
    EXPECT_EQ(loaded.config.at(section).dump(), load("").config.at(section).dump());
  }
}

/// Every bound that settings hold is in the reference.
TEST(Offload, TheReferenceNamesTheBounds) {
  const std::string text = config_reference();
  for (const std::string& bound :
       {concat("Staging buffers for nvme, 1 to ", OffloadSettings::kMostBuffers, ": shards"),
        concat("Staging buffers for nvme, 1 to ", OffloadSettings::kMostBuffers, ": tiles"),
        concat("Requests in flight, at most ", IoOptions::kMostUnderWay),
        concat("at most ", IoOptions::kMostThreads, ". | yes"),
        concat("at most ", IoOptions::kMostBlock >> 30, " GiB")})
    EXPECT_NE(text.find(bound), std::string::npos) << bound;
}

TEST(Offload, NothingThatIsLeftBehindIsSaidToBe) {
  OffloadSettings offload;
  offload.parameters.device = offload.optimizer.device = OffloadDevice::nvme;
  offload.parameters.paths = offload.optimizer.paths = {"/a"};
  offload.parameters.max_in_cpu = 0;
  offload.optimizer.ratio = 0;
  const std::vector<std::string> lines = describe_offload(offload);
  EXPECT_EQ(lines[0],
            "of masters, moments and gradients nothing (a ratio of 0): all stay on the device");
  EXPECT_NE(lines[1].find("; none stay there"), std::string::npos) << lines[1];
}

TEST(Offload, SuperOffloadIsAMatterOfStage3) {
  const LoadResult loaded = load(
      R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu",
         "super_offload": true}})");
  EXPECT_TRUE(check_trainable(loaded).ok());
  ASSERT_EQ(loaded.warnings.size(), 1u);
  EXPECT_NE(loaded.warnings[0].text().find("super_offload: without effect below stage 3"),
            std::string::npos);
}

TEST(Offload, OurSectionIsWrittenWhereItSaysSomething) {
  const char* const zero =
      R"("zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme"}})";
  const LoadResult loaded =
      load(concat(zero, R"(, "zero3d": {"nvme_paths": ["/a"], "checksums": false})"));
  const JsonValue written = loadable_json(loaded.config);
  EXPECT_EQ(written.find("zero3d")->dump(), R"({"nvme_paths": ["/a"]})");
  EXPECT_EQ(loadable_json(load(zero).config).find("zero3d"), nullptr);
}

TEST(Offload, IsToldInWords) {
  const auto told = [](const std::string& zero, const std::string& members = "") {
    std::string text;
    for (const std::string& line : describe_offload(offload(zero, members)))
      text += (text.empty() ? "" : "\n") + line;
    return text;
  };
  EXPECT_EQ(told(R"("stage": 3)"), "");
  EXPECT_EQ(told(R"("stage": 1, "offload_optimizer": {"device": "cpu", "pin_memory": false})"),
            "masters, moments and gradients in host memory");
  EXPECT_EQ(told(R"("stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/a",
                    "pipeline_read": true}, "offload_param": {"device": "cpu"})",
                 R"("activation_checkpointing": {"cpu_checkpointing": true})"),
            "masters, moments and gradients on a drive (/a) through 4 buffers of pinned host "
            "memory, read ahead\n"
            "shards of parameters in pinned host memory\n"
            "what forward keeps for recomputation in pinned host memory\n"
            "requests of 1.00 MiB, 8 under way");
  EXPECT_EQ(told(R"("stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/a",
                    "max_in_cpu": 1000})",
                 R"("zero3d": {"nvme_paths": ["/b", "/c"], "checksums": true})"),
            "shards of parameters on drives (/b, /c) through 5 buffers of at most 100,000,000 "
            "elements of pinned host memory; the first 1,000 elements stay there\n"
            "requests of 1.00 MiB, 8 under way, with checksums");
}

}  // namespace
}  // namespace zero3d
