// The exchange at the end of a step on a mesh of 2 stages x 2 data-parallel x 2 tensor-parallel
// ranks: what several ranks hold is counted once, losses come from the last stage, and a bad
// gradient is named by the whole model's parameter and the rank of the mesh that has it.
#include "zero3d/engine/zero/step_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>

#include "zero3d/core/text.h"
#include "zero3d/engine/zero/bucket_plan.h"
#include "zero3d/engine/zero/gradient_reducer.h"
#include "zero3d/parallel/comm/thread_communicator.h"

namespace zero3d {
namespace {

constexpr GridDegrees kDegrees{.dp = 2, .tp = 2, .pp = 2};
constexpr std::int64_t kElements =
    1500;  // of a parameter on a rank, in shards of 1,024 when there are two

/// One stage's part of a model of two stages, each with a parameter that tensor parallelism cuts
/// and one of which every tensor-parallel rank has a copy.
class StageRank {
 public:
  StageRank(Communicator& world, int shards)
      : mesh_(world, kDegrees),
        place_(mesh_.topology().coordinates(world.rank())),
        device_(make_cpu_device({})),
        streams_(*device_),
        layout_({{spec("cut", 2 * kElements, 0)}, {spec("copied", kElements, -1)}},
                options(shards, place_.tp)),
        groups_(make_zero_groups(mesh_, {.shard = shards})),
        part_(find_model_part(layout_, {"cut", "copied"}, place_.pp == 1, mesh_, groups_)),
        buckets_(plan_buckets(layout_, plan_step({2, 0}, 1), {})),
        reducer_(*device_, layout_, buckets_, groups_, {}, streams_) {
    part_.names = {"s0.cut", "s0.copied", "s1.cut", "s1.copied"};
    for (int& number : part_.numbers) number += 2 * place_.pp;
    reporter_ = std::make_unique<StepReporter>(*device_, layout_, part_);
  }

  const Topology::Coordinates& place() const { return place_; }
  const Mesh& mesh() const { return mesh_; }
  const ModelPart& part() const { return part_; }
  int shards() const { return layout_.shards(); }

  /// One micro-batch: `gradient(parameter)` in every element of parameter 0 (cut) and 1 (copied),
  /// `odd` instead in element `at` of the copied one.
  StepReport step(const std::function<float(int)>& gradient, double loss, std::int64_t at = 0,
                  std::optional<float> odd = std::nullopt) {
    reducer_.begin_backward(0, true);
    for (const int unit : {1, 0}) {
      std::vector<float> values(kElements, gradient(unit));
      if (unit == 1 && odd) values[static_cast<std::size_t>(at)] = *odd;
      upload(values, reducer_.open(unit, 0).flat(0, kElements));
      reducer_.ready(unit, 0);
    }
    reducer_.finish(*streams_.compute);
    Tensor pair(device_->memory(), kNoStream, DType::f32, Shape{2}, Category::activations);
    const float targets = loss == 0 ? 0.0f : 4.0f;
    upload({static_cast<float>(4 * loss), targets}, pair.view());
    reporter_->add_loss(*streams_.compute, pair);
    return reporter_->exchange(*streams_.compute, reducer_.square_sums());
  }

 private:
  static LayoutOptions options(int shards, int tensor_parallel_rank) {
    LayoutOptions options;
    options.shards = shards;
    options.placement.tensor_parallel_rank = tensor_parallel_rank;
    options.placement.tensor_parallel_size = kDegrees.tp;
    return options;
  }

  static ParameterSpec spec(const std::string& name, std::int64_t elements, int split) {
    ParameterSpec result;
    result.name = name;
    result.shape = Shape{elements};
    result.split.dim = split;
    return result;
  }

  void upload(const std::vector<float>& values, const View& target) {
    Tensor host(device_->memory(Tier::pinned), kNoStream, DType::f32, target.shape(),
                Category::batches);
    std::copy(values.begin(), values.end(), host.view().as<float>());
    device_->copy(*streams_.compute, target, host);
    streams_.compute->synchronize();
  }

  Mesh mesh_;
  Topology::Coordinates place_;
  std::unique_ptr<Device> device_;
  RankStreams streams_;
  ParamLayout layout_;
  ZeroGroups groups_;
  ModelPart part_;
  BucketPlan buckets_;
  GradientReducer reducer_;
  std::unique_ptr<StepReporter> reporter_;
};

void on_mesh(const std::function<void(StageRank&)>& body) {
  for (const int shards : {1, 2}) {
    SCOPED_TRACE(concat("shards ", shards));
    run_ranks(8, [&](Communicator& world) {
      StageRank rank(world, shards);
      body(rank);
    });
  }
}

TEST(StepReport, CountsEveryElementOfTheModelOnce) {
  double squares = 0;  // all small integers: exact
  for (const int stage : {0, 1}) {
    for (const int tp : {0, 1}) squares += kElements * std::pow(1 + tp + 10 * stage, 2);
    squares += kElements * std::pow(100 + stage, 2);
  }
  on_mesh([&](StageRank& rank) {
    const auto& at = rank.place();
    for (int step = 0; step < 2; ++step) {
      const StepReport report = rank.step(
          [&](int parameter) {
            return static_cast<float>(parameter == 0 ? 1 + at.tp + 10 * at.pp : 100 + at.pp);
          },
          1);
      EXPECT_EQ(report.gradient_norm, std::sqrt(squares));
      EXPECT_TRUE(report.finite);
      EXPECT_EQ(report.bad_parameter, -1);
    }
  });
}

TEST(StepReport, TakesTheLossOfTheLastStageOnce) {
  on_mesh([](StageRank& rank) {
    const auto& at = rank.place();
    const double other = std::numeric_limits<double>::quiet_NaN();
    const StepReport report =
        rank.step([](int) { return 1.0f; }, at.pp == 1 ? 1.0 + 4 * at.dp : other);
    EXPECT_EQ(report.loss, 3.0) << "the mean of 1 and 5";
    EXPECT_EQ(report.bad_loss_rank, -1);
  });
}

TEST(StepReport, LeavesOutMicroBatchesWithoutATarget) {
  on_mesh([](StageRank& rank) {
    const auto& at = rank.place();
    const auto ones = [](int) { return 1.0f; };
    const StepReport some = rank.step(ones, at.dp == 1 ? 5.0 : 0.0);
    EXPECT_EQ(some.loss, 5.0);
    EXPECT_EQ(some.losses, 1);
    const StepReport none = rank.step(ones, 0);
    EXPECT_TRUE(std::isnan(none.loss));
    EXPECT_EQ(none.losses, 0);
    EXPECT_TRUE(none.finite);
  });
}

TEST(StepReport, NamesABadGradientByTheWholeModelAndTheMesh) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const int stage : {0, 1}) {
    on_mesh([&](StageRank& rank) {
      const auto& at = rank.place();
      // In the second shard, where there is one. The higher stage is bad either way.
      const StepReport report =
          rank.step([](int) { return 1.0f; }, 1, 1400,
                    at.pp >= stage ? std::optional<float>(nan) : std::nullopt);
      EXPECT_FALSE(report.finite);
      EXPECT_TRUE(report.bad_is_nan);
      EXPECT_EQ(rank.part().names.at(static_cast<std::size_t>(report.bad_parameter)),
                concat("s", stage, ".copied"));
      const Topology::Coordinates bad = rank.mesh().topology().coordinates(report.bad_rank);
      EXPECT_EQ(bad, (Topology::Coordinates{.dp = rank.shards() - 1, .tp = 0, .pp = stage}))
          << "the owner of the copies";
    });
  }
}

}  // namespace
}  // namespace zero3d
