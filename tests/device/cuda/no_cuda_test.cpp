// What a build without CUDA says of it.
#include <gtest/gtest.h>

#include "zero3d/core/error.h"
#include "zero3d/device/cuda/cuda_device.h"
#include "zero3d/device/cuda/cuda_stream.h"
#include "zero3d/device/device_choice.h"

namespace zero3d {
namespace {

TEST(NoCuda, SaysHowToBuildWithIt) {
  EXPECT_FALSE(built_with_cuda());
  EXPECT_EQ(cuda_device_count(), 0);
  const auto device = make_cpu_device({});
  const auto stream = device->create_stream("compute");
  const std::function<void()> asks[] = {
      [] { make_cuda_device({}); },
      [] { cuda_device_of(0); },
      [] { cuda_free_memory(0); },
      [] { device_kind(parse_device_choice("cuda")); },
      [] { make_device(DeviceKind::cuda, {}, 0); },
      [&] { enqueue_cuda(*stream, "kernel", std::initializer_list<Access>{}, {}); }};
  for (const auto& ask : asks) {
    try {
      ask();
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      EXPECT_NE(std::string(error.what()).find("-DZERO3D_CUDA=ON"), std::string::npos);
    }
  }
}

TEST(NoCuda, AutoIsTheCpu) {
  EXPECT_EQ(device_kind(parse_device_choice("auto")), DeviceKind::cpu);
  EXPECT_EQ(device_kind(parse_device_choice("cpu")), DeviceKind::cpu);
  EXPECT_EQ(make_device(DeviceKind::cpu, {}, 3)->kind(), DeviceKind::cpu);
  EXPECT_THROW(parse_device_choice("gpu"), Error);
}

}  // namespace
}  // namespace zero3d
