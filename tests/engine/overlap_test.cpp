// Communication beside computation, proved by gates: each side waits for the other to have begun,
// so that a run that does not overlap cannot end. The recorded spans must tell the same.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <set>

#include "zero3d/core/text.h"
#include "zero3d/parallel/comm/forwarding.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

/// Named points that threads pass and wait for.
class Gates {
 public:
  void pass(const std::string& point) {
    const std::lock_guard lock(mutex_);
    passed_.insert(point);
    changed_.notify_all();
  }
  /// Ends the run with an error when nobody passes for long: the order that is waited for is not
  /// possible.
  void wait(const std::string& point) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(20), [&] { return passed_.contains(point); }))
      throw_invalid(concat("nothing passed '", point, "'"));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string> passed_;
};

using OnCollective = std::function<void(int number)>;

/// Calls the test on the stream when the n-th gather of the gather stream, or reduction of the
/// reduce stream, begins.
class Observed final : public detail::ForwardingCommunicator {
 public:
  struct Counts {
    int gathers = 0;
    int reductions = 0;
    int limit = 0;  ///< Of collectives observed; what follows the steps is not.
    OnCollective on_gather;
    OnCollective on_reduce;
  };
  Observed(std::shared_ptr<Communicator> inner, std::shared_ptr<Counts> counts)
      : ForwardingCommunicator(std::move(inner)), counts_(std::move(counts)) {}

  void all_gather(Stream& stream, std::span<const GatherSegment> segments) override {
    if (stream.name() == "gather" && size() > 1)
      observe(stream, counts_->on_gather, counts_->gathers++, counts_->limit);
    inner_->all_gather(stream, segments);
  }
  void reduce_scatter(Stream& stream, std::span<const ReduceSegment> segments,
                      const ReduceOptions& options) override {
    if (stream.name() == "reduce" && size() > 1)
      observe(stream, counts_->on_reduce, counts_->reductions++, counts_->limit);
    inner_->reduce_scatter(stream, segments, options);
  }
  void all_reduce(Stream& stream, const View& data, const ReduceOptions& options) override {
    if (stream.name() == "reduce" && size() > 1)
      observe(stream, counts_->on_reduce, counts_->reductions++, counts_->limit);
    inner_->all_reduce(stream, data, options);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<Observed>(inner_->split(color, key), counts_);
  }

 private:
  static void observe(Stream& stream, const OnCollective& call, int number, int limit) {
    if (!call || number >= limit) return;
    stream.host_task("observe", std::initializer_list<Access>{}, [call, number] { call(number); });
  }
  std::shared_ptr<Counts> counts_;
};

constexpr int kBlocks = 5;
constexpr int kSteps = 2;

/// A probe of equal blocks on two ranks; `on_position` runs on the compute stream of a rank within
/// position p (forward 0..L-1, backward L..2L-1) of the whole run.
RunOptions observed_probe(
    const std::function<void(int rank, int position)>& on_position,
    const std::function<std::shared_ptr<Observed::Counts>(int rank)>& observers) {
  RunOptions options = probe_options(
      [on_position](int rank) {
        std::vector<ProbeBlockSpec> blocks = probe_blocks(
            std::vector<std::int64_t>(kBlocks, 2048), [](int, const ProbeClock&) { return 1.0f; });
        const auto passes = std::make_shared<std::vector<int>>(2 * kBlocks, 0);
        for (int block = 0; block < kBlocks; ++block) {
          blocks[static_cast<std::size_t>(block)].on_stream = [=](bool forward) {
            const int position = forward ? block : 2 * kBlocks - 1 - block;
            const int pass = (*passes)[static_cast<std::size_t>(position)]++;
            on_position(rank, 2 * kBlocks * pass + position);
          };
        }
        return blocks;
      },
      2);
  options.steps = kSteps;
  options.wrap = [observers](std::unique_ptr<Communicator> world) {
    const int rank = world->rank();
    return std::make_unique<Observed>(std::move(world), observers(rank));
  };
  return options;
}

std::string json_of(int stage, const std::string& zero, int accumulation = 1) {
  return concat(
      R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )", accumulation,
      R"(, "optimizer": {"type": "Adam", "params": {"lr": 0.01}}, "zero_optimization": {"stage": )",
      stage, R"(, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 1, )", zero,
      "}}");
}

