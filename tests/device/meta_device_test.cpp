// The device that only counts: addresses without bytes, work that does not run, real host memory.
#include <gtest/gtest.h>

#include <cstring>

#include "zero3d/core/error.h"
#include "zero3d/device/device.h"

namespace zero3d {
namespace {

TEST(MetaDevice, CountsAndComputesNothing) {
  const std::unique_ptr<Device> device = make_meta_device();
  EXPECT_EQ(device->kind(), DeviceKind::meta);
  const std::unique_ptr<Stream> stream = device->create_stream("compute");
  const void* first = nullptr;
  {
    const Tensor a(device->memory(), *stream, DType::f32, Shape{std::int64_t{1} << 40},
                   Category::activations);
    const Tensor b(device->memory(), *stream, DType::f32, Shape{3}, Category::activations);
    first = a.view().data();
    EXPECT_NE(first, b.view().data());
    EXPECT_EQ(device->memory().use().current, (std::int64_t{4} << 40) + 12);
    device->fill_zero(*stream, a);
    EXPECT_THROW(device->copy(*stream, a, b), Error) << "sizes differ";
    EXPECT_THROW(device->host_read(b), Error);
    EXPECT_THROW(device->host_write(b), Error);
  }
  EXPECT_EQ(device->memory().use().current, 0);
  EXPECT_EQ(device->memory().use().peak, (std::int64_t{4} << 40) + 12);
  const Tensor again(device->memory(), *stream, DType::f32, Shape{3}, Category::activations);
  EXPECT_NE(again.view().data(), first) << "an address is never given twice";
  stream->launch("never", {}, [] { FAIL() << "ran"; });
  stream->synchronize();
}

TEST(MetaDevice, EventsAreDoneAtOnce) {
  const std::unique_ptr<Device> device = make_meta_device();
  const std::unique_ptr<Stream> stream = device->create_stream("compute");
  Event event;
  EXPECT_THROW(stream->wait(event), Error) << "never recorded";
  stream->record(event);
  EXPECT_TRUE(event.done());
  stream->wait(event);
  event.wait();
}

TEST(MetaDevice, HostMemoryIsReal) {
  const std::unique_ptr<Device> device = make_meta_device();
  const Tensor host(device->memory(Tier::pinned), kNoStream, DType::f32, Shape{4},
                    Category::batches);
  const View view = device->host_write(host);
  std::memset(view.data(), 1, view.bytes());
  EXPECT_EQ(device->host_read(host).data()[15], std::byte{1});
}

}  // namespace
}  // namespace zero3d
