// What an I/O queue promises, on both ports, past the page cache and through it.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <random>
#include <thread>

#include "faulty_port.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/offload/io_port.h"
#include "zero3d/offload/io_queue.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

constexpr std::int64_t kPage = 4096;

struct Kind {
  const char* name;
  bool ring;
  bool direct;
};

class Queue : public ::testing::TestWithParam<Kind> {
 protected:
  Queue() {
    if (GetParam().ring && !has_ring()) skip_ = true;
    CpuDeviceOptions options;
    options.check_hazards = true;
    device_ = make_cpu_device(options);
    memory_ =
        Tensor(device_->memory(Tier::pinned), kNoStream, DType::u8, Shape{kBytes}, Category::other);
    back_ =
        Tensor(device_->memory(Tier::pinned), kNoStream, DType::u8, Shape{kBytes}, Category::other);
    file_ = std::make_shared<IoFile>(folder_.file("tiles"), GetParam().direct);
    std::mt19937 random(3);
    for (std::int64_t i = 0; i < kBytes; ++i)
      memory_.view().data()[i] = static_cast<std::byte>(random());
  }
  void SetUp() override {
    if (skip_) GTEST_SKIP() << "no io_uring here";
    file_->reserve(kBytes);
  }

  std::unique_ptr<IoQueue> queue(IoOptions options = {.block_size = 16 * kPage}) {
    options.port = faulty(faults_, GetParam().ring ? make_ring_port : make_thread_port);
    const View buffers[] = {memory_.view(), back_.view()};
    return std::make_unique<IoQueue>(*device_, "test", options,
                                     std::vector<std::shared_ptr<const IoFile>>{file_}, buffers);
  }
  IoTransfer write(std::int64_t offset, std::int64_t bytes) const {
    return {true, 0, offset, memory_.view().flat(offset, bytes), nullptr};
  }
  IoTransfer read(std::int64_t offset, std::int64_t bytes) const {
    return {false, 0, offset, back_.view().flat(offset, bytes), nullptr};
  }
  bool same() const { return std::memcmp(memory_.view().data(), back_.view().data(), kBytes) == 0; }
  void round_trip(IoQueue& queue) {
    const Event written = queue.submit("write", {write(0, kBytes)}, {});
    queue.submit("read", {read(0, kBytes)}, {&written, 1}).wait();
    EXPECT_TRUE(same());
  }
  static std::string error_of(const Event& event) {
    return message_of<IoError>([&] { event.wait(); });
  }

  static constexpr std::int64_t kBytes = 200 * kPage;
  bool skip_ = false;
  const TemporaryFolder folder_;
  const std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
  std::unique_ptr<Device> device_;
  Tensor memory_, back_;
  std::shared_ptr<IoFile> file_;
};

TEST_P(Queue, ReadsWhatItWroteWhateverTheBlocksAndDepth) {
  for (const std::int64_t block : {kPage, 7 * kPage, 1024 * kPage}) {
    for (const int depth : {1, 3, 64}) {
      std::memset(back_.view().data(), 0, kBytes);
      faults_->largest = 0;
      faults_->most_under_way = 0;
      const auto io = queue({.block_size = block, .queue_depth = depth, .intra_op_parallelism = 3});
      // Pieces of random sizes, one event for all.
      std::mt19937 random(static_cast<unsigned>(depth));
      std::vector<IoTransfer> writes, reads;
      for (std::int64_t at = 0; at < kBytes;) {
        const auto pages = static_cast<std::int64_t>(1 + random() % 40);
        const std::int64_t count = std::min(kBytes - at, pages * kPage);
        writes.push_back(write(at, count));
        reads.push_back(read(at, count));
        at += count;
      }
      const Event written = io->submit("write", writes, {});
      const Event done = io->submit("read", reads, {&written, 1});
      done.wait();
      EXPECT_TRUE(same()) << block << " " << depth;
      EXPECT_LE(faults_->largest, block);
      EXPECT_LE(faults_->most_under_way, depth);
      EXPECT_EQ(io->counters().read_bytes, kBytes);
      EXPECT_EQ(io->counters().written_bytes, kBytes);
    }
  }
}

