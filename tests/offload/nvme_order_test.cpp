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

}  // namespace
}  // namespace zero3d::test
