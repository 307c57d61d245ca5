// Inputs kept in host memory for recomputation, on a device of their own: who waits for whom, and
// what lies where meanwhile.
#include "zero3d/engine/kept_inputs.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "zero3d/device/readback.h"
#include "zero3d/kernels/elementwise.h"

namespace zero3d::test {
namespace {

/// A device with the three streams that kept inputs know.
class KeptInputsOfADevice : public testing::Test {
 protected:
  static std::unique_ptr<Device> make_device() {
    CpuDeviceOptions options;
    options.check_hazards = options.poison_on_free = true;
    return make_cpu_device(options);
  }

  /// One value filled with `value` by compute, and one undefined.
  Values filled(float value) {
    Values values(2);
    values[0] =
        Tensor(device_->memory(), *compute_, DType::f32, Shape{kElements}, Category::activations);
    kernels::fill(*compute_, values[0], value);
    return values;
  }
  void expect_filled(const Values& values, float value) {
    ASSERT_EQ(values.size(), 2u);
    EXPECT_FALSE(values[1].defined());
    const Readback copy(*compute_, values[0]);
    const ConstView view = copy.wait();
    for (std::int64_t i = 0; i < kElements; ++i) ASSERT_EQ(view.as<float>()[i], value) << i;
  }
  /// Compute stands still from here until open().
  void close() {
    gate_.emplace();
    compute_->launch("gate", {}, [gate = gate_->get_future().share()] { gate.wait(); });
  }
  void open() { gate_->set_value(); }
  bool ends(Stream& stream) {
    std::promise<void> ended;
    stream.then([&ended](const std::exception_ptr&) { ended.set_value(); });
    const auto state = ended.get_future().wait_for(std::chrono::seconds(20));
    if (state == std::future_status::ready) return true;
    open();
    stream.synchronize();
    close();
    return false;
  }

  static constexpr std::int64_t kElements = 1000;
  std::unique_ptr<Device> device_ = make_device();
  std::unique_ptr<Stream> compute_ = device_->create_stream("compute");
  std::unique_ptr<Stream> in_ = device_->create_stream("copy in");
  std::unique_ptr<Stream> out_ = device_->create_stream("copy out");
  TrackingResource& host_ = device_->memory(Tier::pinned);
  KeptInputs kept_{*device_, *compute_, {&host_, in_.get(), out_.get()}};
  std::optional<std::promise<void>> gate_;
};

TEST_F(KeptInputsOfADevice, TheHostWaitsForNothing) {
  close();
  kept_.keep(3, 0, filled(1), true);
  kept_.keep(4, 0, filled(2), true);
  kept_.fetch(4, 0);
  kept_.fetch(3, 0);
  const Values fourth = kept_.take(4, 0), third = kept_.take(3, 0);
  EXPECT_FALSE(kept_.has(3, 0));
  open();
  expect_filled(third, 1);
  expect_filled(fourth, 2);
}

TEST_F(KeptInputsOfADevice, MoveBesideTheWorkOfCompute) {
  kept_.keep(3, 0, filled(1), true);
  close();
  EXPECT_TRUE(ends(*out_)) << "on the way out";
  open();
  kept_.fetch(3, 0);
  close();
  EXPECT_TRUE(ends(*in_)) << "on the way in";
  open();
  expect_filled(kept_.take(3, 0), 1);
}

TEST_F(KeptInputsOfADevice, AreCopiesThatTheDeviceIsRidOfAtOnce) {
  constexpr std::int64_t kBytes = kElements * 4;
  Values values = filled(1);
  for (int block = 0; block < 3; ++block) kept_.keep(block, 0, values, true);
  EXPECT_EQ(device_->memory().use().current, kBytes);
  EXPECT_EQ(host_.use().current, 3 * kBytes);
  kernels::fill(*compute_, values[0], 5.0f);
  kept_.keep(3, 0, values, false);
  kernels::fill(*compute_, values[0], 6.0f);
  EXPECT_EQ(host_.use().current, 3 * kBytes);
  for (int block = 2; block >= 0; --block) {
    kept_.fetch(block, 0);
    EXPECT_EQ(host_.use().current, block * kBytes);
    expect_filled(kept_.take(block, 0), 1);
  }
  expect_filled(kept_.take(3, 0), 5);
}

/// Memory goes round while copies are under way: the checker sees who would be early.
TEST_F(KeptInputsOfADevice, LeaveMemoryInOrder) {
  for (int round = 0; round < 20; ++round) {
    for (int block = 0; block < 3; ++block) {
      kept_.keep(block, 0, filled(static_cast<float>(10 * round + block)), true);
      filled(-1);
    }
    kept_.fetch(2, 0);
    for (int block = 2; block >= 0; --block) {
      if (block > 0) kept_.fetch(block - 1, 0);
      Values taken = kept_.take(block, 0);
      kernels::add(*compute_, taken[0], filled(1)[0]);
      expect_filled(taken, static_cast<float>(10 * round + block));
    }
  }
  compute_->synchronize();
}

TEST_F(KeptInputsOfADevice, DroppedOnTheirWayLeaveMemoryInOrder) {
  for (int round = 0; round < 20; ++round) {
    for (int micro = 0; micro < 2; ++micro) kept_.keep(0, micro, filled(1), true);
    kept_.fetch(0, 0);
    kept_.drop(0);
    expect_filled(filled(7), 7);
    EXPECT_FALSE(kept_.has(0, 0));
    ASSERT_TRUE(kept_.has(0, 1)) << "of another micro-batch";
    kept_.drop(1);
  }
  EXPECT_EQ(host_.use().current, 0);
  EXPECT_EQ(device_->memory().use().current, 0);
}

}  // namespace
}  // namespace zero3d::test