TEST_P(Queue, OneSubmissionIsOneBatchAndOverlapCanBeTurnedOff) {
  const auto io = queue({.block_size = 4 * kPage, .queue_depth = 16});
  io->submit("write", {write(0, 16 * 4 * kPage)}, {}).wait();
  EXPECT_EQ(faults_->largest_batch, 16);
  faults_->most_under_way = 0;
  const auto alone = queue(
      {.block_size = 4 * kPage, .queue_depth = 4, .single_submit = true, .overlap_events = false});
  round_trip(*alone);
  EXPECT_EQ(faults_->most_under_way, 4);
}

TEST_P(Queue, StartsAfterAStreamAndAStreamAfterIt) {
  const auto io = queue();
  const auto stream = device_->create_stream("compute");
  std::promise<void> gate;
  const View data = memory_.view().flat(0, kPage);
  stream->host_task("fill", {writes(data)}, [&, data] {
    gate.get_future().wait();
    std::memset(data.data(), 42, kPage);
  });
  Event filled;
  stream->record(filled);
  const Event written = io->submit("write", {write(0, kPage)}, {&filled, 1});
  // What comes after nothing is not held up by what waits.
  io->submit("write", {write(kPage, kPage)}, {}).wait();
  EXPECT_FALSE(written.done());
  const Event back = io->submit("read", {read(0, kPage)}, {&written, 1});
  std::byte seen{};
  stream->wait(back);
  const View got = back_.view().flat(0, kPage);
  stream->host_task("look", {reads(got)}, [&, got] { seen = got.data()[kPage - 1]; });
  gate.set_value();
  stream->synchronize();
  EXPECT_EQ(seen, std::byte{42});
}

TEST_P(Queue, TheHazardCheckerKnowsItsReadsAndWrites) {
  const auto io = queue();
  const auto stream = device_->create_stream("compute");
  const View data = back_.view().flat(0, kPage);
  stream->launch("fill", {writes(data)}, [] {});
  const std::string clash =
      message_of<Error>([&] { io->submit("read tile", {read(0, kPage)}, {}); });
  EXPECT_NE(clash.find("'read tile' on an I/O queue writes 4,096 bytes"), std::string::npos)
      << clash;
  Event filled;
  stream->record(filled);
  const Event done = io->submit("read tile", {read(0, kPage)}, {&filled, 1});
  EXPECT_NE(message_of<Error>([&] { stream->launch("use", {reads(data)}, [] {}); }), "");
  stream->wait(done);
  stream->launch("use", {reads(data)}, [] {});
  stream->synchronize();
}

TEST_P(Queue, GoesOnAfterShortTransfersAndInterruptions) {
  faults_->cut = true;
  faults_->repeats = 20;
  faults_->unaligned = 9;
  for (int turn = 0; turn < 3; ++turn) {
    std::memset(back_.view().data(), 0, kBytes);
    round_trip(*queue());
    faults_->repeats = 5;
    faults_->unaligned = 9;
  }
}

TEST_P(Queue, AnErrorNamesPathErrnoAndOffsetAndTravels) {
  const auto io = queue();
  faults_->code = ENOSPC;
  faults_->from = 2;
  const Event written = io->submit("write tile", {write(0, 64 * kPage)}, {});
  const Event back = io->submit("read tile", {read(0, kPage)}, {&written, 1});
  const auto stream = device_->create_stream("compute");
  stream->wait(back);
  const std::string error = error_of(written);
  EXPECT_NE(error.find(concat(file_->path(), ": cannot write 65536 bytes at offset ")),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("(No space left on device)"), std::string::npos) << error;
  EXPECT_EQ(error_of(back), error);
  EXPECT_EQ(message_of<IoError>([&] { stream->synchronize(); }), error);
  try {
    std::rethrow_exception(io->error());
  } catch (const IoError& first) {
    EXPECT_EQ(first.code(), ENOSPC);
  }
  faults_->code = 0;  // others are not drawn in
  io->submit("write tile", {write(0, kPage)}, {}).wait();
}

TEST_P(Queue, TheEndOfAFileIsAnError) {
  file_->reserve(0);
  const auto io = queue();
  io->submit("write", {write(0, kPage)}, {}).wait();
  const auto past = std::make_shared<IoFile>(folder_.file("short"), GetParam().direct);
  IoOptions options{.block_size = kPage};
  options.port = GetParam().ring ? make_ring_port : make_thread_port;
  IoQueue other(*device_, "test", options, {past}, {});
  other.submit("write", {write(0, kPage)}, {}).wait();
  const std::string error = error_of(other.submit("read", {read(0, 2 * kPage)}, {}));
  EXPECT_NE(error.find("cannot read 4096 bytes at offset 4096 for 'read': the file ends there"),
            std::string::npos)
      << error;
}

