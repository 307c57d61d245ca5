// The optimizer's state on a drive: no optimizer's result changes by a bit, and a drive that fails
// ends every rank.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>

#include "zero3d/core/text.h"
#include "zero3d/offload/nvme_state_store.h"
#include "zero3d/tests/offload/faulty_port.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

std::string config(const char* optimizer, int stage, int tile) {
  return concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5, )",
                R"("zero_allow_untested_optimizer": true, "optimizer": {"type": ")", optimizer,
                R"(", "params": {"lr": 0.01}}, "zero_optimization": {"sub_group_size": )", tile,
                R"(, "stage": )", stage, "}}");
}

NvmeStateOptions options_in(const TemporaryFolder& folder, bool ring, int slots) {
  NvmeStateOptions options;
  options.paths = {folder.file("a"), folder.file("b")};
  options.buffer_count = slots;
  options.io.block_size = 8192;
  options.io.port = ring && has_ring() ? make_ring_port : make_thread_port;
  return options;
}

class NvmeState : public ::testing::TestWithParam<const char*> {};

TEST_P(NvmeState, ChangesNoBit) {
  const TemporaryFolder folder;
  int turn = 0;
  for (const int stage : {0, 1, 2, 3}) {
    if (kSanitized && (stage == 1 || stage == 2)) continue;
    // The tile size changes no bit either, and so one resident run stands for all.
    RunOptions options = nano_options(nano_gpt2(true), 2, 1);
    const RunResult resident = run_engine(config(GetParam(), stage, 2048), options);
    for (const int tile : {1024, 4096}) {
      NvmeStateOptions nvme = options_in(folder, turn % 2 == 0, 1 + turn % 3);
      nvme.tile_elements = tile;
      nvme.checksums = turn % 3 == 1;
      nvme.direct = turn % 4 != 3;
      ++turn;
      options.engine.state_store = make_nvme_state_store(nvme);
      const RunResult moved = run_engine(config(GetParam(), stage, tile), options);
      EXPECT_TRUE(same_bits(resident, moved)) << stage << " " << tile;
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.file("a"))) << "nothing is left behind";
  EXPECT_TRUE(std::filesystem::is_empty(folder.file("b")));
}

INSTANTIATE_TEST_SUITE_P(All, NvmeState, ::testing::Values("Adam", "Lamb", "Muon"));

TEST(NvmeStateStore, ReadsOnlyWhatWasWritten) {
  const TemporaryFolder folder;
  const auto device = make_cpu_device({});
  const auto stream = device->create_stream("update");
  const std::vector<RecordLayout> records = {RecordLayout(4096, 1024, std::vector<RecordPart>(1)),
                                             RecordLayout()};
  const auto faults = std::make_shared<Faults>();
  NvmeStateOptions options = options_in(folder, true, 2);
  options.tile_elements = 1024;
  options.io.port = faulty(faults, options.io.port);
  auto store = make_nvme_state_store(options)(*device, records);
  EXPECT_EQ(store->slots(), 2);
  EXPECT_EQ(device->memory(Tier::pinned).use().current, 64 << 10);
  for (int turn = 0; turn < 2; ++turn) {
    for (int i = 0; i < 4; ++i) {
      const Tile tile{0, 1024 * i, 1024};
      Event ready, used;
      const View bytes = store->open(i % 2, tile, ready, true);
      if (ready.recorded()) stream->wait(ready);
      stream->launch("use", {writes(bytes)}, [bytes, turn, i] {
        auto* values = bytes.as<std::uint8_t>();
        if (turn == 0)
          std::fill(values, values + bytes.numel(), static_cast<std::uint8_t>(i + 1));
        else
          EXPECT_EQ(values[bytes.numel() - 1], i + 1);
      });
      stream->record(used);
      store->close(i % 2, tile, used, true);
    }
    stream->synchronize();
  }
  store.reset();
  EXPECT_EQ(faults->pieces, 4 + 4 + 4) << "the first turn reads nothing";
}

TEST(NvmeStateStore, MovesNoMoreThanItIsAsked) {
  const TemporaryFolder folder;
  const auto device = make_cpu_device({});
  const auto stream = device->create_stream("update");
  const std::vector<RecordLayout> records = {RecordLayout(1024, 1024, std::vector<RecordPart>(1))};
  const auto faults = std::make_shared<Faults>();
  NvmeStateOptions options = options_in(folder, true, 1);
  options.io.port = faulty(faults, options.io.port);
  const auto store = make_nvme_state_store(options)(*device, records);
  const auto pieces_of = [&](bool contents, bool changed) {
    const int before = faults->pieces;
    Event ready, used;
    const View bytes = store->open(0, {0, 0, 1024}, ready, contents);
    if (ready.recorded()) stream->wait(ready);
    device->fill_zero(*stream, bytes);
    stream->record(used);
    store->close(0, {0, 0, 1024}, used, changed);
    stream->synchronize();
    Event done;  // after the write
    store->open(0, {0, 0, 1024}, done, false);
    if (done.recorded()) stream->wait(done);
    stream->synchronize();
    return faults->pieces - before;
  };
  EXPECT_EQ(pieces_of(true, true), 1) << "nothing to read yet";
  EXPECT_EQ(pieces_of(true, true), 2);
  EXPECT_EQ(pieces_of(false, true), 1) << "written all over";
  EXPECT_EQ(pieces_of(true, false), 1) << "only looked at";
}

