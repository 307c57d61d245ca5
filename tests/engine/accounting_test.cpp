// What a run takes: device bytes by category against the formulas and against what the memory
// resource counted, and elements on the wire against 2, 2, m + 1 and 3m parameter sizes a step for
// ZeRO stages 0 to 3 and m micro-batches (Rajbhandari et al., arXiv 1910.02054).
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "zero3d/core/text.h"
#include "zero3d/engine/zero/step_report.h"
#include "zero3d/parallel/comm/forwarding.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

struct Scenario {
  std::string model = "gpt2";
  int stage = 0;
  int ranks = 2;
  int accumulation = 1;
  bool bf16 = false;
  std::string zero = "";
};

std::string name_of(const Scenario& s) {
  return concat(s.model, ", stage ", s.stage, ", ", s.ranks, " ranks, accumulation ",
                s.accumulation, s.bf16 ? ", bf16 " : ", fp32 ", s.zero);
}

std::string json_of(const Scenario& s) {
  const bool persistence_given = s.zero.find("persistence_threshold") != std::string::npos;
  const bool reuse_given = s.zero.find("reuse_distance") != std::string::npos;
  return concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )",
                s.accumulation, R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}})",
                s.bf16 ? R"(, "bf16": {"enabled": true})" : "",
                R"(, "zero_optimization": {"stage": )", s.stage,
                reuse_given ? "" : R"(, "stage3_max_reuse_distance": 0)",
                persistence_given ? "" : R"(, "stage3_param_persistence_threshold": 0)",
                s.zero.empty() ? "" : ", ", s.zero, "}}");
}

/// Sums over the units of a run's layout, in elements.
struct Sizes {
  std::int64_t padded = 0;
  std::int64_t shards = 0;
  std::int64_t trainable = 0;  ///< Padded.
  std::int64_t trainable_shards = 0;
  std::int64_t persistent = 0;  ///< Padded.
  std::int64_t persistent_shards = 0;
  std::int64_t gathered = 0;  ///< By one training pass, as planned.
};

struct Measured {
  RunResult result;
  Sizes sizes;
};

Measured run(const Scenario& s, const std::function<void(RunOptions&)>& change = {}) {
  const ModelConfig model = s.model == "gpt2"        ? nano_gpt2(false)
                            : s.model == "gpt2-tied" ? nano_gpt2(true)
                                                     : nano_llama(false);
  RunOptions options = nano_options(model, s.ranks, s.accumulation);
  Measured measured;
  options.after = [&](Engine& engine, int rank) {
    if (rank != 0) return;
    Sizes& sizes = measured.sizes;
    for (const Unit& unit : engine.model().plan().layout.units()) {
      sizes.padded += unit.padded;
      sizes.shards += unit.shard;
      if (unit.persistent) sizes.persistent += unit.padded;
      if (unit.persistent) sizes.persistent_shards += unit.shard;
      if (!unit.frozen) sizes.trainable += unit.padded;
      if (!unit.frozen) sizes.trainable_shards += unit.shard;
    }
    sizes.gathered = engine.model().passes().training.gathered_elements;
  };
  if (change) change(options);
  measured.result = run_engine(json_of(s), options);
  return measured;
}

/// Elements of the exchange of norm and loss: bytes of all ranks' parts.
std::int64_t report_elements(int ranks) {
  const std::int64_t one = StepReporter::exchange_bytes(1) - StepReporter::exchange_bytes(0);
  return one * ranks;
}

std::vector<Scenario> memory_scenarios() {
  std::vector<Scenario> all;
  for (const char* model : {"gpt2-tied", "gpt2", "llama"}) {
    if (kSanitized && !all.empty()) break;
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int accumulation : {1, 3}) {
        for (const bool bf16 : {false, true}) {
          all.push_back({model, stage, 2, accumulation, bf16});
          all.push_back({model, stage, 3, accumulation, bf16, R"("reduce_bucket_size": 3000)"});
        }
      }
    }
    for (const char* zero : {R"("zero_hpz_partition_size": 2)", R"("mics_shard_size": 2)",
                             R"("stage3_param_persistence_threshold": 100)",
                             R"("stage3_prefetch_bucket_size": 0, "overlap_comm": false)",
                             R"("stage3_max_reuse_distance": 1e9)", R"("reduce_scatter": false)"}) {
      all.push_back({model, 3, 4, 3, true, zero});
    }
  }
  return all;
}

