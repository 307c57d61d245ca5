// Faults: every one ends in an error that names it, on every rank, within two seconds.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "adamw_config.h"
#include "zero3d/core/text.h"
#include "zero3d/parallel/comm/forwarding.h"
#include "zero3d/parallel/comm/thread_communicator.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

struct Ending {
  std::string message;
  bool echo = false;  ///< Ended by another rank's failure.
  double seconds = 0;
};

/// Runs ranks that are expected to fail and tells how each ended.
std::vector<Ending> endings_of(int ranks, const std::function<void(Communicator&)>& body) {
  std::vector<Ending> endings(static_cast<std::size_t>(ranks));
  const std::int64_t begin = now_ns();
  ThreadCommOptions options;
  options.timeout = std::chrono::seconds(20);
  try {
    run_ranks(
        ranks,
        [&](Communicator& world) {
          Ending& ending = endings[static_cast<std::size_t>(world.rank())];
          const auto end = [&](const std::exception& error, bool echo) {
            ending = {error.what(), echo, static_cast<double>(now_ns() - begin) * 1e-9};
          };
          try {
            body(world);
            ending.message = "no error";
          } catch (const CommAborted& error) {
            end(error, true);
            throw;
          } catch (const std::exception& error) {
            end(error, false);
            throw;
          }
        },
        options);
  } catch (const std::exception&) {
  }
  return endings;
}

/// Every rank's message holds `cause`, within two seconds.
void expect_all_end(const std::vector<Ending>& endings, const std::string& cause) {
  for (std::size_t rank = 0; rank < endings.size(); ++rank) {
    EXPECT_NE(endings[rank].message.find(cause), std::string::npos)
        << "rank " << rank << ": " << endings[rank].message;
    EXPECT_LT(endings[rank].seconds, 2.0) << "rank " << rank;
  }
}

enum class Place { forward_on_host, backward_on_host, forward_on_stream, backward_on_stream };

/// A probe of six blocks that throws on rank 1 in step 2 at block 3.
std::vector<ProbeBlockSpec> throwing_blocks(Place place, int rank, const int& step) {
  std::vector<ProbeBlockSpec> blocks =
      probe_blocks({1500, 10, 1100, 2000, 7, 1024}, [](int, const ProbeClock&) { return 1.0f; });
  const bool in_forward = place == Place::forward_on_host || place == Place::forward_on_stream;
  const auto fail = [rank, in_forward, &step](bool forward) {
    if (rank == 1 && step == 1 && forward == in_forward) throw std::runtime_error("a broken block");
  };
  if (place == Place::forward_on_host || place == Place::backward_on_host) {
    blocks[3].on_host = fail;
  } else {
    blocks[3].on_stream = fail;
  }
  return blocks;
}

TEST(Faults, ARankThatThrowsEndsAllWithItsCause) {
  for (const Place place : {Place::forward_on_host, Place::backward_on_host,
                            Place::forward_on_stream, Place::backward_on_stream}) {
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(concat("place ", static_cast<int>(place), ", stage ", stage));
      const TrainSettings settings = settings_of(json_of(stage, 2), 3);
      const LogCapture quiet;
      const std::vector<Ending> endings = endings_of(3, [&](Communicator& world) {
        int step = 0;
        const ProbeModule module(throwing_blocks(place, world.rank(), step));
        CpuDeviceOptions options;
        options.rank = world.rank();
        const auto device = make_cpu_device(options);
        const Mesh mesh(world);
        Engine engine(settings, module, mesh, *device);
        const TokenBatch batch(2, 1);
        const std::vector<MicroBatch> window(2, batch.view());
        for (; step < 4; ++step) engine.train_batch(window);
      });
      expect_all_end(endings, "a broken block");
      EXPECT_FALSE(endings[1].echo);
      EXPECT_TRUE(endings[0].echo);
      EXPECT_NE(endings[0].message.find("rank 1"), std::string::npos) << endings[0].message;
    }
  }
}

