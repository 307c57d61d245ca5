// Shard groups smaller than the world (MiCS) and second partitions (hpZ), each together with what
// else an engine does: the bits of stage 3 over all ranks. Gradients are small integers, so that a
// sum in two levels is the same sum.
#include <gtest/gtest.h>

#include "zero3d/core/text.h"
#include "zero3d/engine/zero/groups.h"
#include "zero3d/parallel/comm/thread_communicator.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

constexpr int kRanks = 4;
const char* const kSharings[] = {R"("mics_shard_size": 2)", R"("mics_shard_size": 1)",
                                 R"("zero_hpz_partition_size": 2)",
                                 R"("mics_shard_size": 2, "zero_hpz_partition_size": 4)"};

std::string json_of(const std::string& zero, const std::string& top = "",
                    const std::string& type = "AdamW", int stage = 3) {
  return concat(
      R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
          "zero_allow_untested_optimizer": true, "optimizer": {"type": ")",
      type, R"(", "params": {"lr": 0.125, "weight_decay": 0.25}})", top.empty() ? "" : ", ", top,
      R"(, "zero_optimization": {"stage": )", stage,
      zero.find("persistence") == std::string::npos ? R"(, "stage3_param_persistence_threshold": 0)"
                                                    : "",
      zero.empty() ? "" : ", ", zero, "}}");
}

/// Two matrices that shards cut, a tied vector, one that is frozen and one without decay.
std::vector<ProbeBlockSpec> blocks_of(int rank) {
  const auto parameter = [rank](const char* name, const Shape& shape, int weight) {
    ProbeParameter made = probe_parameter(name, shape, {});
    made.spec.initial = normal_values(name, 0.5f);
    made.gradient = [rank, weight](const ProbeClock& at, std::int64_t i) {
      return static_cast<float>(((rank + 1) << at.micro_batch) * (i % 3 - 1) * weight + at.step);
    };
    return made;
  };
  ProbeParameter frozen = parameter("frozen", Shape{40}, 1);
  frozen.spec.frozen = true;
  frozen.gradient = {};
  ProbeParameter bare = parameter("bare", Shape{1100}, 2);
  bare.spec.decay = false;
  return {{{parameter("a", Shape{60, 50}, 1), parameter("tied", Shape{70}, 1)}},
          {{frozen, bare}},
          {{parameter("b", Shape{30, 80}, 3), parameter("tied", Shape{70}, 2)}}};
}

RunOptions options() { return probe_options(blocks_of, kRanks); }

struct Feature {
  const char* name;
  std::string zero;
  std::string top;
  std::string type = "AdamW";
};

std::vector<Feature> features() {
  std::vector<Feature> all = {
      {"persistence", R"("stage3_param_persistence_threshold": 1100)", ""},
      {"reuse", R"("stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0)", ""},
      {"bf16 all-reduce", R"("reduce_scatter": false)", R"("bf16": {"enabled": true})"}};
  if (!kSanitized) {  // what changes values alone
    const std::vector<Feature> more = {
        {"all-reduce", R"("reduce_scatter": false, "reduce_bucket_size": 2048)", ""},
        {"clipping", "", R"("gradient_clipping": 0.5)"},
        {"prescale", R"("reduce_scatter": false)", R"("prescale_gradients": true)"},
        {"predivide", R"("reduce_scatter": false)", R"("gradient_predivide_factor": 2.0)"},
        {"tiles", R"("sub_group_size": 1024)", ""},
        {"bf16", "", R"("bf16": {"enabled": true})"},
        {"fp16", "", R"("fp16": {"enabled": true, "initial_scale_power": 4})"}};
    all.insert(all.end(), more.begin(), more.end());
  }
  for (const char* type : {"Lamb", "Muon"}) all.push_back({type, "", "", type});
  if (kSanitized) return all;
  for (const char* type : {"Adagrad", "Lion", "SGD", "RMSprop"})
    all.push_back({type, "", "", type});
  return all;
}

TEST(Sharing, GoesTogetherWithEveryFeature) {
  for (const Feature& feature : features()) {
    const RunResult plain = run_engine(json_of(feature.zero, feature.top, feature.type), options());
    EXPECT_GT(plain.steps.back().grad_norm, 0.0);
    for (const char* sharing : kSharings) {
      if (kSanitized && sharing != kSharings[0] && sharing != kSharings[2]) continue;
      const std::string zero = feature.zero.empty() ? sharing : concat(sharing, ", ", feature.zero);
      EXPECT_TRUE(same_bits(plain, run_engine(json_of(zero, feature.top, feature.type), options())))
          << feature.name << ", " << sharing;
    }
  }
}

TEST(Sharing, StagesOneAndTwoTakeShardGroupsToo) {
  for (const char* type : {"Lamb", "AdamW", "Muon"}) {
    if (kSanitized && std::string(type) != "Lamb") continue;
    const RunResult plain = run_engine(json_of("", "", type, 0), options());
    TrainSettings settings = settings_of(json_of("", "", type, 1), kRanks);
    settings.sharding.ranks = 2;
    EXPECT_TRUE(same_bits(plain, run_engine(settings, options()))) << type;
    settings.sharding.what = sharding_policy(2);
    EXPECT_TRUE(same_bits(plain, run_engine(settings, options()))) << type << ", stage 2";
  }
}