/// Spans of one rank and stream in order of their beginnings.
std::vector<Span> spans_of(const RunResult& result, int rank, const std::string& stream,
                           const std::set<std::string>& names) {
  std::vector<Span> found;
  for (const Span& span : result.spans) {
    const bool named = names.contains(span.name) ||
                       (stream == "blocks" && span.name.find(" block ") != std::string::npos);
    if (span.rank == rank && span.stream == stream && named) found.push_back(span);
  }
  std::sort(found.begin(), found.end(),
            [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
  return found;
}

class Recording {
 public:
  Recording() { Tracer::enable(); }
  ~Recording() { Tracer::disable(); }
};

/// The last block is kept for its backward: a pass gathers for all positions but L, in order.
constexpr int kGathers = 2 * kBlocks - 1;
constexpr int kPositions = 2 * kBlocks;

/// The gather of the run that position `position` of the run needs first; -1 for position L.
int gather_of(int position) {
  const int within = position % kPositions;
  if (within == kBlocks) return -1;
  return position / kPositions * kGathers + within - (within > kBlocks ? 1 : 0);
}

/// The position at which a prefetch of one unit issues that gather: the one before its use.
int issued_at(int gather) {
  const int within = gather % kGathers;
  const int use = within + (within >= kBlocks ? 1 : 0);
  const int position = use == kBlocks + 1 ? use - 2 : use - 1;  // position L takes no room
  return gather / kGathers * kPositions + position;
}

TEST(Overlap, TheNextGatherBeginsBeforeABlockEnds) {
  for (const char* prefetch : {"1", "2048", "1e9"}) {
    const bool one_ahead = std::string(prefetch) != "1e9";
    Gates gates;
    const auto at = [](const char* what, int rank, int number) {
      return concat(what, " ", number, " of rank ", rank);
    };
    const RunOptions options = observed_probe(
        [&](int rank, int position) {
          gates.pass(at("work", rank, position));
          const bool ends_pass = (position + 1) % kPositions == 0;
          if (!ends_pass && gather_of(position + 1) >= 0)
            gates.wait(at("gather", rank, gather_of(position + 1)));
        },
        [&](int rank) {
          auto counts = std::make_shared<Observed::Counts>();
          counts->limit = kGathers * kSteps;
          counts->on_gather = [&, rank](int number) {
            gates.pass(at("gather", rank, number));
            if (one_ahead && number % kGathers != 0)
              gates.wait(at("work", rank, issued_at(number)));
          };
          return counts;
        });
    const Recording recording;
    const RunResult result =
        run_engine(json_of(3, concat(R"("stage3_prefetch_bucket_size": )", prefetch)), options);
    for (int rank = 0; rank < 2; ++rank) {
      const std::vector<Span> gathers = spans_of(result, rank, "gather", {"observe"});
      const std::vector<Span> blocks = spans_of(result, rank, "blocks", {});
      ASSERT_EQ(gathers.size(), static_cast<std::size_t>(kGathers * kSteps));
      ASSERT_EQ(blocks.size(), static_cast<std::size_t>(kPositions * kSteps));
      for (int position = 0; position + 1 < kPositions * kSteps; ++position) {
        const int next = gather_of(position + 1);
        if (next < 0 || (position + 1) % kPositions == 0) continue;
        const Span& block = blocks[static_cast<std::size_t>(position)];
        EXPECT_LT(gathers[static_cast<std::size_t>(next)].begin_ns, block.end_ns) << block.name;
      }
    }
  }
}

TEST(Overlap, WithoutPrefetchTheNextGatherWaitsForTheBlock) {
  const RunOptions options = observed_probe([](int, int) {},
                                            [](int) {
                                              auto counts = std::make_shared<Observed::Counts>();
                                              counts->limit = kGathers * kSteps;
                                              counts->on_gather = [](int) {};
                                              return counts;
                                            });
  const Recording recording;
  const RunResult result = run_engine(json_of(3, R"("stage3_prefetch_bucket_size": 0)"), options);
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<Span> gathers = spans_of(result, rank, "gather", {"observe"});
    const std::vector<Span> work = spans_of(result, rank, "compute", {"probe forward"});
    ASSERT_EQ(work.size(), static_cast<std::size_t>(kBlocks * kSteps));
    for (int step = 0; step < kSteps; ++step) {
      for (int block = 0; block + 1 < kBlocks; ++block) {
        const auto index = static_cast<std::size_t>(step * kBlocks + block);
        const auto gather = static_cast<std::size_t>(gather_of(step * kPositions + block + 1));
        EXPECT_GE(gathers[gather].begin_ns, work[index].end_ns);
      }
    }
  }
}

TEST(Overlap, ABucketIsReducedDuringTheNextBackward) {
  for (int stage = 0; stage <= 3; ++stage) {
    Gates gates;
    const auto at = [](const char* what, int rank, int number) {
      return concat(what, " ", number, " of rank ", rank);
    };
    // Block L-1-i fills bucket i in each step; its reduction and backward of block L-2-i meet.
    const RunOptions options = observed_probe(
        [&](int rank, int position) {
          const int bucket = position % (2 * kBlocks) - kBlocks;
          if (bucket < 1) return;
          const int number = position / (2 * kBlocks) * kBlocks + bucket;
          gates.pass(at("backward", rank, number));
          gates.wait(at("reduction", rank, number - 1));
        },
        [&](int rank) {
          auto counts = std::make_shared<Observed::Counts>();
          counts->limit = kBlocks * kSteps;
          counts->on_reduce = [&, rank](int number) {
            gates.pass(at("reduction", rank, number));
            if (number % kBlocks + 1 < kBlocks) gates.wait(at("backward", rank, number + 1));
          };
          return counts;
        });
    const Recording recording;
    const RunResult result =
        run_engine(json_of(stage, R"("reduce_bucket_size": 1, "overlap_comm": true)"), options);
    const std::set<std::string> names = {"observe"};
    for (int rank = 0; rank < 2; ++rank) {
      const std::vector<Span> reductions = spans_of(result, rank, "reduce", names);
      ASSERT_EQ(reductions.size(), static_cast<std::size_t>(kBlocks * kSteps)) << stage;
      std::vector<Span> backward = spans_of(result, rank, "blocks", {});
      std::erase_if(backward, [](const Span& span) { return span.name[0] != 'b'; });
      ASSERT_EQ(backward.size(), reductions.size());
      for (std::size_t i = 0; i + 1 < reductions.size(); ++i) {
        if ((i + 1) % kBlocks == 0) continue;
        EXPECT_LT(reductions[i].begin_ns, backward[i + 1].end_ns);
        EXPECT_GT(reductions[i].end_ns, backward[i + 1].begin_ns);
      }
    }
  }
}

TEST(Overlap, WithoutOverlapABucketIsReducedBeforeTheNextIsWritten) {
  for (int stage = 2; stage <= 3; ++stage) {
    const RunOptions options =
        observed_probe([](int, int) {}, [](int) { return std::make_shared<Observed::Counts>(); });
    const Recording recording;
    const RunResult result =
        run_engine(json_of(stage, R"("reduce_bucket_size": 1, "overlap_comm": false)"), options);
    for (int rank = 0; rank < 2; ++rank) {
      const std::vector<Span> reductions = spans_of(result, rank, "reduce", {"reduce_scatter"});
      const std::vector<Span> gradients = spans_of(result, rank, "compute", {"probe gradient"});
      ASSERT_EQ(gradients.size(), static_cast<std::size_t>(kBlocks * kSteps));
      ASSERT_EQ(reductions.size() % gradients.size(), 0u) << "one or two spans a bucket";
      const std::size_t each = reductions.size() / gradients.size();
      for (std::size_t i = 0; i + 1 < gradients.size(); ++i)
        EXPECT_LE(reductions[each * i + each - 1].end_ns, gradients[i + 1].begin_ns);
    }
  }
}

/// The updated parameters of the last blocks are gathered before the first block's backward ends.
TEST(Overlap, OffloadedUnitsAreUpdatedDuringBackward) {
  for (const int stage : {1, 2}) {
    TrainSettings settings = settings_of(json_of(stage, R"("reduce_bucket_size": 1)"), 2);
    settings.offload.optimizer.device = OffloadDevice::cpu;
    settings.gradients.skip_non_finite = false;
    settings.gradients.max_norm = 0;
    Gates gates;
    const RunOptions options = observed_probe(
        [&](int rank, int position) {
          if ((position + 1) % kPositions != 0) return;
          // One for each block when the model is loaded, and in each step.
          gates.wait(concat("gather ", kBlocks * (1 + position / kPositions), " of ", rank));
        },
        [&](int rank) {
          auto counts = std::make_shared<Observed::Counts>();
          counts->limit = kBlocks * (1 + kSteps);
          counts->on_gather = [&, rank](int number) {
            gates.pass(concat("gather ", number, " of ", rank));
          };
          return counts;
        });
    run_engine(settings, options);
  }
}

}  // namespace
}  // namespace zero3d::test