/// A store for one of the ranks, whose drive has `faults`; the drives of the others are sound.
StateStoreFactory one_faulty(const NvmeStateOptions& options, std::shared_ptr<Faults> faults) {
  const auto made = std::make_shared<std::atomic<int>>(0);
  return [=](Device& device, const std::vector<RecordLayout>& records) {
    NvmeStateOptions own = options;
    if ((*made)++ == 0) own.io.port = faulty(faults, own.io.port);
    return make_nvme_state_store(own)(device, records);
  };
}

TEST(NvmeStateStore, AFailingDriveEndsEveryRankInTheMiddleOfAStep) {
  for (const bool ring : {true, false}) {
    for (const bool write : {true, false}) {
      const LogCapture log;
      const TemporaryFolder folder;
      NvmeStateOptions nvme = options_in(folder, ring, 2);
      const auto faults = std::make_shared<Faults>();
      faults->from = 30;
      (write ? faults->reads : faults->writes) = false;
      faults->code = write ? ENOSPC : EIO;
      nvme.tile_elements = 1024;
      RunOptions options = nano_options(nano_gpt2(true), 2, 1);
      options.steps = 50;
      options.engine.state_store = one_faulty(nvme, faults);
      const std::int64_t begin = now_ns();
      const std::string message =
          message_of<Error>([&] { run_engine(config("Adam", 3, 1024), options); });
      EXPECT_LT(now_ns() - begin, 5'000'000'000);
      EXPECT_NE(message.find(write ? ": cannot write " : ": cannot read "), std::string::npos)
          << message;
      EXPECT_NE(message.find(" at offset "), std::string::npos) << message;
      EXPECT_NE(message.find(write ? "(No space left on device)" : "(Input/output error)"),
                std::string::npos)
          << message;
    }
  }
}

TEST(NvmeStateStore, AStalledDriveEndsEveryRankSoonAfterTheLimit) {
  for (const bool ring : {true, false}) {
    for (const bool write : {true, false}) {
      if (kSanitized && write != ring) continue;
      const LogCapture log;
      const TemporaryFolder folder;
      NvmeStateOptions nvme = options_in(folder, ring, 2);
      nvme.tile_elements = 1024;
      nvme.io.stall_limit = std::chrono::seconds(1);
      const auto faults = std::make_shared<Faults>();
      faults->from = 30;
      faults->hold = true;
      (write ? faults->reads : faults->writes) = false;
      RunOptions options = nano_options(nano_gpt2(true), 2, 1);
      options.steps = 50;
      options.engine.state_store = one_faulty(nvme, faults);
      const std::int64_t begin = now_ns();
      const std::string message =
          message_of<Error>([&] { run_engine(config("Adam", 3, 1024), options); });
      EXPECT_LT(now_ns() - begin, 6'000'000'000) << "the limit, and five seconds";
      EXPECT_GT(now_ns() - begin, 1'000'000'000);
      EXPECT_NE(message.find(write ? ": cannot write " : ": cannot read "), std::string::npos)
          << message;
      EXPECT_NE(message.find("(Connection timed out): nothing that was asked of the drive has"),
                std::string::npos)
          << message;
      faults->hold = false;  // so that the drive's thread ends
    }
  }
}

/// Several queues of a rank use the drive: state, gradients, parameters.
TEST(NvmeStateStore, ADriveThatStallsUnderAllQueuesEndsTheRunOnce) {
  const LogCapture log;
  const TemporaryFolder folder;
  RunOptions options = nano_options(nano_gpt2(true), 2, 1);
  options.steps = 50;
  TrainSettings settings = settings_of(config("Adam", 2, 1024), 2);
  settings.offload.optimizer.device = OffloadDevice::nvme;
  settings.offload.optimizer.paths = {folder.file("drive")};
  const auto faults = std::make_shared<Faults>();
  faults->from = 300;
  faults->hold = true;
  settings.offload.io.block_size = 8192;
  settings.offload.io.stall_limit = std::chrono::seconds(1);
  settings.offload.io.port = faulty(faults, make_thread_port);
  const std::int64_t begin = now_ns();
  const std::string message = message_of<Error>([&] { run_engine(settings, options); });
  EXPECT_LT(now_ns() - begin, 6'000'000'000) << "the limit, and five seconds";
  EXPECT_NE(message.find("(Connection timed out): nothing that was asked of the drive has"),
            std::string::npos)
      << message;
  faults->hold = false;
}

TEST(NvmeStateStore, RefusesNoBuffersAtAll) {
  const TemporaryFolder folder;
  const auto device = make_cpu_device({});
  EXPECT_EQ(
      message_of<Error>([&] { make_nvme_state_store(options_in(folder, false, 0))(*device, {}); }),
      "offload_optimizer.buffer_count is 0; expected 1 or more");
}

}  // namespace
}  // namespace zero3d::test
