// Where the shards of parameters lie, and what buffers that takes.
#include <gtest/gtest.h>

#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/engine/zero/shard_home.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

TEST(ShardPlan, KeepsUnitsInHostMemoryInForwardOrderAsFarAsTheyFit) {
  std::vector<std::vector<ParameterSpec>> blocks;
  for (const std::int64_t numel : {5120, 1024, 4096, 3072, 12288, 1024}) {
    ParameterSpec& spec = blocks.emplace_back().emplace_back();
    spec.name = concat("p", blocks.size());
    spec.shape = Shape{numel};
  }
  const ParamLayout layout(blocks, {});
  using enum ShardPlace;
  ParameterOffload offload;
  EXPECT_EQ(plan_shards(layout, offload, DType::f32).places, std::vector<ShardPlace>(6, device));
  offload.device = OffloadDevice::cpu;
  EXPECT_EQ(plan_shards(layout, offload, DType::f32).places, std::vector<ShardPlace>(6, host));
  offload.device = OffloadDevice::nvme;
  const auto plan = [&](std::int64_t in_cpu, std::int64_t elements, DType dtype) {
    offload.max_in_cpu = in_cpu;
    offload.buffer_elements = elements;
    return plan_shards(layout, offload, dtype);
  };
  EXPECT_EQ(plan(0, 1 << 30, DType::f32).places, std::vector<ShardPlace>(6, drive));
  EXPECT_EQ(plan(0, 1 << 30, DType::f32).buffer_bytes, 12288 * 4);
  EXPECT_EQ(plan(0, 3000, DType::bf16).buffer_bytes, 8192) << "whole pages";
  // 5,120 and 1,024 fit; 4,096 is passed over; 3,072 just fits.
  const ShardPlan some = plan(9216, 1 << 30, DType::bf16);
  EXPECT_EQ(some.places, (std::vector<ShardPlace>{host, host, drive, host, drive, drive}));
  EXPECT_EQ(some.buffer_bytes, 12288 * 2);
  EXPECT_EQ(plan(1 << 30, 1 << 30, DType::f32).buffer_bytes, 0) << "no unit is on a drive";
  const auto refused = [&](const char* key, auto& field, auto value) {
    const auto kept = std::exchange(field, value);
    const std::string message =
        message_of<Error>([&] { plan_shards(layout, offload, DType::f32); });
    EXPECT_EQ(message.find(concat("offload_param.", key, " is ", value, "; expected ")), 0u)
        << message;
    field = kept;
  };
  refused("buffer_count", offload.buffer_count, 0);
  refused("buffer_count", offload.buffer_count, 65537);
  refused("buffer_size", offload.buffer_elements, std::int64_t{0});
  refused("max_in_cpu", offload.max_in_cpu, std::int64_t{-1});
}

}  // namespace
}  // namespace zero3d::test
