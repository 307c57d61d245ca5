// What becomes of a run whose plan is more than its budgets: sizes that change no result are
// clipped, and a refusal names a budget that is enough.
#include <gtest/gtest.h>

#include "zero3d/core/error.h"
#include "zero3d/tests/engine/offload_trial.h"
#include "zero3d/tests/support/log_capture.h"

namespace zero3d::test {
namespace {

ModelConfig wide_model() {
  ModelConfig model = nano_gpt2(true);
  model.vocab_size = 8000;
  return model;
}

struct Budgets {
  std::int64_t device = -1;
  std::int64_t host = -1;
};

RunOptions within(const Budgets& budgets, int ranks, bool knows_sequence = true) {
  RunOptions options = nano_options(wide_model(), ranks, 1);
  options.exports = options.collects = false;
  options.budget_bytes = budgets.device;
  options.host_budget_bytes = budgets.host;
  if (knows_sequence) options.engine.sequence_length = kNanoSequence;
  options.body = [=, batch = options.batch](Engine& engine, Module&, int rank) {
    const TokenBatch tokens = batch({rank, 0, 0});
    const MicroBatch view = tokens.view();
    for (int step = 0; step < 2; ++step) engine.train_batch({&view, 1});
  };
  return options;
}

/// The budget that a refusal asks for.
std::int64_t named_in(const std::string& message) {
  const std::size_t at = message.find("raise it to ");
  EXPECT_NE(at, std::string::npos) << message;
  const std::size_t begin = at + 12;
  return parse_bytes(message.substr(begin, message.find(' ', begin) - begin));
}

TrainSettings offloaded(int stage, int ranks, OffloadDevice optimizer, OffloadDevice parameters,
                        const TemporaryFolder& folder) {
  TrainSettings settings =
      settings_for({.stage = stage, .ranks = ranks, .precision = kBf16, .tile = 1'000'000}, {});
  settings.offload.optimizer.device = optimizer;
  settings.offload.parameters.device = parameters;
  settings.offload.optimizer.paths = settings.offload.parameters.paths = {folder.file("drive")};
  return settings;
}

TEST(BudgetFit, ARefusalNamesABudgetThatIsEnough) {
  constexpr OffloadDevice none = OffloadDevice::none, cpu = OffloadDevice::cpu,
                          nvme = OffloadDevice::nvme;
  const struct {
    int stage, ranks;
    OffloadDevice optimizer, parameters;
  } cases[] = {{0, 1, none, none}, {1, 2, none, none}, {2, 2, cpu, none}, {3, 2, none, none},
               {3, 1, cpu, cpu},   {3, 1, nvme, nvme}, {2, 1, nvme, none}};
  for (const auto& c : cases) {
    SCOPED_TRACE(concat("stage ", c.stage, " ", name_of(c.optimizer), " ", name_of(c.parameters)));
    const TemporaryFolder folder;
    const TrainSettings settings = offloaded(c.stage, c.ranks, c.optimizer, c.parameters, folder);
    Budgets budgets{1000, 1000};
    const LogCapture log;
    for (const bool device : {true, false}) {
      try {
        run_engine(settings, within(budgets, c.ranks));
        FAIL() << "took too small a budget";
      } catch (const OutOfMemory& error) {
        const std::string message = error.what();
        const char* const option = device ? "--device-memory" : "--host-memory";
        EXPECT_NE(message.find(option), std::string::npos) << message;
        (device ? budgets.device : budgets.host) = named_in(message);
      }
    }
    EXPECT_NO_THROW(run_engine(settings, within(budgets, c.ranks)));
  }
}

/// Within a host budget that asks for less than the settings do, the same bits.
TEST(BudgetFit, ClipsWhatDrivesKeepInHostMemory) {
  const TemporaryFolder folder;
  TrainSettings settings = offloaded(3, 1, OffloadDevice::nvme, OffloadDevice::nvme, folder);
  settings.offload.optimizer.buffer_count = 16;
  settings.offload.parameters.max_in_cpu = 1'000'000'000;
  const RunResult wide = run_engine(settings, within({}, 1));
  const std::int64_t planned = wide.estimates[0].total(kHostTiers);
  for (const double part : {0.9, 0.5, 0.25}) {
    const LogCapture log;
    const auto budget = static_cast<std::int64_t>(part * static_cast<double>(planned));
    const RunResult tight = run_engine(settings, within({-1, budget}, 1));
    EXPECT_TRUE(same_bits(wide, tight));
    EXPECT_LE(tight.estimates[0].total(kHostTiers), budget);
    EXPECT_EQ(log.with("clipped to what the memory budgets hold").size(), 1u) << part;
  }
  const LogCapture log;
  run_engine(settings, within({-1, planned}, 1));
  EXPECT_TRUE(log.with("clipped").empty());
}

TEST(BudgetFit, ClipsTheReduceBucket) {
  const TemporaryFolder folder;
  TrainSettings settings = offloaded(2, 2, OffloadDevice::none, OffloadDevice::none, folder);
  settings.gradients.overlap_reduction = true;
  const RunResult wide = run_engine(settings, within({}, 2));
  const std::int64_t buckets = wide.estimates[0][Tier::device][Category::gradient_buckets];
  settings.gradients.reduce_bucket = 1;
  const RunResult narrow = run_engine(settings, within({}, 2));
  ASSERT_LT(narrow.estimates[0][Tier::device][Category::gradient_buckets], buckets);
  settings.gradients.reduce_bucket = 500'000'000;
  const LogCapture log;
  const RunResult tight = run_engine(settings, within({narrow.estimates[0].total(), -1}, 2));
  EXPECT_TRUE(same_bits(wide, tight));
  EXPECT_EQ(log.with("clipped to what the memory budgets hold: the reduce bucket from").size(), 1u);
}

/// With a plan that fits its machine, approve_memory hears of all of it.
TEST(BudgetFit, ApprovalIsAskedOfTheWholePlan) {
  const TemporaryFolder folder;
  RunOptions options = within({}, 1);
  std::vector<std::int64_t> heard;
  options.engine.approve_memory = [&](const MemoryEstimate& memory) {
    heard.push_back(memory.total());
  };
  const RunResult run =
      run_engine(offloaded(2, 1, OffloadDevice::none, OffloadDevice::none, folder), options);
  ASSERT_FALSE(heard.empty());
  EXPECT_EQ(heard.front(), run.estimates[0].total());
}

}  // namespace
}  // namespace zero3d::test
