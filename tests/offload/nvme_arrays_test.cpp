// Arrays on drives against the same bytes in memory: whatever the ranges, buffers and ports are.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "faulty_port.h"
#include "zero3d/core/text.h"
#include "zero3d/offload/nvme_arrays.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

/// A device whose streams order is checked, with arrays on a drive.
struct Rig {
  Rig(const std::vector<std::int64_t>& bytes, NvmeArraysOptions options, std::uint64_t jitter = 0) {
    CpuDeviceOptions checked;
    checked.check_hazards = true;
    checked.jitter_seed = jitter;
    device = make_cpu_device(checked);
    in = device->create_stream("copy in");
    out = device->create_stream("copy out");
    options.name = "arrays";
    options.paths = {folder.file("a"), folder.file("b")};
    arrays = std::make_unique<NvmeArrays>(*device, bytes, options, *in, *out);
  }
  ~Rig() {
    in.reset();
    out.reset();
  }

  Tensor host(std::int64_t bytes) {
    return Tensor(device->memory(Tier::pinned), kNoStream, DType::u8, Shape{bytes},
                  Category::other);
  }
  /// Writes `values` from memory that is overwritten as soon as it may be.
  void write(int array, std::int64_t begin, const std::vector<std::byte>& values) {
    const Tensor from = host(static_cast<std::int64_t>(values.size()));
    std::memcpy(from.view().data(), values.data(), values.size());
    Event ready;
    in->record(ready);
    arrays->write(array, begin, from, ready).wait();
    std::memset(device->host_write(from).data(), 0xEE, values.size());
  }
  std::vector<std::byte> read(int array, std::int64_t begin, std::int64_t bytes) {
    const Tensor to = host(bytes);
    arrays->read(array, begin, to);
    in->synchronize();
    const ConstView seen = device->host_read(to);
    return {seen.data(), seen.data() + seen.bytes()};
  }

  TemporaryFolder folder;
  std::unique_ptr<Device> device;
  std::unique_ptr<NvmeArrays> arrays;
  std::unique_ptr<Stream> in, out;
};

std::vector<std::byte> random_bytes(std::mt19937& random, std::int64_t count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(NvmeArrays, HoldWhatWasWrittenWhereverPagesAndBuffersEnd) {
  const std::vector<std::int64_t> sizes = {1, 0, 4095, 4096, 10000, 40960, 50001};
  std::mt19937 random(3);
  for (int trial = 0; trial < 16; ++trial) {
    NvmeArraysOptions options;
    options.buffer_count = 1 + trial % 3;
    options.buffer_bytes = 4096 << trial % 4;
    options.checksums = trial % 2 == 0;
    options.direct = trial % 8 != 7;
    options.io.block_size = 8192;
    options.io.intra_op_parallelism = 3;
    options.io.port = trial % 4 < 2 && has_ring() ? make_ring_port : make_thread_port;
    Rig rig(sizes, options, static_cast<std::uint64_t>(trial));
    std::vector<std::vector<std::byte>> expected;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      expected.push_back(random_bytes(random, sizes[i]));
      if (sizes[i] > 0) rig.write(static_cast<int>(i), 0, expected[i]);
    }
    for (int change = 0; change < 40; ++change) {
      const std::size_t i = random() % sizes.size();
      if (sizes[i] == 0) continue;
      const std::int64_t begin = random() % sizes[i];
      const std::int64_t count = 1 + random() % (sizes[i] - begin);
      const std::vector<std::byte> values = random_bytes(random, count);
      rig.write(static_cast<int>(i), begin, values);
      std::copy(values.begin(), values.end(), expected[i].begin() + begin);
      const std::int64_t from = random() % sizes[i], some = 1 + random() % (sizes[i] - from);
      ASSERT_EQ(rig.read(static_cast<int>(i), from, some),
                std::vector(expected[i].begin() + from, expected[i].begin() + from + some))
          << trial << " " << change;
      if (change % 5 != 0) continue;
      ASSERT_EQ(rig.read(static_cast<int>(i), 0, sizes[i]), expected[i]) << trial << " " << change;
    }
    rig.arrays->finish();
    for (std::size_t i = 0; i < sizes.size(); ++i)
      ASSERT_EQ(rig.read(static_cast<int>(i), 0, sizes[i]), expected[i]) << trial << " array " << i;
  }
}

