// What a build without CUDA says of it.
#include <gtest/gtest.h>

#include "zero3d/core/error.h"
#include "zero3d/device/cuda/cuda_device.h"
#include "zero3d/device/cuda/cuda_stream.h"

namespace zero3d {
namespace {

TEST(NoCuda, SaysHowToBuildWithIt) {
  EXPECT_FALSE(built_with_cuda());
  EXPECT_EQ(cuda_device_count(), 0);
  const auto device = make_cpu_device({});
  const auto stream = device->create_stream("compute");
  const std::function<void()> asks[] = {
      [] { make_cuda_device({}); }, [] { cuda_device_of(0); },
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

}  // namespace
}  // namespace zero3d
