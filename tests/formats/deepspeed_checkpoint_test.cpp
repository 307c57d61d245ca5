// DeepSpeed's checkpoints: recorded ones give the weights that DeepSpeed itself reads from them, to
// the bit.
#include "zero3d/formats/deepspeed_checkpoint.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "deepspeed_checkpoints.h"
#include "zero3d/formats/pipeline_names.h"
#include "zero3d/formats/safetensors.h"
#include "zero3d/formats/torch_archive.h"

namespace zero3d {
namespace {

using test::bytes_of;
using test::expect_has;
using test::Floats;
using test::message_of;
using test::values;
using test::view_of;
namespace fs = std::filesystem;

const std::string kRecorded = "tests/golden/checkpoints/";

TEST(DeepspeedCheckpoint, GivesTheWeightsThatDeepspeedReads) {
  for (const char* name : {"adamw-bf16-z3", "fp16-dynamic-z2", "frozen-z3"}) {
    const DeepspeedCheckpoint checkpoint(kRecorded + name);
    std::ifstream file(kRecorded + name + "/fp32_weights.crc32");
    std::string parameter;
    std::uint32_t checksum = 0;
    int count = 0;
    for (; file >> parameter >> checksum; ++count)
      EXPECT_EQ(zip_checksum(bytes_of(values(checkpoint, parameter))), checksum)
          << name << ": " << parameter;
    EXPECT_EQ(count, 29) << name;
    checkpoint.verify();
  }
}

/// With ZERO3D_CHECKPOINTS a folder of checkpoints, each beside the fp32 weights that DeepSpeed
/// reads from it.
TEST(DeepspeedCheckpoint, GivesTheWeightsOfOtherRecordings) {
  const char* folder = std::getenv("ZERO3D_CHECKPOINTS");
  if (folder == nullptr) GTEST_SKIP() << "ZERO3D_CHECKPOINTS is not set";
  for (const auto& entry : fs::directory_iterator(folder)) {
    const DeepspeedCheckpoint checkpoint(entry.path().string());
    if (!fs::exists(entry.path() / "fp32_weights.safetensors")) continue;
    const SafetensorsFile expected((entry.path() / "fp32_weights.safetensors").string());
    for (const SafetensorsEntry& tensor : expected.tensors()) {
      Floats recorded(static_cast<std::size_t>(tensor.numel()));
      expected.read(tensor, 0, view_of(recorded));
      EXPECT_EQ(bytes_of(values(checkpoint, tensor.name)), bytes_of(recorded))
          << entry.path() << ": " << tensor.name;
    }
  }
}

TEST(DeepspeedCheckpoint, SaysWhereTheRunWas) {
  const DeepspeedCheckpoint fp16(kRecorded + "fp16-dynamic-z2");
  const DeepspeedFacts& facts = fp16.facts();
  EXPECT_EQ(facts.zero_stage, 2);
  EXPECT_EQ(facts.zero_ranks, 2);
  EXPECT_EQ(facts.global_steps, 12);
  EXPECT_EQ(facts.global_samples, 48);
  EXPECT_EQ(facts.skipped_steps, 9);
  EXPECT_EQ(facts.ds_version, "0.19.8");
  EXPECT_EQ(facts.dtype, DType::f16);
  EXPECT_EQ(facts.clip_grad, 1.0);
  ASSERT_TRUE(facts.loss_scale);
  EXPECT_TRUE(facts.loss_scale->dynamic);
  EXPECT_EQ(facts.loss_scale->scale, 262144);
  EXPECT_EQ(facts.loss_scale->iteration, 12);
  EXPECT_EQ(facts.loss_scale->last_overflow, 8);
  EXPECT_EQ(facts.loss_scale->hysteresis, 1);
  EXPECT_EQ(facts.loss_scale->window, 3);
  ASSERT_EQ(facts.groups.size(), 1u);
  EXPECT_EQ(facts.groups[0].step, 3);
  EXPECT_EQ(facts.groups[0].values.at("lr"), std::vector<double>{0.003});
  EXPECT_EQ(facts.groups[0].values.at("betas"), (std::vector<double>{0.9, 0.95}));
  EXPECT_EQ(facts.aliases.at("lm_head.weight"), "transformer.wte.weight");
  EXPECT_EQ(fp16.find("lm_head.weight"), fp16.find("transformer.wte.weight"));
  EXPECT_EQ(fp16.find("transformer.wte"), nullptr);

  const DeepspeedParameter& table = *fp16.find("transformer.wte.weight");
  EXPECT_EQ(table.shape, (std::vector<std::int64_t>{257, 64}));
  EXPECT_EQ(table.states, (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(table.step, 3);
  // Across the ranks' files, in the middle of a parameter.
  const std::string cut = "transformer.h.0.mlp.c_proj.weight";
  for (const char* what : {"fp32", "exp_avg", "exp_avg_sq"}) {
    const Floats whole = values(fp16, cut, what);
    for (const std::int64_t first : {0, 6000, 6239, 6240, 16383})
      EXPECT_EQ(values(fp16, cut, what, first), Floats(whole.begin() + first, whole.end()));
  }
  EXPECT_THROW(values(fp16, cut, "momentum"), Error);
  EXPECT_THROW(values(fp16, cut, "fp32", 16384, 1), Error);
}

TEST(DeepspeedCheckpoint, ReadsFrozenParameters) {
  const DeepspeedCheckpoint frozen(kRecorded + "frozen-z3/global_step4");
  int count = 0;
  for (const DeepspeedParameter& parameter : frozen.parameters()) {
    EXPECT_EQ(parameter.frozen, parameter.states.empty()) << parameter.name;
    count += parameter.frozen ? 1 : 0;
  }
  EXPECT_EQ(count, 3);
  EXPECT_TRUE(frozen.find("transformer.wte.weight")->frozen);
}

TEST(DeepspeedCheckpoint, TheUniversalFormHoldsTheSame) {
  const DeepspeedCheckpoint zero(kRecorded + "adamw-bf16-z3");
  const DeepspeedCheckpoint universal(kRecorded + "adamw-bf16-z3/global_step5_universal");
  EXPECT_TRUE(universal.facts().universal);
  EXPECT_EQ(universal.facts().global_steps, 5);
  EXPECT_EQ(universal.facts().groups.at(0).step, 5);
  ASSERT_EQ(zero.parameters().size(), universal.parameters().size());
  for (std::size_t i = 0; i < zero.parameters().size(); ++i) {
    const DeepspeedParameter &a = zero.parameters()[i], &b = universal.parameters()[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.shape, b.shape);
    EXPECT_EQ(a.states, b.states);
    EXPECT_EQ(a.step, b.step);
    for (const char* what : {"fp32", "exp_avg", "exp_avg_sq"})
      EXPECT_EQ(bytes_of(values(zero, a.name, what)), bytes_of(values(universal, b.name, what)));
  }
}

std::vector<std::vector<NamedShape>> gpt2_blocks(int layers, std::int64_t vocabulary) {
  std::vector<std::vector<NamedShape>> blocks = {
      {{"transformer.wte.weight", {vocabulary, 32}}, {"transformer.wpe.weight", {64, 32}}}};
  for (int i = 0; i < layers; ++i) {
    blocks.emplace_back();
    const std::string prefix = "transformer.h." + std::to_string(i) + ".";
    for (const auto& [name, shape] : std::vector<std::pair<std::string, std::vector<std::int64_t>>>{
             {"ln_1.weight", {32}},
             {"ln_1.bias", {32}},
             {"attn.c_attn.weight", {32, 96}},
             {"attn.c_attn.bias", {96}},
             {"attn.c_proj.weight", {32, 32}},
             {"attn.c_proj.bias", {32}},
             {"ln_2.weight", {32}},
             {"ln_2.bias", {32}},
             {"mlp.c_fc.weight", {32, 128}},
             {"mlp.c_fc.bias", {128}},
             {"mlp.c_proj.weight", {128, 32}},
             {"mlp.c_proj.bias", {32}}})
      blocks.back().push_back({prefix + name, shape});
  }
  blocks.push_back({{"transformer.ln_f.weight", {32}},
                    {"transformer.ln_f.bias", {32}},
                    {"lm_head.weight", {vocabulary, 32}}});
  return blocks;
}

TEST(DeepspeedCheckpoint, ReadsWhatAPipelineSaved) {
  const DeepspeedCheckpoint pipeline(kRecorded + "pipe2-dp2-z1");
  EXPECT_TRUE(pipeline.facts().pipeline);
  EXPECT_EQ(pipeline.facts().pipeline_stages, 2);
  EXPECT_EQ(pipeline.facts().zero_ranks, 2);
  const MatchedNames matched = match_names(pipeline, gpt2_blocks(4, 257));
  EXPECT_EQ(matched.names.size(), 53u);
  EXPECT_TRUE(matched.remarks.empty());
  EXPECT_EQ(matched.names.at("transformer.wte.weight"), "0.wte.weight");
  EXPECT_EQ(matched.names.at("transformer.h.2.attn.c_proj.bias"), "3.block.attn.c_proj.bias");
  EXPECT_EQ(matched.names.at("transformer.ln_f.weight"), "5.norm.weight");
  EXPECT_EQ(matched.names.at("lm_head.weight"), "5.head.weight");
  // In fp32 the masters are the weights, which the files of layers hold too.
  for (int layer = 0; layer < 6; ++layer) {
    const TorchArchive file(kRecorded + "pipe2-dp2-z1/global_step4/layer_0" +
                            std::to_string(layer) + "-model_states.pt");
    for (std::size_t i = 0; i < file.root().size(); ++i) {
      const std::string name = std::to_string(layer) + "." + *file.root().key(i).text();
      Floats weight(static_cast<std::size_t>(pipeline.find(name)->numel()));
      file.read(*file.root()[i].tensor(), 0, view_of(weight));
      EXPECT_EQ(bytes_of(values(pipeline, name)), bytes_of(weight)) << name;
    }
  }
  expect_has(message_of<IoError>([&] { match_names(pipeline, gpt2_blocks(3, 257)); }),
             "cannot tell which parameters of a layer");
  expect_has(message_of<IoError>([&] { match_names(pipeline, gpt2_blocks(5, 257)); }),
             "cannot tell which parameters of a layer");
}

}  // namespace
}  // namespace zero3d
