// Checkpoints of DeepSpeed's pipelines as this test writes them, and what is none or does not fit
// together.
#include <gtest/gtest.h>

#include "deepspeed_checkpoints.h"
#include "zero3d/formats/pipeline_names.h"

namespace zero3d {
namespace {

using test::expect_has;
using test::Floats;
using test::message_of;
using test::P;
using test::TorchWriter;
using test::values;
using test::WrittenCheckpoint;
namespace fs = std::filesystem;

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

}  // namespace
}  // namespace zero3d