TEST(Memory, CategoriesAreTheFormulasAndWhatWasAllocated) {
  for (const Scenario& s : memory_scenarios()) {
    SCOPED_TRACE(name_of(s));
    const Measured measured = run(s);
    const Sizes& sizes = measured.sizes;
    const std::int64_t width = s.bf16 ? 2 : 4;
    for (std::size_t rank = 0; rank < measured.result.memory.size(); ++rank) {
      const PerCategory<std::int64_t>& estimate = measured.result.estimates[rank][Tier::device];
      // 2 or 4 bytes a parameter; 4 a gradient; 8 for Adam's moments, and 4 for the master unless
      // it is the parameter; each over the shards where the stage shards it.
      const bool extra = s.zero.find("hpz") != std::string::npos;
      const std::int64_t parameters =
          s.stage < 3 ? sizes.padded
                      : sizes.shards + sizes.persistent + (extra ? sizes.padded / 2 : 0);
      EXPECT_EQ(estimate[Category::parameters], parameters * width);
      EXPECT_EQ(estimate[Category::gradients],
                4 * (s.stage < 2 ? sizes.trainable : sizes.trainable_shards));
      EXPECT_EQ(estimate[Category::optimizer_states], (s.bf16 ? 12 : 8) * sizes.trainable_shards);
      const int replicas = s.stage == 0                               ? s.ranks
                           : s.zero.find("mics") == std::string::npos ? 1
                                                                      : 2;
      EXPECT_EQ(sizes.trainable_shards * s.ranks, sizes.trainable * replicas);

      const MemoryUse& use = measured.result.memory[rank];
      // What blocks allocate, "workspace" of theirs included, is the estimate's "activations".
      for (const Category category : kAllCategories) {
        if (category == Category::activations || category == Category::workspace) continue;
        const MemoryUse::Count& counted = use.categories[category];
        EXPECT_EQ(counted.peak, estimate[category]) << name_of(category) << " of rank " << rank;
        EXPECT_EQ(counted.current, estimate[category]) << name_of(category) << " is kept";
      }
      EXPECT_EQ(use.categories[Category::activations].current, 0) << "is kept";
      EXPECT_EQ(use.peak, measured.result.estimates[rank].total());
    }
  }
}

TEST(Memory, NothingExceedsTheEstimateWhateverIsCalled) {
  for (int stage = 0; stage <= 3; ++stage) {
    const Scenario s{"llama", stage, 2, 1, true};
    MemoryUse use;
    MemoryEstimate estimate;
    run(s, [&](RunOptions& options) {
      options.body = [&](Engine& engine, Module&, int rank) {
        for (const std::int64_t sequence : {5, 8, 3, 11}) {  // the plan grows twice
          const TokenBatch batch = nano_batch({rank, 0, 0}, 2, 1, 2, sequence);
          const MicroBatch view = batch.view();
          engine.train_batch({&view, 1});
          engine.eval_batch({&view, 1});
        }
        engine.next_logits(std::vector<std::int32_t>(11, 1));
        if (rank != 0) return;
        use = engine.model().device().memory().use();
        estimate = engine.memory_estimate(2, 11);
      };
    });
    EXPECT_LE(use.peak, estimate.total()) << "stage " << stage;
    for (const Category category : kAllCategories) {
      if (category == Category::workspace) continue;  // of blocks: in the estimate of activations
      EXPECT_LE(use.categories[category].peak, estimate[Tier::device][category])
          << name_of(category) << ", stage " << stage;
    }
  }
}

