// The order of a store's reads and writes of one tile that moves from slot to slot.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "faulty_port.h"
#include "zero3d/offload/nvme_state_store.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

TEST(NvmeStateStore, ATileIsReadAfterItsWriteFromAnotherSlot) {
  const TemporaryFolder folder;
  CpuDeviceOptions checked;
  checked.check_hazards = true;
  const auto device = make_cpu_device(checked);
  const auto stream = device->create_stream("update");
  const std::vector<RecordLayout> records = {RecordLayout(2048, 1024, std::vector<RecordPart>(1))};
  const auto faults = std::make_shared<Faults>();
  faults->reads = false;  // writes are held back
  faults->hold = true;
  NvmeStateOptions options;
  options.paths = {folder.path().string()};
  options.buffer_count = 2;
  options.io.port = faulty(faults, make_thread_port);
  const auto store = make_nvme_state_store(options)(*device, records);

  const Tile whole{0, 0, 2048}, half{0, 1024, 1024};
  Event ready, used, again, after;
  const View bytes = store->open(0, whole, ready, true);
  EXPECT_FALSE(ready.recorded()) << "nothing to wait for";
  stream->launch("fill", {writes(bytes)},
                 [bytes] { std::fill(bytes.data(), bytes.data() + bytes.bytes(), std::byte{7}); });
  stream->record(used);
  store->close(0, whole, used, true);
  const View part = store->open(1, half, again, true);
  ASSERT_TRUE(again.recorded());
  stream->synchronize();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(again.done()) << "its bytes are not on the drive yet";
  faults->hold = false;
  stream->wait(again);
  std::byte seen{};
  stream->launch("look", {reads(part)}, [part, &seen] { seen = part.data()[part.bytes() - 1]; });
  stream->record(after);
  store->close(1, half, after, true);
  stream->synchronize();
  EXPECT_EQ(seen, std::byte{7});
}

/// A checkpoint's copy has what was there when it was asked for, however late it is read.
TEST(NvmeStateStore, AnUpdateOfATileWaitsForItsCopy) {
  const TemporaryFolder folder;
  CpuDeviceOptions checked;
  checked.check_hazards = true;
  const auto device = make_cpu_device(checked);
  const auto stream = device->create_stream("update");
  const std::vector<RecordLayout> records = {RecordLayout(2048, 1024, std::vector<RecordPart>(1))};
  const auto faults = std::make_shared<Faults>();
  faults->writes = false;  // reads are held back
  NvmeStateOptions options;
  options.paths = {folder.path().string()};
  options.buffer_count = 2;
  options.io.port = faulty(faults, make_thread_port);
  const auto store = make_nvme_state_store(options)(*device, records);
  const Tile whole{0, 0, 2048}, half{0, 1024, 1024};
  const auto write = [&](int slot, const Tile& tile, std::byte value) {
    Event ready, used;
    const View bytes = store->open(slot, tile, ready, false);
    if (ready.recorded()) stream->wait(ready);
    stream->launch("fill", {writes(bytes)}, [bytes, value] {
      std::fill(bytes.data(), bytes.data() + bytes.bytes(), value);
    });
    stream->record(used);
    store->close(slot, tile, used, true);
  };
  write(0, whole, std::byte{7});
  stream->synchronize();
  faults->hold = true;
  const Tensor memory(device->memory(Tier::pinned), kNoStream, DType::u8, Shape{64 << 10},
                      Category::other);
  const View target = memory.view().flat(0, 4096);
  const Event copied = store->snapshot(half, target, Event());
  write(1, whole, std::byte{9});
  Event written;
  store->open(1, whole, written, false);  // once its slot is on the drive
  stream->synchronize();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(copied.done());
  EXPECT_FALSE(written.done()) << "the copy has not been read yet";
  faults->hold = false;
  written.wait();
  EXPECT_TRUE(copied.done());
  std::byte seen{};
  stream->wait(copied);
  stream->launch("look", {reads(target)}, [target, &seen] { seen = target.data()[100]; });
  stream->synchronize();
  EXPECT_EQ(seen, std::byte{7});
}

}  // namespace
}  // namespace zero3d::test