TEST(NvmeArrays, WholePagesAreWrittenWithoutARead) {
  Rig rig({10000, 40960}, {.buffer_count = 2, .buffer_bytes = 8192});
  rig.write(0, 0, std::vector<std::byte>(10000));
  rig.write(1, 4096, std::vector<std::byte>(8192));
  rig.arrays->finish();
  EXPECT_EQ(rig.arrays->counters().read_bytes, 0);
  EXPECT_EQ(rig.arrays->counters().written_bytes, 12288 + 8192);
  EXPECT_EQ(rig.device->memory(Tier::pinned).use().categories[Category::parameters].peak,
            NvmeArrays::buffer_memory(2, 8192));
}

/// Pieces that are submitted while writes are held back: what they must come after is not.
TEST(NvmeArrays, ReadsAndWritesComeAfterTheWritesOfTheirBytesAlone) {
  const auto faults = std::make_shared<Faults>();
  faults->reads = false;
  NvmeArraysOptions options{.buffer_count = 8, .buffer_bytes = 4096};
  options.io.port = faulty(faults, make_thread_port);
  Rig rig({16384}, options);
  rig.write(0, 0, std::vector<std::byte>(16384, std::byte{1}));
  rig.arrays->finish();
  const int before = faults->pieces;
  faults->hold = true;
  rig.write(0, 4096, std::vector<std::byte>(4096, std::byte{2}));
  rig.write(0, 4096, std::vector<std::byte>(4096, std::byte{3}));
  rig.write(0, 8192, std::vector<std::byte>(4096, std::byte{4}));
  const Tensor to = rig.host(16384);
  rig.arrays->read(0, 0, to);
  const auto settle = [] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); };
  settle();
  EXPECT_EQ(faults->pieces - before, 2 + 2) << "two writes and the reads of the other pages";
  faults->hold = false;
  rig.in->synchronize();
  const ConstView seen = rig.device->host_read(to);
  const int expected[] = {1, 3, 4, 1};
  for (int page = 0; page < 4; ++page)
    EXPECT_EQ(static_cast<int>(seen.data()[page * 4096]), expected[page]) << "page " << page;
}

/// A drive reads ahead of a stream that waits, as far as there are buffers.
TEST(NvmeArrays, ReadsRunAheadOfTheStream) {
  const auto faults = std::make_shared<Faults>();
  NvmeArraysOptions options{.buffer_count = 3, .buffer_bytes = 4096};
  options.io.port = faulty(faults, make_thread_port);
  Rig rig({4096, 4096, 8192}, options);
  const auto other = rig.device->create_stream("gate");
  std::atomic<bool> open{false};
  other->launch("gate", {}, [&] {
    while (!open) std::this_thread::yield();
  });
  Event gate;
  other->record(gate);
  rig.in->wait(gate);
  const Tensor a = rig.host(4096), b = rig.host(4096), c = rig.host(8192);
  rig.arrays->read(0, 0, a);
  rig.arrays->read(1, 0, b);
  rig.arrays->read(2, 0, c);
  while (faults->pieces < 3) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(faults->pieces, 3) << "the fourth waits for a buffer";
  open = true;
  rig.in->synchronize();
  EXPECT_EQ(faults->pieces, 4);
}

TEST(NvmeArrays, AFlippedByteIsFound) {
  NvmeArraysOptions options{.buffer_count = 1, .buffer_bytes = 8192, .checksums = true};
  options.direct = false;
  Rig rig({20000}, options);
  rig.write(0, 0, std::vector<std::byte>(20000, std::byte{5}));
  rig.arrays->finish();
  std::string path;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(rig.folder.path()))
    if (entry.path().filename() == "arrays-0" && entry.file_size() > 0) path = entry.path();
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(9000);
  file.put(6);
  file.close();
  const std::string message = message_of<IoError>([&] { rig.read(0, 0, 20000); });
  EXPECT_NE(message.find(path), std::string::npos) << message;
  EXPECT_NE(message.find("offset 8192"), std::string::npos) << message;
}

TEST(NvmeArrays, TheHostLearnsOfAFailedWrite) {
  const auto faults = std::make_shared<Faults>();
  faults->code = ENOSPC;
  NvmeArraysOptions options{.buffer_count = 1, .buffer_bytes = 4096};
  options.io.port = faulty(faults, make_thread_port);
  Rig rig({4096}, options);
  rig.write(0, 0, std::vector<std::byte>(4096));
  const std::string message = message_of<IoError>([&] { rig.arrays->finish(); });
  EXPECT_NE(message.find("arrays-0: cannot write 4096 bytes at offset 0"), std::string::npos)
      << message;
  const Tensor to = rig.host(4096);
  EXPECT_THROW(rig.arrays->read(0, 0, to), IoError);
}

}  // namespace
}  // namespace zero3d::test