/// Blocks below the first that trains have no backward, and keep nothing for one.
TEST(Memory, FrozenLowerBlocksKeepNoActivations) {
  const auto activations_of = [](int layers) {
    ModelConfig model = nano_gpt2(false);
    model.layers = layers;
    RunOptions options = nano_options(model, 2, 1);
    options.engine.adjust = [&](ParameterSpec& spec) {
      spec.frozen = spec.name.find(concat("h.", layers - 1, ".")) == std::string::npos;
    };
    const RunResult result = run_engine(json_of({.stage = 2}), options);
    EXPECT_EQ(result.memory[0].peak, result.estimates[0].total());
    return result.estimates[0][Tier::device][Category::activations];
  };
  EXPECT_EQ(activations_of(2), activations_of(5));
}

/// Micro-batches that come one after the other are planned for each by itself.
TEST(Memory, AWideBatchAndALongOneDoNotAddUp) {
  std::int64_t wide = 0, lengthy = 0, both = 0;
  const auto run_within = [&](std::int64_t budget) {
    run({"llama", 3, 2, 1}, [&](RunOptions& options) {
      options.budget_bytes = budget;
      options.body = [&](Engine& engine, Module&, int rank) {
        for (const auto& [rows, sequence] : {std::pair{8, 4}, {1, 16}, {8, 4}}) {
          const TokenBatch batch = nano_batch({rank, 0, 0}, 2, 1, rows, sequence);
          const MicroBatch view = batch.view();
          engine.train_batch({&view, 1});
        }
        if (rank != 0) return;
        wide = engine.memory_estimate(8, 4).total();
        lengthy = engine.memory_estimate(1, 16).total();
        both = engine.memory_estimate(8, 16).total();
      };
    });
  };
  run_within(TrackingResource::kUnlimited);
  const std::int64_t larger = std::max(wide, lengthy);
  EXPECT_LT(larger, both);
  run_within(larger);
}

/// What only some calls ask for joins the plan when they come, and is held to the budget as the
/// rest is.
TEST(Memory, WhatIsAskedForLateIsInThePlan) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const bool bf16 : {false, true}) {
      const Scenario s{"gpt2", stage, 2, 1, bf16, R"("stage3_max_reuse_distance": 1e9)"};
      SCOPED_TRACE(name_of(s));
      MemoryEstimate before, after;
      MemoryUse use;
      const auto run_within = [&](std::int64_t budget) {
        run(s, [&](RunOptions& options) {
          options.budget_bytes = budget;
          options.body = [&](Engine& engine, Module&, int rank) {
            const TokenBatch batch = nano_batch({rank, 0, 0}, 2, 1, 2);
            const auto three = [&] {
              for (int micro = 0; micro < 3; ++micro) {
                engine.forward(batch.view());
                engine.backward();
              }
            };
            engine.set_gradient_accumulation_boundary(true);
            const MicroBatch view = batch.view();
            engine.train_batch({&view, 1});
            const MemoryEstimate planned = engine.memory_estimate(2, kNanoSequence);
            stage == 0 ? engine.no_sync(three) : engine.coalesce_grad_reduction(three);
            engine.step();
            if (rank != 0) return;
            before = planned;
            after = engine.memory_estimate(2, kNanoSequence);
            use = engine.model().device().memory().use();
          };
        });
      };
      run_within(TrackingResource::kUnlimited);
      EXPECT_LE(use.peak, after.total());
      for (const Category category : {Category::gradients, Category::gradient_buckets})
        EXPECT_EQ(use.categories[category].peak, after[Tier::device][category]);
      const bool more = stage >= 2 || !bf16;  // fp32's first micro-batch is written in place
      EXPECT_EQ(after.total() > before.total(), more);
      run_within(after.total());
      if (more && stage < 3) {
        EXPECT_THROW(run_within(before.total()), OutOfMemory);
      }
    }
  }
}

/// Batches wait for the streams in host memory: as many as there is room for, and the host waits
/// when there is none.
TEST(Memory, BatchesAreStagedWithinTheHostBudget) {
  for (const int stage : {0, 3}) {
    const Scenario s{"gpt2", stage, 2, 3, false};
    const RunResult wide = run(s).result;
    const std::int64_t planned = wide.estimates[0].total(kHostTiers);
    EXPECT_LE(wide.pinned_memory[0].peak, planned);
    const auto run_within = [&](std::int64_t budget) {
      return run(s,
                 [&](RunOptions& options) {
                   options.host_budget_bytes = budget;
                   options.jitter_seed = 5;  // copies come late
                 })
          .result;
    };
    EXPECT_TRUE(same_bits(wide, run_within(planned)));
    const std::int64_t batches = wide.estimates[0][Tier::pinned][Category::batches];
    EXPECT_EQ(batches, wide.pinned_memory[0].categories[Category::batches].peak);
    EXPECT_THROW(run_within(planned - batches - 1), OutOfMemory);
  }
}