TEST(Faults, ARankReportsItsOwnFailureThoughItsGroupsEndedFirst) {
  for (int stage = 0; stage <= 3; ++stage) {
    const TrainSettings settings = settings_of(json_of(stage), 2);
    const LogCapture quiet;
    std::promise<void> other_ended;
    const std::shared_future<void> ended = other_ended.get_future().share();
    const std::vector<Ending> endings = endings_of(2, [&](Communicator& world) {
      std::vector<ProbeBlockSpec> blocks = probe_blocks(
          {1500, 10, 1100, 2000, 7, 1024}, [](int, const ProbeClock&) { return 1.0f; });
      if (world.rank() == 1) {
        blocks[3].on_stream = [](bool) { throw std::runtime_error("a broken block"); };
        blocks[0].on_host = [&](bool forward) {
          if (!forward) ended.wait_for(std::chrono::seconds(10));
        };
      }
      const ProbeModule module(std::move(blocks));
      const auto device = make_cpu_device({});
      const Mesh mesh(world);
      Engine engine(settings, module, mesh, *device);
      const TokenBatch batch(2, 1);
      const MicroBatch view = batch.view();
      try {
        engine.train_batch({&view, 1});
      } catch (...) {
        if (world.rank() == 0) other_ended.set_value();
        throw;
      }
    });
    expect_all_end(endings, "a broken block");
    EXPECT_FALSE(endings[1].echo) << "stage " << stage;
  }
}

/// Gathers once a peer has failed.
class Hesitant final : public detail::ForwardingCommunicator {
 public:
  Hesitant(std::shared_ptr<Communicator> inner, std::shared_future<void> failed)
      : ForwardingCommunicator(std::move(inner)), failed_(std::move(failed)) {}
  void all_gather(Stream& stream, std::span<const GatherSegment> segments) override {
    failed_.wait();
    inner_->all_gather(stream, segments);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<Hesitant>(inner_->split(color, key), failed_);
  }

 private:
  const std::shared_future<void> failed_;
};

/// What a rank's streams read from lives until their work has ended, also where a peer's failure
/// ends the constructor first.
TEST(Faults, APeerThatFailsWhileParametersAreLoadedLeavesNobodyReadingFreedMemory) {
  class Broken final : public ParameterSource {
   public:
    void read(const ParameterSpec&, std::span<const GlobalRun>, const View&) const override {
      throw std::runtime_error("a broken source");
    }
  };
  const TrainSettings settings = settings_of(json_of(2), 2);
  for (int round = 0; round < 3; ++round) {
    std::promise<void> failure, gate;
    const std::shared_future<void> failed = failure.get_future().share();
    const std::shared_future<void> opened = gate.get_future().share();
    std::thread later;
    const std::vector<Ending> endings = endings_of(2, [&](Communicator& world) {
      std::vector<ProbeBlockSpec> blocks =
          probe_blocks({1500, 1500, 1500, 1500}, [](int, const ProbeClock&) { return 1.0f; });
      for (ProbeBlockSpec& block : blocks) {
        block.parameters[0].spec.initial = [opened](std::uint64_t seed, std::int64_t,
                                                    std::int64_t count, float* values) {
          opened.wait();
          EXPECT_EQ(seed, ShardedModelOptions().seed);
          std::fill_n(values, count, 1.0f);
        };
      }
      const ProbeModule module(std::move(blocks));
      const auto device = make_cpu_device({});
      const std::shared_ptr<Communicator> inner(&world, [](Communicator*) {});
      Hesitant hesitant(inner, failed);
      const Mesh mesh(world.rank() == 0 ? static_cast<Communicator&>(hesitant) : world);
      const Broken broken;
      EngineOptions options;
      if (world.rank() == 1) options.source = &broken;
      try {
        const Engine engine(settings, module, mesh, *device, options);
      } catch (...) {
        if (world.rank() == 1) {
          failure.set_value();
          later = std::thread([&] {  // by then rank 0 has left the constructor but for its streams
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            gate.set_value();
          });
        }
        throw;
      }
    });
    later.join();
    expect_all_end(endings, "a broken source");
  }
}

TEST(Faults, ConfigurationsThatDifferAreRefusedOnEveryRank) {
  const std::vector<Ending> endings = endings_of(3, [](Communicator& world) {
    const TrainSettings settings =
        settings_of(json_of(2, 1, "", world.rank() == 2 ? R"("reduce_bucket_size": 7)" : ""), 3);
    const auto module = build_model(nano_gpt2(true));
    const auto device = make_cpu_device({});
    const Mesh mesh(world);
    Engine engine(settings, *module, mesh, *device);
  });
  expect_all_end(endings, "rank 2 has another configuration than rank 0");
}

TEST(Faults, ModelsThatDifferAreRefusedOnEveryRank) {
  for (int stage = 0; stage <= 3; ++stage) {
    const std::vector<Ending> endings = endings_of(2, [&](Communicator& world) {
      const TrainSettings settings = settings_of(json_of(stage), 2);
      const auto module = build_model(nano_gpt2(world.rank() == 0));
      const auto device = make_cpu_device({});
      const Mesh mesh(world);
      Engine engine(settings, *module, mesh, *device);
    });
    expect_all_end(endings, "rank 1 has another model than rank 0");
  }
}