TEST_P(Queue, AStalledDriveIsGivenUp) {
  IoOptions options{.block_size = kPage, .stall_limit = std::chrono::milliseconds(200)};
  const auto io = queue(options);
  faults_->hold = true;
  const std::int64_t begin = now_ns();
  const Event written = io->submit("write", {write(8 * kPage, kPage)}, {});
  const std::string error = error_of(written);
  EXPECT_NE(error.find("tiles: cannot write 4096 bytes at offset 32768 for 'write' "
                       "(Connection timed out): nothing that was asked of the drive has ended"),
            std::string::npos)
      << error;
  EXPECT_LT(now_ns() - begin, 2'000'000'000);
  EXPECT_FALSE(io->drain()) << "its memory is still in use";
  EXPECT_EQ(error_of(io->submit("write", {write(0, kPage)}, {})), error);
  faults_->hold = false;
  EXPECT_TRUE(io->drain());
}

TEST_P(Queue, ARunThatFailsIsNotHeldUpByADriveThatHoldsWorkBack) {
  const LogCapture log;
  faults_->hold = true;
  Event written;
  const std::int64_t begin = now_ns();
  try {
    const auto io = queue({.block_size = kPage});
    written = io->submit("write", {write(8 * kPage, kPage)}, {});
    throw_invalid("something else");
  } catch (const Error&) {
  }
  EXPECT_LT(now_ns() - begin, 4'000'000'000);
  EXPECT_FALSE(written.done());
  EXPECT_EQ(log.with("still holds work back").size(), 1u);
  faults_->hold = false;
  EXPECT_EQ(error_of(written), "");
}

TEST_P(Queue, WorksWithoutRegistration) {
  const LogCapture log;
  faults_->registration = ENOMEM;
  round_trip(*queue());
  EXPECT_EQ(log.with("does not register them (Cannot allocate memory)").size(), 2u);
  EXPECT_EQ(log.with("ulimit -l").size(), 1u);
}

/// As there are as many as ranks and kinds of state.
TEST_P(Queue, ALockLimitIsToldOnceForAllQueuesOfARun) {
  const LogCapture log;
  faults_->registration = ENOMEM;
  for (int again = 0; again < 3; ++again) round_trip(*queue());
  round_trip(*queue({.block_size = 16 * kPage, .rank = 1}));
  EXPECT_EQ(log.with("ulimit -l").size(), 1u);
  EXPECT_EQ(log.lines().size(), 2u);
}

TEST_P(Queue, AFlippedByteIsNamed) {
  const auto io = queue();
  std::vector<std::uint64_t> sums(kBytes / kPage);
  IoTransfer all = write(0, kBytes), again = read(0, kBytes);
  all.checksums = again.checksums = sums.data();
  io->submit("write", {all}, {}).wait();
  io->submit("read", {again}, {}).wait();
  EXPECT_TRUE(same());
  // The same page with one bit changed, through the same door.
  constexpr std::int64_t kAt = 123 * kPage;
  memory_.view().data()[kAt + 77] ^= std::byte{16};
  io->submit("write", {write(kAt, kPage)}, {}).wait();
  const std::string error = error_of(io->submit("read", {again}, {}));
  EXPECT_NE(error.find(concat(file_->path(), ": the 4096 bytes at offset ", kAt)),
            std::string::npos)
      << error;
}

TEST_P(Queue, RefusesWhatDirectTransfersCannotDo) {
  const auto io = queue();
  const auto refusal = [&](IoTransfer transfer) {
    return message_of<Error>([&] { io->submit("write", {std::move(transfer)}, {}).wait(); });
  };
  IoTransfer shifted = write(0, kPage);
  shifted.offset = 512;
  EXPECT_EQ(refusal(shifted).find("expected multiples of 4096") != std::string::npos,
            file_->direct());
  shifted = {true, 0, 0, memory_.view().flat(64, kPage), nullptr};
  EXPECT_EQ(refusal(shifted).find("expected multiples of 4096") != std::string::npos,
            file_->direct());
}

INSTANTIATE_TEST_SUITE_P(All, Queue,
                         ::testing::Values(Kind{"ring_direct", true, true},
                                           Kind{"ring_buffered", true, false},
                                           Kind{"threads_direct", false, true},
                                           Kind{"threads_buffered", false, false}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace zero3d::test