TEST(Volume, IsTwoTwoMPlusOneAndThreeMParameterSizes) {
  for (const char* model : {"gpt2", "llama"}) {
    for (const int ranks : {2, 4}) {
      for (const int m : {1, 3}) {
        for (const bool bf16 : {false, true}) {
          for (int stage = 0; stage <= 3; ++stage) {
            const Scenario s{model, stage, ranks, m, bf16};
            SCOPED_TRACE(name_of(s));
            const Measured measured = run(s);
            const std::int64_t parameters = measured.sizes.trainable;
            const std::int64_t sizes_per_step[] = {2, 2, m + 1, 3 * m};
            ASSERT_EQ(measured.result.volumes.size(), 3u);
            for (CommVolume volume : measured.result.volumes) {
              EXPECT_EQ(volume.elements(),
                        sizes_per_step[stage] * parameters + report_elements(ranks));
              const std::int64_t gathers[] = {0, 1, 1, 2 * m};
              EXPECT_EQ(volume.operations["all_gather"].elements,
                        gathers[stage] * parameters + report_elements(ranks));
              EXPECT_EQ(volume.operations["all_reduce"].elements, stage == 0 ? 2 * parameters : 0);
              // Gradients in what they are accumulated in; stages 2 and 3 send what backward wrote.
              const std::int64_t width = bf16 ? 2 : 4;
              const std::int64_t reduced = stage == 0 ? 0 : stage == 1 ? 1 : m;
              EXPECT_EQ(volume.operations["reduce_scatter"].elements, reduced * parameters);
              EXPECT_EQ(volume.operations["reduce_scatter"].bytes,
                        reduced * parameters * (stage == 1 ? 4 : width));
              EXPECT_EQ(volume.operations["all_gather"].bytes,
                        gathers[stage] * parameters * width + report_elements(ranks));
            }
          }
        }
      }
    }
  }
}

TEST(Volume, IsWhatThePlanSaysForAnyKnob) {
  const int m = 2;
  for (const char* model : {"gpt2-tied", "llama"}) {
    for (const char* zero :
         {R"("stage3_max_reuse_distance": 1e9)", R"("stage3_max_reuse_distance": 20000)",
          R"("stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 1e9)",
          R"("stage3_prefetch_bucket_size": 0)", R"("stage3_param_persistence_threshold": 100)",
          R"("stage3_param_persistence_threshold": 1e6)"}) {
      const Scenario s{model, 3, 2, m, false, zero};
      SCOPED_TRACE(name_of(s));
      const Measured measured = run(s);
      const Sizes& sizes = measured.sizes;
      for (CommVolume volume : measured.result.volumes) {
        EXPECT_EQ(volume.operations["reduce_scatter"].elements, m * sizes.trainable);
        // Persistent parameters are gathered once, after the update.
        EXPECT_EQ(volume.operations["all_gather"].elements,
                  m * sizes.gathered + sizes.persistent + report_elements(2));
      }
      if (std::string(zero).find("distance\": 1e9") != std::string::npos &&
          std::string(zero).find("live") == std::string::npos) {
        EXPECT_EQ(sizes.gathered, sizes.padded) << "kept from forward to backward";
      }
    }
  }
}

