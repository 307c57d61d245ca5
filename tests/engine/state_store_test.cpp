// A store that keeps tiles in host memory and moves them to the device and back, late, behind the
// same loop: no optimizer's result changes by a bit.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

constexpr int kSlots = 3;

struct Counts {
  std::atomic<int> opened = 0;
  std::atomic<int> ahead = 0;  ///< Opened while another tile was open.
};

/// Every transfer is in the order of one stream of its own, and takes its time.
class MovingStore final : public StateStore {
 public:
  MovingStore(Device& device, const std::vector<RecordLayout>& records,
              std::shared_ptr<Counts> counts)
      : device_(device),
        records_(records),
        counts_(std::move(counts)),
        copies_(device.create_stream("copies")) {
    std::int64_t largest = 0;
    for (const RecordLayout& unit : records) {
      homes_.emplace_back(device.memory(Tier::pinned), kNoStream, DType::u8, Shape{unit.bytes()},
                          Category::other);
      largest = std::max(largest, unit.bytes());
    }
    for (Tensor& slot : slots_)
      slot = Tensor(device.memory(), kNoStream, DType::u8, Shape{largest}, Category::other);
  }
  ~MovingStore() override { copies_->synchronize(); }

  int slots() const override { return kSlots; }

  View open(int slot, const Tile& tile, Event& ready, bool) override {
    ++counts_->opened;
    if (open_++ > 0) ++counts_->ahead;
    const View home = range(tile);
    const View bytes = slots_[slot].view().flat(0, home.numel());
    move(bytes, home);
    copies_->record(ready);
    return bytes;
  }

  void close(int slot, const Tile& tile, const Event& used, bool) override {
    --open_;
    copies_->wait(used);
    const View home = range(tile);
    move(home, slots_[slot].view().flat(0, home.numel()));
  }

 private:
  void move(const View& to, const View& from) {
    copies_->host_task("delay", {},
                       [] { std::this_thread::sleep_for(std::chrono::microseconds(50)); });
    device_.copy(*copies_, to, from);
  }
  View range(const Tile& tile) {
    const RecordLayout& unit = records_[static_cast<std::size_t>(tile.unit)];
    const std::int64_t begin = unit.offset(tile.begin);
    return homes_[static_cast<std::size_t>(tile.unit)].view().flat(
        begin, unit.offset(tile.begin + tile.count) - begin);
  }

  Device& device_;
  const std::vector<RecordLayout>& records_;
  std::shared_ptr<Counts> counts_;
  std::vector<Tensor> homes_;
  Tensor slots_[kSlots];
  int open_ = 0;
  std::unique_ptr<Stream> copies_;
};

class MovedState : public ::testing::TestWithParam<const char*> {};

TEST_P(MovedState, ChangesNoBit) {
  for (const char* precision : {"", R"("bf16": {"enabled": true}, )"}) {
    for (const int stage : {0, 3}) {
      if (kSanitized && (*precision == '\0') != (stage == 0)) continue;
      const std::string json = concat(
          R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5, )", precision,
          R"("zero_allow_untested_optimizer": true, "optimizer": {"type": ")", GetParam(),
          R"(", "params": {"lr": 0.01}}, "zero_optimization": {"sub_group_size": 2048, "stage": )",
          stage, "}}");
      RunOptions options = nano_options(nano_gpt2(true), 2, 1);
      const RunResult resident = run_engine(json, options);
      auto counts = std::make_shared<Counts>();
      options.engine.state_store = [counts](Device& device,
                                            const std::vector<RecordLayout>& records) {
        return std::make_unique<MovingStore>(device, records, counts);
      };
      const RunResult moved = run_engine(json, options);
      EXPECT_TRUE(same_bits(resident, moved)) << json;
      EXPECT_GT(counts->opened, 0);
      EXPECT_GT(2 * counts->ahead, counts->opened) << "most tiles are read ahead of their use";
    }
  }
}

// One of each way to update is enough for a sanitizer.
const std::vector<const char*> kOptimizers = {"AdamW", "Lamb", "Muon",   "Adagrad",
                                              "Lion",  "SGD",  "RMSprop"};
INSTANTIATE_TEST_SUITE_P(All, MovedState,
                         ::testing::ValuesIn(kOptimizers.begin(),
                                             kOptimizers.begin() + (kSanitized ? 3 : 7)));

}  // namespace
}  // namespace zero3d::test
