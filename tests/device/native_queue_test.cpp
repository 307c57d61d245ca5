// Points that a device passes by itself, and a stream with a device's queue behind it.
#include "zero3d/device/native_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/device/cpu/cpu_stream.h"
#include "zero3d/device/device.h"

namespace zero3d {
namespace {

class FakePoint final : public NativePoint {
 public:
  bool passed() override {
    if (fails) throw Error(ErrorKind::kInternal, "the device fell off the bus");
    return over;
  }
  std::atomic<bool> over{false};
  std::atomic<bool> fails{false};
};

std::string error_of(const EventState& state) { return message_of(state.error()); }

struct HandedOn {
  const std::shared_ptr<EventState> state = std::make_shared<EventState>();
  const std::shared_ptr<FakePoint> point = std::make_shared<FakePoint>();
  void hand_on(std::exception_ptr error = nullptr) const { state->hand_on(point, error); }
};

TEST(NativePoint, IsDoneOnceTheDeviceHasPassedIt) {
  const HandedOn event;
  EXPECT_FALSE(event.state->done());
  EXPECT_EQ(event.state->handed_on().point, nullptr);
  event.hand_on();
  EXPECT_FALSE(event.state->done());
  EXPECT_EQ(event.state->handed_on().point, event.point);
  event.point->over = true;
  EXPECT_TRUE(event.state->done());
  EXPECT_EQ(event.state->error(), nullptr);
}

TEST(NativePoint, WakesWhoSleptBeforeItWasHandedOnAndWhoSleepsAfter) {
  const HandedOn event;
  std::thread before([&] { event.state->await(std::chrono::seconds(20)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  event.hand_on();
  std::thread after([&] { event.state->await(std::chrono::seconds(20)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  event.point->over = true;
  before.join();
  after.join();
}

TEST(NativePoint, CallsThatFollowDoSoWithoutAWaiter) {
  const HandedOn event;
  std::promise<void> early, late;
  event.state->then([&] { early.set_value(); });
  event.hand_on();
  event.state->then([&] { late.set_value(); });
  std::future<void> first = early.get_future();
  EXPECT_EQ(first.wait_for(std::chrono::milliseconds(5)), std::future_status::timeout);
  event.point->over = true;
  first.wait();
  late.get_future().wait();
}

TEST(NativePoint, AwaitingTheHandOnWaitsForNoMore) {
  const HandedOn event;
  std::thread waiter([&] { event.state->await_hand_on(std::chrono::seconds(20)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  event.hand_on();
  waiter.join();
  EXPECT_FALSE(event.state->done());
  EXPECT_THROW(event.state->await(std::chrono::milliseconds(20)), Error) << "not passed";
  const auto passed = std::make_shared<EventState>();
  passed->complete();
  passed->await_hand_on(std::chrono::seconds(20));
}

TEST(NativePoint, CarriesTheFirstErrorOfBothSides) {
  const HandedOn device, both;
  device.hand_on();
  device.point->fails = true;
  device.state->await(std::chrono::seconds(20));
  EXPECT_EQ(error_of(*device.state), "the device fell off the bus");
  both.hand_on(std::make_exception_ptr(Error(ErrorKind::kInvalid, "no such kernel")));
  EXPECT_EQ(message_of(both.state->handed_on().error), "no such kernel");
  both.point->fails = true;
  EXPECT_TRUE(both.state->done());
  EXPECT_EQ(error_of(*both.state), "no such kernel");
}

/// Writes down what it is asked.
class FakeQueue final : public NativeQueue {
 public:
  void enter() override { add("enter"); }
  void settle() override {
    add("settle");
    if (fails) throw Error(ErrorKind::kInternal, "settling failed");
  }
  bool wait(NativePoint& point) override {
    if (dynamic_cast<FakePoint*>(&point) == nullptr) return false;
    add("wait");
    return true;
  }
  std::shared_ptr<NativePoint> record() override {
    add("record");
    last = std::make_shared<FakePoint>();
    last->over = passes.load();
    return last;
  }
  void add(const std::string& what) {
    const std::lock_guard lock(mutex_);
    calls_ += (calls_.empty() ? "" : " ") + what;
  }
  std::string calls() {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  std::atomic<bool> passes{true};
  std::atomic<bool> fails{false};
  std::shared_ptr<FakePoint> last;

 private:
  std::mutex mutex_;
  std::string calls_;
};

class NativeStream : public ::testing::Test {
 protected:
  CpuStreamOptions options() {
    CpuStreamOptions result;
    result.bounds = &bounds;
    result.kind = DeviceKind::cuda;
    result.native = queue;
    return result;
  }
  const std::unique_ptr<Device> device = make_cpu_device({});
  ArenaResource arena;
  const HostBounds bounds{arena};
  const std::shared_ptr<FakeQueue> queue = std::make_shared<FakeQueue>();
};

TEST_F(NativeStream, HandsOnWithoutWaitingAndSettlesBeforeTheHostsTasks) {
  {
    QueuedStream stream(*device, "compute", options());
    stream.launch_native("kernel", {}, [&] { queue->add("kernel"); });
    stream.launch("loop", {}, [&] { queue->add("loop"); });
    stream.host_task("task", {}, [&] { queue->add("task"); });
    stream.launch_native("kernel", {}, [&] { queue->add("kernel"); });
    Event event;
    stream.record(event);
    event.wait();
  }
  EXPECT_EQ(queue->calls(), "enter kernel settle loop settle task kernel record settle");
}

TEST_F(NativeStream, LeavesWaitsForPointsOfTheDeviceToTheDevice) {
  queue->passes = false;
  QueuedStream stream(*device, "compute", options());
  Event own, foreign;
  stream.record(own);
  stream.wait(own);  // never passed: only a device could go on
  EventState& state = foreign.begin_record();
  stream.wait(foreign);
  std::promise<void> reached;
  stream.launch_native("kernel", {}, [&] { reached.set_value(); });
  std::future<void> future = reached.get_future();
  EXPECT_EQ(future.wait_for(std::chrono::milliseconds(5)), std::future_status::timeout)
      << "a point of no device is the worker's to wait for";
  state.complete();
  future.wait();
  EXPECT_EQ(queue->calls(), "enter record wait");
}

TEST_F(NativeStream, CallsFollowTheHandOnOrTheEndOfWork) {
  queue->passes = false;
  QueuedStream stream(*device, "compute", options());
  std::promise<void> handed_on;
  std::promise<void> over;
  stream.then([&](const std::exception_ptr&) { over.set_value(); });
  stream.then_handed_on([&](const std::exception_ptr&) { handed_on.set_value(); });
  handed_on.get_future().wait();
  std::future<void> end = over.get_future();
  EXPECT_EQ(end.wait_for(std::chrono::milliseconds(5)), std::future_status::timeout);
  queue->last->over = true;
  end.wait();
}

TEST_F(NativeStream, WhatTheDeviceSaysStopsTheStream) {
  QueuedStream stream(*device, "compute", options());
  queue->fails = true;
  bool ran = false;
  stream.launch("loop", {}, [&] { ran = true; });
  stream.launch_native("kernel", {}, [&] { ran = true; });
  try {
    stream.synchronize();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "settling failed");
  }
  EXPECT_FALSE(ran);
}

TEST_F(NativeStream, HostCodeStaysOutOfDeviceMemory) {
  QueuedStream stream(*device, "compute", options());
  void* data = arena.allocate(64);
  const Access touched{data, 64, true};
  EXPECT_THROW(stream.launch("loop", {&touched, 1}, [] {}), Error);
  stream.launch_native("kernel", {&touched, 1}, [] {});
  stream.synchronize();
  arena.deallocate(data, 64);
}

}  // namespace
}  // namespace zero3d