/// Counts elements gathered by the size of the group.
class GroupCounter final : public detail::ForwardingCommunicator {
 public:
  struct Counts {
    std::mutex mutex;
    std::map<int, std::int64_t> gathered;
    std::map<int, std::int64_t> reduced;
  };
  GroupCounter(std::shared_ptr<Communicator> inner, std::shared_ptr<Counts> counts)
      : ForwardingCommunicator(std::move(inner)), counts_(std::move(counts)) {}
  void all_gather(Stream& stream, std::span<const GatherSegment> segments) override {
    for (const GatherSegment& segment : segments) {
      const std::lock_guard lock(counts_->mutex);
      counts_->gathered[size()] += segment.full.numel();
    }
    inner_->all_gather(stream, segments);
  }
  void reduce_scatter(Stream& stream, std::span<const ReduceSegment> segments,
                      const ReduceOptions& options) override {
    for (const ReduceSegment& segment : segments) {
      const std::lock_guard lock(counts_->mutex);
      counts_->reduced[size()] += segment.full.numel();
    }
    inner_->reduce_scatter(stream, segments, options);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<GroupCounter>(inner_->split(color, key), counts_);
  }

 private:
  std::shared_ptr<Counts> counts_;
};

/// What rank 0 put through groups of each size in the steps of a run.
struct ByGroup {
  Measured measured;
  std::map<int, std::int64_t> gathered;
  std::map<int, std::int64_t> reduced;
};

ByGroup run_by_group(const Scenario& s) {
  auto counts = std::make_shared<GroupCounter::Counts>();
  ByGroup result;
  result.measured = run(s, [&](RunOptions& options) {
    options.wrap = [counts](std::unique_ptr<Communicator> world) -> std::unique_ptr<Communicator> {
      if (world->rank() != 0) return world;
      return std::make_unique<GroupCounter>(std::move(world), counts);
    };
    const auto collect = options.after;
    options.after = [&, collect](Engine& engine, int rank) {
      collect(engine, rank);
      if (rank != 0) return;
      const std::lock_guard lock(counts->mutex);
      result.gathered = counts->gathered;
      result.reduced = counts->reduced;
    };
  });
  return result;
}

TEST(Volume, SecondaryPartitionsKeepAllButOneGatherAStepAmongTheirRanks) {
  const std::int64_t m = 3, steps = 3;
  const ByGroup by_group =
      run_by_group({"gpt2", 3, 4, static_cast<int>(m), true, R"("zero_hpz_partition_size": 2)"});
  const std::int64_t parameters = by_group.measured.sizes.padded;
  EXPECT_EQ(by_group.gathered.at(4), steps * (parameters + report_elements(4)));
  EXPECT_EQ(by_group.gathered.at(2), steps * (2 * m - 1) * parameters);
  for (CommVolume volume : by_group.measured.result.volumes)
    EXPECT_EQ(volume.elements(), 3 * m * parameters + report_elements(4));
}

TEST(Volume, MicsGathersWithinAGroupAndSumsShardsAcross) {
  const std::int64_t m = 3, steps = 3;
  const ByGroup by_group =
      run_by_group({"gpt2", 3, 4, static_cast<int>(m), false, R"("mics_shard_size": 2)"});
  const std::int64_t parameters = by_group.measured.sizes.padded;
  EXPECT_EQ(by_group.gathered.at(2), steps * 2 * m * parameters);
  EXPECT_EQ(by_group.gathered.at(4), steps * report_elements(4));
  EXPECT_EQ(by_group.reduced.at(2), steps * m * parameters);
  EXPECT_FALSE(by_group.reduced.contains(4));
  for (CommVolume volume : by_group.measured.result.volumes)
    EXPECT_EQ(volume.operations["all_reduce"].elements, m * parameters);  // 2 x half of them
}

TEST(Volume, FrozenParametersAreGatheredAndNeverReduced) {
  for (int stage = 0; stage <= 3; ++stage) {
    const Measured measured = run({"gpt2", stage, 2, 1, false}, [](RunOptions& options) {
      options.engine.adjust = [](ParameterSpec& spec) {
        spec.frozen = spec.name.find("mlp") != std::string::npos;
      };
    });
    const Sizes& sizes = measured.sizes;
    EXPECT_LT(sizes.trainable, sizes.padded);
    const std::int64_t expected[] = {2 * sizes.trainable, 2 * sizes.trainable, 2 * sizes.trainable,
                                     sizes.trainable + 2 * sizes.padded};
    for (const CommVolume& volume : measured.result.volumes)
      EXPECT_EQ(volume.elements(), expected[stage] + report_elements(2)) << stage;
  }
}

}  // namespace
}  // namespace zero3d::test
