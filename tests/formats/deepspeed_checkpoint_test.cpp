// DeepSpeed's checkpoints: recorded ones give the weights that DeepSpeed itself reads from them, to
// the bit; layouts that none was recorded of are written here.
#include "zero3d/formats/deepspeed_checkpoint.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <numeric>
#include <sstream>

#include "zero3d/core/error.h"
#include "zero3d/formats/pipeline_names.h"
#include "zero3d/formats/safetensors.h"
#include "zero3d/formats/torch_archive.h"
#include "zero3d/tests/formats/torch_writer.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::P;
using test::TemporaryFolder;
using test::TorchWriter;
using Floats = std::vector<float>;

const std::string kRecorded = "tests/golden/checkpoints/";

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' not in: " << text;
}

View view_of(Floats& values) {
  return View(reinterpret_cast<std::byte*>(values.data()), DType::f32,
              Shape{static_cast<std::int64_t>(values.size())});
}

std::string bytes_of(const Floats& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

Floats values(const DeepspeedCheckpoint& checkpoint, const std::string& name,
              std::string_view what = DeepspeedCheckpoint::kMaster, std::int64_t first = 0,
              std::int64_t count = -1) {
  const DeepspeedParameter* parameter = checkpoint.find(name);
  if (parameter == nullptr) throw_invalid(name + " is not there");
  Floats out(static_cast<std::size_t>(count < 0 ? parameter->numel() - first : count));
  checkpoint.read(*parameter, what, first, view_of(out));
  return out;
}

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

/// Checkpoints that this test writes.
class WrittenCheckpoint : public testing::Test {
 protected:
  void write(const std::string& name, TorchWriter& writer, const P& root) {
    fs::create_directories((folder_.path() / "step" / name).parent_path());
    folder_.write("step/" + name, writer.archive(root));
  }
  std::string path() const { return (folder_.path() / "step").string(); }
  std::string refusal() const {
    return message_of<IoError>([&] { DeepspeedCheckpoint checkpoint(path()); });
  }
  static P counters(P::Entries more) {
    P::Entries entries = {{"global_steps", P::integer(3)}, {"ds_version", P::text("0.12.0")}};
    entries.insert(entries.end(), more.begin(), more.end());
    return P::dict(entries);
  }
  static P group(std::vector<std::int64_t> ids) {
    return P::dict({{"lr", P::number(0.5)}, {"params", P::list(P::integers(ids))}});
  }
  static Floats iota(std::size_t count, float first) {
    Floats numbers(count);
    std::iota(numbers.begin(), numbers.end(), first);
    return numbers;
  }
  TemporaryFolder folder_;
};

TEST_F(WrittenCheckpoint, StageOneWithoutAddresses) {
  // Two groups over two ranks: 5 + 2 elements in partitions of 4, 3 elements in partitions of 2;
  // partitions are saved without their padding, states with it.
  TorchWriter model;
  write(
      "mp_rank_00_model_states.pt", model,
      counters({{"module", P::ordered({{"a", model.floats(iota(5, 0), {5})},
                                       {"b", model.floats(iota(2, 0), {2})},
                                       {"c", model.floats(iota(3, 0), {3})},
                                       {"still", model.floats({8, 9}, {2})},
                                       {"head", model.floats(iota(3, 0), {3})},
                                       {"buffer", model.floats({1}, {1})}})},
                {"buffer_names", P::list({P::text("buffer")})},
                {"param_shapes", P::list({P::ordered({{"a", P::size({5})}, {"b", P::size({2, 1})}}),
                                          P::ordered({{"c", P::size({3})}})})},
                {"lr_scheduler", P::dict({{"last_batch_iteration", P::integer(2)}})},
                {"shared_params", P::dict({{"head", P::text("c")}})},
                {"dp_world_size", P::integer(2)},
                {"mp_world_size", P::integer(1)}}));
  for (int rank = 0; rank < 2; ++rank) {
    TorchWriter w;
    const float at = 10.0f * static_cast<float>(rank);
    const P state = P::numbered(
        {P::dict({{"step", w.floats({3}, {})}, {"momentum", w.floats(iota(4, 100 + at), {4})}}),
         P::dict({{"step", w.floats({2}, {})}, {"momentum", w.floats(iota(2, 200 + at), {2})}})});
    const P optimizer =
        P::dict({{"base_optimizer_state",
                  P::dict({{"state", state}, {"param_groups", P::list({group({0}), group({1})})}})},
                 {"single_partition_of_fp32_groups",
                  P::list({w.floats(iota(rank == 0 ? 4 : 3, 10 + at), {rank == 0 ? 4 : 3}),
                           w.floats(iota(rank == 0 ? 2 : 1, 50 + at), {rank == 0 ? 2 : 1})})},
                 {"partition_count", P::list({P::integer(2), P::integer(2)})}});
    write("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt", w,
          P::dict({{"optimizer_state_dict", optimizer}}));
  }
  const DeepspeedCheckpoint checkpoint(path());
  EXPECT_EQ(checkpoint.facts().zero_stage, 1);
  EXPECT_EQ(checkpoint.facts().scheduler.at("last_batch_iteration"), 2);
  EXPECT_EQ(values(checkpoint, "a"), (Floats{10, 11, 12, 13, 20}));
  EXPECT_EQ(values(checkpoint, "b"), (Floats{21, 22}));
  EXPECT_EQ(values(checkpoint, "c"), (Floats{50, 51, 60}));
  EXPECT_EQ(values(checkpoint, "a", "momentum"), (Floats{100, 101, 102, 103, 110}));
  EXPECT_EQ(values(checkpoint, "b", "momentum"), (Floats{111, 112}));
  EXPECT_EQ(values(checkpoint, "c", "momentum"), (Floats{200, 201, 210}));
  EXPECT_EQ(checkpoint.find("a")->step, 3);
  EXPECT_EQ(checkpoint.find("c")->step, 2);
  EXPECT_EQ(checkpoint.find("c")->group, 1);
  EXPECT_TRUE(checkpoint.find("still")->frozen);
  EXPECT_EQ(values(checkpoint, "still"), (Floats{8, 9}));
  EXPECT_EQ(checkpoint.find("buffer"), nullptr);
  EXPECT_EQ(checkpoint.parameters().size(), 4u);
  EXPECT_EQ(checkpoint.find("head"), checkpoint.find("c"));

  fs::rename(folder_.path() / "step/zero_pp_rank_1_mp_rank_00_optim_states.pt",
             folder_.path() / "away");
  expect_has(refusal(), "expected the optimizer files of 2 ZeRO ranks");
  fs::rename(folder_.path() / "away",
             folder_.path() / "step/zero_pp_rank_2_mp_rank_00_optim_states.pt");
  expect_has(refusal(), "the optimizer file of ZeRO rank 1, model-parallel rank 0 is not there");
}

TEST_F(WrittenCheckpoint, StageTwoWithAlignedParameters) {
  // Each parameter begins at a multiple of four; one rank.
  TorchWriter model, w;
  write("mp_rank_00_model_states.pt", model,
        counters(
            {{"module", P::ordered({})},
             {"param_shapes", P::list({P::ordered({{"a", P::size({3})}, {"b", P::size({5})}})})}}));
  write("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", w,
        P::dict({{"optimizer_state_dict",
                  P::dict({{"zero_stage", P::integer(2)},
                           {"base_optimizer_state",
                            P::list({P::dict({{"exp_avg", w.floats(iota(12, 100), {12})}})})},
                           {"base_optimizer_state_step", P::integer(8)},
                           {"param_alignment_paddings", P::list({P::list(P::integers({1, 3}))})},
                           {"single_partition_of_fp32_groups",
                            P::list({w.floats(iota(9, 0), {9})})}})}}));
  const DeepspeedCheckpoint checkpoint(path());
  EXPECT_EQ(values(checkpoint, "a"), iota(3, 0));
  EXPECT_EQ(values(checkpoint, "b"), iota(5, 4));
  EXPECT_EQ(values(checkpoint, "b", "exp_avg"), iota(5, 104));
  EXPECT_EQ(checkpoint.facts().zero_stage, 2);
  EXPECT_EQ(checkpoint.find("b")->step, 8);
}

TEST_F(WrittenCheckpoint, StageThreeWithSubgroups) {
  // a (5 elements, shares of 3) and b (2, shares of 1) in one sub-group, c (3, shares of 2) in the
  // next; frozen f (3, shares of 2).
  for (int rank = 0; rank < 2; ++rank) {
    TorchWriter model, w;
    const std::string name = "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_";
    write(
        name + "model_states.pt", model,
        counters({{"module", P::ordered({{"a", model.floats({}, {0})}})},
                  {"param_shapes", P::list({P::ordered({{"a", P::size({5})}, {"b", P::size({2})}}),
                                            P::ordered({{"c", P::size({3})}})})},
                  {"frozen_param_shapes", P::ordered({{"f", P::size({3})}})},
                  {"frozen_param_fragments",
                   P::ordered({{"f", model.floats(iota(2, rank == 0 ? 1 : 3), {2})}})}}));
    const float at = 10.0f * static_cast<float>(rank);
    const P state = P::numbered(
        {P::dict({{"step", P::integer(7)}, {"exp_avg", w.floats(iota(4, 100 + at), {4})}}),
         P::dict({{"step", P::integer(6)}, {"exp_avg", w.floats(iota(2, 200 + at), {2})}})});
    const P base = P::dict({{"state", state}, {"param_groups", P::list({group({0}), group({1})})}});
    write(name + "optim_states.pt", w,
          P::dict({{"optimizer_state_dict",
                    P::dict({{"zero_stage", P::integer(3)},
                             {"partition_count", P::integer(2)},
                             {"optimizer_state_dict", base},
                             {"fp32_flat_groups", P::list({w.floats(iota(4, 10 + at), {4}),
                                                           w.floats(iota(2, 50 + at), {2})})}})}}));
  }
  const DeepspeedCheckpoint checkpoint(path());
  EXPECT_EQ(values(checkpoint, "a"), (Floats{10, 11, 12, 20, 21}));
  EXPECT_EQ(values(checkpoint, "b"), (Floats{13, 23}));
  EXPECT_EQ(values(checkpoint, "c"), (Floats{50, 51, 60}));
  EXPECT_EQ(values(checkpoint, "c", "exp_avg"), (Floats{200, 201, 210}));
  EXPECT_EQ(values(checkpoint, "f"), (Floats{1, 2, 3}));
  EXPECT_EQ(checkpoint.find("b")->step, 7);
  EXPECT_EQ(checkpoint.find("c")->step, 6);
  EXPECT_EQ(checkpoint.find("c")->group, 1);
  EXPECT_TRUE(checkpoint.find("f")->frozen);
}

TEST_F(WrittenCheckpoint, NoZero) {
  TorchWriter w;
  const P tied = w.floats(iota(4, 1), {2, 2});
  const auto root = [&](const P& optimizer) {
    return counters({{"module", P::ordered({{"a", tied},
                                            {"f", w.floats({7}, {1})},
                                            {"b", w.floats(iota(3, 5), {3})},
                                            {"head", tied}})},
                     {"optimizer", optimizer}});
  };
  const P states =
      P::numbered({P::dict({{"step", P::integer(3)}, {"exp_avg", w.floats(iota(4, 10), {2, 2})}}),
                   P::dict({{"step", P::integer(3)}, {"exp_avg", w.floats(iota(3, 20), {3})}})});
  write("mp_rank_00_model_states.pt", w,
        root(P::dict({{"state", states}, {"param_groups", P::list({group({0, 1})})}})));
  const DeepspeedCheckpoint checkpoint(path());
  EXPECT_EQ(values(checkpoint, "a"), iota(4, 1));
  EXPECT_EQ(values(checkpoint, "a", "exp_avg"), iota(4, 10));
  EXPECT_EQ(values(checkpoint, "b", "exp_avg"), iota(3, 20));
  EXPECT_TRUE(checkpoint.find("f")->frozen);
  EXPECT_EQ(checkpoint.find("head"), checkpoint.find("a"));
  EXPECT_EQ(checkpoint.find("a")->step, 3);

  // No state yet: two of three weights, nobody knows which.
  write("mp_rank_00_model_states.pt", w,
        root(P::dict({{"state", P::dict({})}, {"param_groups", P::list({group({0, 1})})}})));
  expect_has(refusal(), "do not tell which are which");
  write(
      "mp_rank_00_model_states.pt", w,
      root(P::dict({{"state", P::dict({})}, {"param_groups", P::list({group({0}), group({1})})}})));
  expect_has(refusal(), "several groups without ZeRO");
}

TEST_F(WrittenCheckpoint, NoZeroWithMastersForFp16) {
  TorchWriter w;
  const std::string half = w.storage(std::string(10, '\0'));
  const P storage = TorchWriter::storage_id(half, "HalfStorage", 5);
  const P module = P::ordered({{"a", TorchWriter::tensor(storage, 0, {2}, {1})},
                               {"b", TorchWriter::tensor(storage, 2, {3}, {1})}});
  const P inner = P::dict(
      {{"state", P::numbered({P::dict({{"exp_avg", w.floats(iota(5, 10), {5})}})})},
       {"param_groups",
        P::list({P::dict({{"step", P::integer(4)}, {"params", P::list({P::integer(0)})}})})}});
  write("mp_rank_00_model_states.pt", w,
        counters({{"module", module},
                  {"optimizer",
                   P::dict({{"dynamic_loss_scale", P::boolean(true)},
                            {"cur_scale", P::number(1024)},
                            {"cur_iter", P::integer(9)},
                            {"optimizer_state_dict", inner},
                            {"fp32_groups_flat", P::list({w.floats(iota(5, 1), {5})})}})}}));
  const DeepspeedCheckpoint checkpoint(path());
  EXPECT_EQ(values(checkpoint, "a"), (Floats{1, 2}));
  EXPECT_EQ(values(checkpoint, "b"), (Floats{3, 4, 5}));
  EXPECT_EQ(values(checkpoint, "b", "exp_avg"), (Floats{12, 13, 14}));
  EXPECT_EQ(checkpoint.find("b")->step, 4);
  EXPECT_EQ(checkpoint.facts().dtype, DType::f16);
  ASSERT_TRUE(checkpoint.facts().loss_scale);
  EXPECT_TRUE(checkpoint.facts().loss_scale->dynamic);
  EXPECT_EQ(checkpoint.facts().loss_scale->iteration, 9);
}

TEST_F(WrittenCheckpoint, UniversalWithStepsAndShapes) {
  TorchWriter model;
  write("mp_rank_00_model_states.pt", model,
        counters({{"module", P::ordered({{"a", model.floats(iota(6, 0), {2, 3})},
                                         {"head", model.floats(iota(6, 0), {2, 3})}})},
                  {"param_shapes", P::list({P::ordered({{"a", P::size({2, 3})}})})},
                  {"shared_params", P::dict({{"head", P::text("a")}})}}));
  for (const char* name : {"fp32", "exp_avg"}) {
    TorchWriter w;
    write(std::string("zero/a/") + name + ".pt", w,
          P::dict({{"param", w.floats(iota(6, name[0] == 'f' ? 1.0f : 2.0f), {2, 3})},
                   {"cat_dim", P::integer(0)}}));
  }
  TorchWriter step, head;
  write("zero/a/step.pt", step, P::integer(3));
  write("zero/head/fp32.pt", head, head.floats(iota(6, 0), {6}));
  const DeepspeedCheckpoint checkpoint(path());
  ASSERT_EQ(checkpoint.parameters().size(), 1u);
  EXPECT_EQ(values(checkpoint, "a"), iota(6, 1));
  EXPECT_EQ(values(checkpoint, "a", "exp_avg"), iota(6, 2));
  EXPECT_EQ(checkpoint.find("a")->step, 3);
  fs::remove_all(folder_.path() / "step/zero/a");
  expect_has(refusal(), "no folder for 'a'");
}

TEST_F(WrittenCheckpoint, APipelineWithSharedWeights) {
  // Two stages, one rank each: both have the embedding, which layers 0 and 2 use.
  const std::string shared = "tied_modules.embed.wte.weight";
  const auto stage = [&](int rank, const std::string& own, std::int64_t count, bool first) {
    TorchWriter model, w;
    const P::Entries tied = {{shared, P::size({2, 2})}}, other = {{own, P::size({count})}};
    P::Entries order = first ? tied : other;
    order.push_back((first ? other : tied).front());
    write("mp_rank_0" + std::to_string(rank) + "_model_states.pt", model,
          counters({{"module", P::none()},
                    {"param_shapes", P::list({P::ordered(order)})},
                    {"mp_world_size", P::integer(2)},
                    {"checkpoint_parallel_dimensions",
                     P::dict({{"pp_degree", P::integer(2)}, {"tp_degree", P::integer(1)}})}}));
    write("zero_pp_rank_0_mp_rank_0" + std::to_string(rank) + "_optim_states.pt", w,
          P::dict({{"optimizer_state_dict",
                    P::dict({{"base_optimizer_state", P::dict({})},
                             {"single_partition_of_fp32_groups",
                              P::list({w.floats(
                                  iota(static_cast<std::size_t>(count) + 4, first ? 1.0f : 50.0f),
                                  {count + 4})})}})}}));
  };
  stage(0, "1.norm.weight", 3, true);
  stage(1, "2.bias", 2, false);
  const auto zeros = [](TorchWriter& w, std::vector<std::int64_t> shape) {
    std::int64_t numel = 1;
    for (const std::int64_t extent : shape) numel *= extent;
    return w.floats(Floats(static_cast<std::size_t>(numel)), shape);
  };
  for (int number : {0, 2}) {
    TorchWriter w;
    P::Entries weights = {{"wte.weight", zeros(w, {2, 2})}};
    if (number == 2) weights.emplace_back("bias", zeros(w, {2}));
    write("layer_0" + std::to_string(number) + "-model_states.pt", w, P::ordered(weights));
  }
  TorchWriter w;
  write("layer_01-model_states.pt", w, P::ordered({{"norm.weight", zeros(w, {3})}}));

  const DeepspeedCheckpoint checkpoint(path());
  EXPECT_EQ(checkpoint.parameters().size(), 3u);
  EXPECT_EQ(values(checkpoint, shared), iota(4, 1));
  EXPECT_EQ(values(checkpoint, "2.wte.weight"), iota(4, 1));
  EXPECT_EQ(values(checkpoint, "1.norm.weight"), iota(3, 5));
  EXPECT_EQ(values(checkpoint, "2.bias"), iota(2, 50));
  const MatchedNames matched =
      match_names(checkpoint, {{{"model.embed_tokens.weight", {2, 2}}},
                               {{"model.norm.weight", {3}}},
                               {{"model.embed_tokens.weight", {2, 2}}, {"lm_head.bias", {2}}}});
  EXPECT_EQ(matched.names.at("model.embed_tokens.weight"), shared);
  EXPECT_EQ(matched.names.at("model.norm.weight"), "1.norm.weight");
  EXPECT_EQ(matched.names.at("lm_head.bias"), "2.bias");

  // A name of the user's own goes before what would be found.
  const MatchedNames renamed =
      match_names(checkpoint, {{{"table", {2, 2}}}, {{"scale.weight", {3}}}, {{"offset", {2}}}},
                  {{"1.norm", "scale"}, {"2.bias", "offset"}});
  EXPECT_EQ(renamed.names.at("scale.weight"), "1.norm.weight");
  EXPECT_EQ(renamed.names.at("offset"), "2.bias");
  EXPECT_EQ(renamed.names.at("table"), shared);
}

TEST_F(WrittenCheckpoint, FindsTagsAndRefusesWhatIsNone) {
  expect_has(message_of<IoError>([&] { DeepspeedCheckpoint c(folder_.file("absent")); }),
             "no such checkpoint folder");
  EXPECT_FALSE(is_deepspeed_checkpoint(folder_.path().string()));
  TorchWriter w;
  write("mp_rank_00_model_states.pt", w, counters({{"module", P::ordered({})}}));
  folder_.write("latest", "step\n");
  EXPECT_TRUE(is_deepspeed_checkpoint(folder_.path().string()));
  const DeepspeedCheckpoint bare(folder_.path().string());
  EXPECT_EQ(bare.facts().global_steps, 3);
  EXPECT_EQ(bare.facts().remarks, std::vector<std::string>{"it holds no optimizer states"});
  fs::create_directories(folder_.path() / "other/zero");
  EXPECT_FALSE(is_deepspeed_checkpoint(folder_.file("other")));
  for (const char* tag : {"../step", "/tmp", ""}) {
    folder_.write("latest", tag);
    expect_has(message_of<IoError>([&] { is_deepspeed_checkpoint(folder_.path().string()); }),
               "expected the name of a checkpoint's folder");
  }
  write("layer_0_expert_1_mp_rank_00_model_states.pt", w, P::dict({}));
  expect_has(refusal(), "mixture of experts");
}

TEST_F(WrittenCheckpoint, RefusesWhatDoesNotFitTogether) {
  const auto write_both = [&](std::int64_t elements, const P& mapping) {
    TorchWriter model, w;
    write("mp_rank_00_model_states.pt", model,
          counters({{"module", P::ordered({})},
                    {"param_shapes", P::list({P::ordered({{"a", P::size({5})}})})}}));
    write("zero_pp_rank_0_mp_rank_00_optim_states.pt", w,
          P::dict({{"optimizer_state_dict",
                    P::dict({{"base_optimizer_state", P::dict({})},
                             {"param_slice_mappings", mapping},
                             {"single_partition_of_fp32_groups",
                              P::list({w.floats(iota(static_cast<std::size_t>(elements), 0),
                                                {elements})})}})}}));
  };
  const auto address = [](std::int64_t start, std::int64_t numel) {
    return P::list({P::ordered(
        {{"a", P::object("deepspeed.utils.tensor_fragment", "fragment_address",
                         {{"numel", P::integer(numel)}, {"start", P::integer(start)}})}})});
  };
  write_both(5, address(0, 5));
  EXPECT_EQ(refusal(), "");
  write_both(4, P::none());
  expect_has(refusal(), "fit together up to element 4 of 5");
  write_both(5, address(0, 4));
  expect_has(refusal(), "fit together up to element 4 of 5");
  write_both(5, address(1, 5));
  expect_has(refusal(), "expected 5 elements from 1 on, its tensor has 5");
  write_both(9, address(0, 6));
  expect_has(refusal(), "more elements than 'a' has");
  write_both(9, address(-1, 5));
  expect_has(refusal(), "expected a counter of 0 or more");
  TorchWriter w;
  const P storage = TorchWriter::storage_id(w.storage("1234"), "FloatStorage", 1);
  write("zero_pp_rank_0_mp_rank_00_optim_states.pt", w,
        P::dict({{"optimizer_state_dict",
                  P::dict({{"single_partition_of_fp32_groups",
                            P::list({TorchWriter::tensor(storage, 0, {5}, {0})})}})}}));
  expect_has(refusal(), "expected a tensor of masters of group 0");
  write("mp_rank_00_model_states.pt", w, P::list({}));
  EXPECT_NE(refusal(), "");
}

using Layers = std::vector<std::vector<NamedShape>>;

std::string match_refusal(const Layers& layers, const Layers& blocks) {
  std::vector<std::string> remarks;
  return message_of<Error>([&] { match_layers(layers, blocks, remarks); });
}

TEST(PipelineNames, PairsByNameShapeAndOrder) {
  std::vector<std::string> remarks;
  const Layers blocks = {
      {{"model.embed.weight", {9, 4}}},
      {{"m.0.q.weight", {4, 4}}, {"m.0.k.weight", {4, 4}}, {"m.0.n.weight", {4}}},
      {{"model.norm.weight", {4}}, {"lm_head.weight", {9, 4}}}};
  // Norm and head as layers of their own; projections that only their order tells apart.
  const Layers layers = {{{"0.wte.weight", {9, 4}}},
                         {{"2.x.weight", {4, 4}}, {"2.y.weight", {4, 4}}, {"2.s.weight", {4}}},
                         {{"3.weight", {4}}},
                         {{"4.head.weight", {9, 4}}}};
  const auto names = match_layers(layers, blocks, remarks);
  EXPECT_EQ(names[1], (std::vector<std::string>{"m.0.q.weight", "m.0.k.weight", "m.0.n.weight"}));
  EXPECT_EQ(names[2][0], "model.norm.weight");
  EXPECT_EQ(names[3][0], "lm_head.weight");
  EXPECT_EQ(remarks,
            (std::vector<std::string>{"2.x.weight is m.0.q.weight", "2.y.weight is m.0.k.weight"}));
  // A name that agrees goes before the order.
  remarks.clear();
  const auto named = match_layers({{{"1.k.weight", {4, 4}}, {"1.q.weight", {4, 4}}}},
                                  {{{"m.0.q.weight", {4, 4}}, {"m.0.k.weight", {4, 4}}}}, remarks);
  EXPECT_EQ(named[0], (std::vector<std::string>{"m.0.k.weight", "m.0.q.weight"}));
  EXPECT_TRUE(remarks.empty());
}

TEST(PipelineNames, NamesBothSidesOfWhatIsAmbiguous) {
  const Layers blocks = {{{"a.weight", {4}}, {"b.weight", {4}}}};
  const std::string text = match_refusal({{{"1.c.weight", {4}}}}, blocks);
  expect_has(text, "1.c.weight [4]");
  expect_has(text, "b.weight [4]");
  expect_has(text, "--map OLD=NEW");
  expect_has(match_refusal({{{"1.c.weight", {5}}}}, blocks), "cannot tell");
  expect_has(match_refusal({}, blocks), "the model still has");
  expect_has(match_refusal({{{"1.a.weight", {4}}, {"1.b.weight", {4}}}, {{"2.c", {1}}}}, blocks),
             "left over");
}

}  // namespace
}  // namespace zero3d