TEST(Faults, AnImpossibleBudgetNamesWhatIsNeeded) {
  for (int stage = 0; stage <= 3; ++stage) {
    const TrainSettings settings = settings_of(json_of(stage), 2);
    const auto train = [&](std::int64_t budget, MemoryEstimate* estimate) {
      return endings_of(2, [&, budget, estimate](Communicator& world) {
        const auto module = build_model(nano_gpt2(true));
        CpuDeviceOptions options;
        options.rank = world.rank();
        options.budget_bytes = budget;
        const auto device = make_cpu_device(options);
        const Mesh mesh(world);
        Engine engine(settings, *module, mesh, *device);
        const TokenBatch batch = nano_batch({world.rank(), 0, 0}, 2, 1, 2);
        const MicroBatch view = batch.view();
        engine.train_batch({&view, 1});
        if (estimate != nullptr && world.rank() == 0)
          *estimate = engine.memory_estimate(2, kNanoSequence);
      });
    };
    MemoryEstimate estimate;
    for (const Ending& ending : train(TrackingResource::kUnlimited, &estimate))
      EXPECT_EQ(ending.message, "no error");
    const std::int64_t all = estimate.total();
    const std::int64_t fixed = all - estimate[Tier::device][Category::activations] -
                               estimate[Tier::device][Category::gathered_parameters];
    for (const Ending& ending : train(all, nullptr)) EXPECT_EQ(ending.message, "no error");
    // Not even the parameters; the fixed part; and all but the last of the activations.
    for (const std::int64_t budget : {std::int64_t{1000}, fixed, fixed + 100}) {
      const std::vector<Ending> endings = train(budget, nullptr);
      for (const Ending& ending : endings) {
        const bool names =
            ending.message.find("device") != std::string::npos &&
            (ending.message.find("in use") != std::string::npos ||
             ending.message.find("the plan needs") != std::string::npos ||
             ending.message.find("gathered elements at once") != std::string::npos || ending.echo);
        EXPECT_TRUE(names) << "stage " << stage << ", budget " << budget << ": " << ending.message;
        EXPECT_LT(ending.seconds, 2.0);
      }
    }
  }
}

/// Passes its input on, or not as a block must.
class OddBlock final : public Block {
 public:
  explicit OddBlock(Shape output) : output_(output) {}
  std::string name() const override { return "odd"; }
  std::vector<ParameterSpec> parameters() const override {
    return {probe_parameter("w", Shape{3}, {}).spec};
  }
  Values forward(BlockContext& context, Values, Saved&) override {
    Values outputs;
    outputs.push_back(context.allocate(DType::f32, output_));
    context.stream().device().fill_zero(context.stream(), outputs[0]);
    return outputs;
  }
  Values backward_inputs(BlockContext&, Values, Saved&) override { return {}; }
  void backward_weights(BlockContext&, Saved&) override {}

 private:
  Shape output_;
};

class OneBlock final : public Module {
 public:
  explicit OneBlock(std::unique_ptr<Block> block) {
    if (block) blocks_.push_back(std::move(block));
  }
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return blocks_; }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

TEST(Faults, AModuleWithoutALossOrWithoutBlocksIsRefused) {
  for (const bool empty : {true, false}) {
    const std::vector<Ending> endings = endings_of(2, [&](Communicator& world) {
      const TrainSettings settings = settings_of(json_of(1), 2);
      const OneBlock module(empty ? nullptr : std::make_unique<OddBlock>(Shape{3}));
      const auto device = make_cpu_device({});
      const Mesh mesh(world);
      Engine engine(settings, module, mesh, *device);
      const TokenBatch batch(2, 1);
      const MicroBatch view = batch.view();
      engine.train_batch({&view, 1});
    });
    expect_all_end(endings, empty ? "the module has no blocks" : "must return one fp32 tensor");
  }
}

TEST(Faults, AFrozenModelIsRefusedOrTrainsNothing) {
  RunOptions options = nano_options(nano_gpt2(true), 2, 1);
  options.engine.adjust = [](ParameterSpec& spec) { spec.frozen = true; };
  for (int stage = 0; stage <= 3; ++stage) {
    try {
      run_engine(json_of(stage), options);
      FAIL() << "a model without a trainable parameter trained";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("frozen"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace zero3d::test
