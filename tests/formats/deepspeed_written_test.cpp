// Layouts of DeepSpeed's checkpoints that none was recorded of: written here, stage by stage.
#include <gtest/gtest.h>

#include "deepspeed_checkpoints.h"

namespace zero3d {
namespace {

using test::expect_has;
using test::Floats;
using test::P;
using test::TorchWriter;
using test::values;
using test::WrittenCheckpoint;
namespace fs = std::filesystem;

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

}  // namespace
}  // namespace zero3d