/// The calls of `body` on a tied GPT-2, and the losses that rank 0 keeps of them.
std::vector<double> losses_of(const std::string& zero, int stage,
                              const std::function<double(Engine&, int rank)>& body) {
  std::vector<double> losses;
  RunOptions nano = nano_options(nano_gpt2(true), kRanks, 2, 1);
  nano.body = [&](Engine& engine, Module&, int rank) {
    for (int i = 0; i < 3; ++i) {
      const double loss = body(engine, rank);
      if (rank == 0) losses.push_back(loss);
    }
  };
  run_engine(json_of(zero, "", "SGD", stage), nano);
  return losses;
}

double evaluate(Engine& engine, int rank) {
  const TokenBatch batch = nano_batch({rank, 7, 0}, kRanks, 2, 1);
  const MicroBatch view = batch.view();
  return engine.eval_batch({&view, 1});
}

void train(Engine& engine, int rank) {
  const TokenBatch first = nano_batch({rank, 0, 0}, kRanks, 2, 1);
  const TokenBatch second = nano_batch({rank, 0, 1}, kRanks, 2, 1);
  const MicroBatch window[] = {first.view(), second.view()};
  engine.train_batch(window);
}

/// Parameters written between a pass and the next are what the next one reads, whoever writes.
TEST(Sharing, AStoredParameterIsSeenByTheNextPass) {
  for (const int writer : {3, 0}) {
    if (kSanitized && writer == 0) continue;
    const auto body = [writer](Engine& engine, int rank) {
      const double before = evaluate(engine, rank);
      engine.model().with_parameters({"transformer.wte.weight", "transformer.h.1.mlp.c_fc.weight"},
                                     writer, [](const ParameterSpec&, View values) {
                                       for (std::int64_t i = 0; i < values.numel(); ++i)
                                         values.as<float>()[i] *= 1.5f;
                                     });
      const double after = evaluate(engine, rank);
      EXPECT_NE(before, after);
      return after;
    };
    const std::vector<double> plain = losses_of("", 0, body);
    for (const char* sharing : kSharings)
      EXPECT_EQ(losses_of(sharing, 3, body), plain) << sharing << ", rank " << writer;
  }
}

TEST(Sharing, EvaluationBetweenStepsSeesTheUpdatedParameters) {
  const auto body = [](Engine& engine, int rank) {
    train(engine, rank);
    return evaluate(engine, rank);
  };
  const std::vector<double> plain = losses_of("", 3, body);
  EXPECT_NE(plain[0], plain[1]);
  EXPECT_EQ(losses_of(R"("zero_hpz_partition_size": 2)", 3, body), plain);
  EXPECT_EQ(losses_of(R"("zero_hpz_partition_size": 4)", 3, body), plain);
  const std::vector<double> mics = losses_of(R"("mics_shard_size": 2)", 3, body);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(mics[i], plain[i], 1e-5 * plain[i]);
}

TEST(Sharing, AStoredParameterInsideAWindowsPassesIsGatheredAnew) {
  const auto body = [](Engine& engine, int rank) {
    train(engine, rank);
    evaluate(engine, rank);  // fills the second partition
    engine.model().with_parameters({"transformer.h.0.attn.c_attn.weight"}, 2,
                                   [](const ParameterSpec&, View values) {
                                     for (std::int64_t i = 0; i < values.numel(); ++i)
                                       values.as<float>()[i] += 0.25f;
                                   });
    train(engine, rank);
    return engine.last_step().loss;
  };
  EXPECT_EQ(losses_of(R"("zero_hpz_partition_size": 2)", 3, body), losses_of("", 3, body));
}

/// Which ranks of the world are in a rank's group.
std::vector<std::string> members(Communicator* group, int rank) {
  return group == nullptr ? std::vector<std::string>{} : group->exchange(std::to_string(rank));
}

TEST(Sharing, GroupsAreOfConsecutiveRanksAndReplicasOfEveryNth) {
  using Ranks = std::vector<std::string>;
  run_ranks(8, [](Communicator& world) {
    const Mesh mesh(world, {.dp = 8});
    const int rank = world.rank();
    const int first = rank / 4 * 4;
    const int pair = rank / 2 * 2;
    const ZeroGroups groups = make_zero_groups(mesh, {.shard = 4, .secondary = 2});
    const auto text = [](std::initializer_list<int> ranks) {
      Ranks all;
      for (const int r : ranks) all.push_back(std::to_string(r));
      return all;
    };
    const Ranks shard = text({first, first + 1, first + 2, first + 3});
    EXPECT_EQ(members(groups.shard.get(), rank), shard);
    EXPECT_EQ(members(groups.gather.get(), rank), shard);
    EXPECT_EQ(members(groups.secondary.get(), rank), text({pair, pair + 1}));
    EXPECT_EQ(members(groups.replica.get(), rank), text({rank % 4, rank % 4 + 4}));
    EXPECT_EQ(groups.data_parallel, 8);
  });
}

}  // namespace
}  // namespace zero3d::test
