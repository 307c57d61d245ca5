// What every device promises of streams, events and copies, as one suite; memory_contract.h goes on
// with memory. A subject makes fresh devices; the suite checks order, events between every pair of
// recorder and waiter, errors and copies.
//
// Order is forced by gates that the host opens; a sleep only gives a wrong device time to show it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/device/event_state.h"
#include "zero3d/tests/support/host_access.h"

namespace zero3d::contract {

struct DeviceSubject {
  std::string name;
  /// A device of `rank` with a memory budget (TrackingResource::kUnlimited for none).
  std::function<std::unique_ptr<Device>(int rank, std::int64_t budget_bytes)> make;
  /// Tasks run after launch() has returned; gates may be closed at launch.
  bool asynchronous = true;
  /// Enqueues a write of `value` to all of an i32 view of device memory. Null: a loop of the host,
  /// which reaches that memory.
  std::function<void(Stream&, const View&, std::int32_t value)> fill;
  bool host_reaches_memory() const { return fill == nullptr; }
};
inline void PrintTo(const DeviceSubject& subject, std::ostream* out) { *out << subject.name; }

/// Holds a stream at a point until the host opens it.
class Gate {
 public:
  void close_on(Stream& stream) {
    stream.launch("gate", {}, [this, opened = opened_] {
      reached_.set_value();
      opened.wait();
    });
  }
  /// The stream has come to the gate.
  void await_reached() { reached_.get_future().wait(); }
  void open() { promise_.set_value(); }

 private:
  std::promise<void> reached_;
  std::promise<void> promise_;
  std::shared_future<void> opened_ = promise_.get_future().share();
};

class DeviceContract : public ::testing::TestWithParam<DeviceSubject> {
 protected:
  DeviceContract() : device(make(0)) {}

  std::unique_ptr<Device> make(int rank, std::int64_t budget = TrackingResource::kUnlimited) const {
    return GetParam().make(rank, budget);
  }
  std::unique_ptr<Stream> stream(const std::string& name) const {
    return device->create_stream(name);
  }
  bool asynchronous() const { return GetParam().asynchronous; }

  /// A device tensor holding first, first + 1, ...
  Tensor ramp(Device& on, std::int64_t numel, std::int32_t first) const {
    Tensor tensor(on.memory(), kNoStream, DType::i32, Shape{numel}, Category::other);
    test::upload(*on.create_stream("upload"), tensor, [&](const View& host) {
      std::iota(host.as<std::int32_t>(), host.as<std::int32_t>() + numel, first);
    });
    return tensor;
  }
  static std::vector<std::int32_t> values(Device& on, const Tensor& tensor) {
    const auto stream = on.create_stream("read back");
    const Readback copy(*stream, tensor);
    const std::int32_t* data = copy.wait().as<std::int32_t>();
    return {data, data + tensor.numel()};
  }
  static std::vector<std::int32_t> counted(std::int64_t numel, std::int32_t first) {
    std::vector<std::int32_t> expected(static_cast<std::size_t>(numel));
    std::iota(expected.begin(), expected.end(), first);
    return expected;
  }
  static std::string error_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  std::unique_ptr<Device> device;
};

TEST_P(DeviceContract, DescribesItselfAndItsStreams) {
  const auto compute = stream("compute");
  EXPECT_EQ(compute->name(), "compute");
  EXPECT_EQ(&compute->device(), device.get());
  EXPECT_NE(make(3)->description().find("3"), std::string::npos);
}

TEST_P(DeviceContract, TasksOfAStreamRunInOrderOneAtATime) {
  const auto compute = stream("compute");
  std::vector<int> order;  // no lock: one task at a time
  for (int i = 0; i < 200; ++i) compute->launch("push", {}, [&order, i] { order.push_back(i); });
  compute->synchronize();
  std::vector<int> expected(200);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST_P(DeviceContract, LaunchRecordAndWaitDoNotBlockTheHost) {
  if (!asynchronous()) GTEST_SKIP() << "runs tasks at launch";
  const auto first = stream("first");
  const auto second = stream("second");
  Gate gate;
  gate.close_on(*first);
  std::atomic<bool> ran{false};
  Event event;
  first->record(event);
  second->wait(event);
  second->launch("after", {}, [&] { ran = true; });
  EXPECT_TRUE(event.recorded());
  EXPECT_FALSE(event.done());
  EXPECT_FALSE(ran);
  gate.open();
  second->synchronize();
  EXPECT_TRUE(event.done());
  EXPECT_TRUE(ran);
}

TEST_P(DeviceContract, StreamsOverlap) {
  if (!asynchronous()) GTEST_SKIP() << "runs tasks at launch";
  // Each needs the other to be under way: a device that serialises its streams never ends.
  const auto first = stream("first");
  const auto second = stream("second");
  std::promise<void> a, b;
  first->launch("a", {}, [&] {
    a.set_value();
    b.get_future().wait();
  });
  second->launch("b", {}, [&] {
    b.set_value();
    a.get_future().wait();
  });
  first->synchronize();
  second->synchronize();
}

TEST_P(DeviceContract, AStreamWaitsForAnotherStream) {
  const auto first = stream("first");
  const auto second = stream("second");
  int value = 0;
  for (int round = 0; round < 50; ++round) {
    Event forth, back;
    first->launch("add", {}, [&] { value += 1; });
    first->record(forth);
    second->wait(forth);
    second->launch("double", {}, [&] { value = value * 2 % 1000003; });
    second->record(back);
    first->wait(back);
  }
  first->synchronize();
  int expected = 0;
  for (int round = 0; round < 50; ++round) expected = (expected + 1) * 2 % 1000003;
  EXPECT_EQ(value, expected);
}

TEST_P(DeviceContract, AStreamWaitsForAStreamOfAnotherDevice) {
  const auto other = make(1);
  const auto near = stream("near");
  const auto far = other->create_stream("far");
  std::vector<int> order;
  Event event, back;
  near->launch("near", {}, [&] { order.push_back(1); });
  near->record(event);
  far->wait(event);
  far->launch("far", {}, [&] { order.push_back(2); });
  far->record(back);
  near->wait(back);
  near->launch("near again", {}, [&] { order.push_back(3); });
  near->synchronize();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST_P(DeviceContract, AStreamWaitsForAForeignRecorder) {
  // An I/O queue: some thread that completes the event when its work is done.
  const auto compute = stream("compute");
  Event read_in;
  EventState& state = read_in.begin_record();
  int value = 0;
  std::thread queue([&] {
    value = 7;
    state.complete();
  });
  int seen = 0;
  compute->wait(read_in);
  compute->launch("use", {}, [&] { seen = value; });
  compute->synchronize();
  queue.join();
  EXPECT_EQ(seen, 7);
}

TEST_P(DeviceContract, TheHostWaitsForAnEvent) {
  const auto compute = stream("compute");
  int value = 0;
  Event event;
  compute->launch("set", {}, [&] { value = 1; });
  compute->record(event);
  event.wait();
  EXPECT_EQ(value, 1);
  EXPECT_TRUE(event.done());
  event.wait();  // again is fine
  const Event copy = event;
  compute->launch("set", {}, [&] { value = 2; });
  compute->record(event);
  copy.wait();  // still names the first point
  event.wait();
  EXPECT_EQ(value, 2);
}

TEST_P(DeviceContract, OneEventServesSeveralWaiters) {
  const auto source = stream("source");
  std::vector<std::unique_ptr<Stream>> sinks;
  for (const char* name : {"x", "y", "z"}) sinks.push_back(stream(name));
  std::vector<std::vector<int>> seen(3);
  int value = 0;
  for (int round = 1; round <= 40; ++round) {
    Event ready;
    source->launch("next", {}, [&value, round] { value = round; });
    source->record(ready);
    std::vector<Event> used(3);
    for (std::size_t s = 0; s < 3; ++s) {
      sinks[s]->wait(ready);
      sinks[s]->launch("see", {}, [&value, &list = seen[s]] { list.push_back(value); });
      sinks[s]->record(used[s]);
    }
    for (const Event& event : used) source->wait(event);
  }
  for (const auto& sink : sinks) sink->synchronize();
  std::vector<int> all(40);
  std::iota(all.begin(), all.end(), 1);
  for (const auto& list : seen) EXPECT_EQ(list, all);
}

TEST_P(DeviceContract, WaitingForAnEventNeverRecordedIsAHazard) {
  const auto compute = stream("compute");
  const Event never;
  EXPECT_FALSE(never.recorded());
  EXPECT_FALSE(never.done());
  const std::function<void()> waits[] = {[&] { compute->wait(never); }, [&] { never.wait(); }};
  for (const auto& wait : waits) {
    try {
      wait();
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kHazard) << error.what();
    }
  }
  compute->synchronize();  // the stream itself is unharmed
}

TEST_P(DeviceContract, TheFirstErrorOfAStreamStaysAndStopsIt) {
  const auto compute = stream("compute");
  int ran = 0;
  compute->launch("fine", {}, [&] { ++ran; });
  compute->launch("fails", {}, [] { throw_invalid("first error"); });
  compute->launch("skipped", {}, [&] { ++ran; });
  compute->launch("fails too", {}, [] { throw_invalid("second error"); });
  for (int i = 0; i < 2; ++i) EXPECT_EQ(error_of([&] { compute->synchronize(); }), "first error");
  compute->launch("skipped", {}, [&] { ++ran; });
  EXPECT_EQ(error_of([&] { compute->synchronize(); }), "first error");
  EXPECT_EQ(ran, 1);
}

TEST_P(DeviceContract, ErrorsTravelAlongEvents) {
  const auto first = stream("first");
  const auto second = stream("second");
  const auto other = make(1);
  const auto third = other->create_stream("third");
  const auto apart = stream("apart");
  Event before, after, relayed;
  first->launch("fine", {}, [] {});
  first->record(before);
  first->launch("fails", {}, [] { throw_invalid("cause"); });
  first->record(after);
  std::atomic<bool> ran{false};
  second->wait(after);
  second->launch("poisoned", {}, [&] { ran = true; });
  second->record(relayed);
  third->wait(relayed);
  third->launch("poisoned", {}, [&] { ran = true; });
  before.wait();  // the point before the failure is fine
  EXPECT_EQ(error_of([&] { after.wait(); }), "cause");
  EXPECT_EQ(error_of([&] { relayed.wait(); }), "cause");
  EXPECT_EQ(error_of([&] { second->synchronize(); }), "cause");
  EXPECT_EQ(error_of([&] { third->synchronize(); }), "cause");
  EXPECT_FALSE(ran);
  apart->wait(before);
  apart->launch("unharmed", {}, [&] { ran = true; });
  apart->synchronize();
  EXPECT_TRUE(ran);
}

TEST_P(DeviceContract, AForeignRecordersErrorPoisonsTheWaiter) {
  const auto compute = stream("compute");
  Event read_in;
  read_in.begin_record().complete(std::make_exception_ptr(IoError("shard.bin", 5, "short read")));
  compute->wait(read_in);
  bool ran = false;
  compute->launch("use", {}, [&] { ran = true; });
  EXPECT_NE(error_of([&] { compute->synchronize(); }).find("short read"), std::string::npos);
  EXPECT_FALSE(ran);
}

TEST_P(DeviceContract, AFailedStreamStillWaitsBeforeItsEventsPass) {
  if (!asynchronous()) GTEST_SKIP() << "runs tasks at launch";
  // Whoever sees the event, and frees memory for it, must find the other stream's work over.
  const auto slow = stream("slow");
  const auto failed = stream("failed");
  Gate gate;
  Event slow_done, all_done;
  failed->launch("fails", {}, [] { throw_invalid("cause"); });
  gate.close_on(*slow);
  std::atomic<bool> over{false};
  slow->launch("last", {}, [&] { over = true; });
  slow->record(slow_done);
  failed->wait(slow_done);
  failed->record(all_done);
  // Time for a stream that does not wait to show it.
  for (int i = 0; i < 20 && !all_done.done(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(all_done.done());
  gate.open();
  EXPECT_EQ(error_of([&] { all_done.wait(); }), "cause");
  EXPECT_TRUE(over);
}

TEST_P(DeviceContract, DestroyingAStreamFinishesItsWork) {
  std::atomic<int> ran{0};
  {
    const auto compute = stream("compute");
    for (int i = 0; i < 20; ++i) compute->launch("count", {}, [&] { ++ran; });
  }
  EXPECT_EQ(ran, 20);
}

TEST_P(DeviceContract, ATasksCapturesAreGoneWhenALaterEventPasses) {
  const auto compute = stream("compute");
  const auto held = std::make_shared<int>(1);
  Event event;
  compute->launch("holds", {}, [held] { EXPECT_EQ(*held, 1); });
  compute->record(event);
  event.wait();
  EXPECT_EQ(held.use_count(), 1);
}

TEST_P(DeviceContract, AStuckEventNamesStreamAndTask) {
  if (!asynchronous()) GTEST_SKIP() << "runs tasks at launch";
  const auto stuck = stream("stuck");
  const auto behind = stream("behind");
  Gate gate;
  Event event, later;
  stuck->launch("earlier", {}, [] {});
  gate.close_on(*stuck);
  stuck->record(event);
  behind->wait(event);
  behind->record(later);
  gate.await_reached();
  const std::string text = error_of([&] { later.state()->await(std::chrono::milliseconds(300)); });
  gate.open();
  for (const char* part : {"'behind'", "'stuck'", "in task 'gate'"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  later.wait();
}

TEST_P(DeviceContract, AWaitEndsOnlyWithoutProgress) {
  if (!asynchronous()) GTEST_SKIP() << "runs tasks at launch";
  const auto slow = stream("slow");
  const auto behind = stream("behind");
  Event event, later;
  for (int i = 0; i < 30; ++i)
    slow->launch("slow", {}, [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  slow->record(event);
  behind->wait(event);
  behind->record(later);
  later.state()->await(std::chrono::milliseconds(400));  // less than the 600 ms of work
  EXPECT_TRUE(later.done());
}

TEST_P(DeviceContract, CopiesBytesOfEverySize) {
  const auto compute = stream("compute");
  for (const std::int64_t numel : {0, 1, 2, 3, 17, 1023, 1024, 1025, 300007, 1 << 20}) {
    const Tensor source = ramp(*device, numel, 5);
    const Tensor target = ramp(*device, numel, -1);
    device->copy(*compute, target, source);
    compute->synchronize();
    EXPECT_EQ(values(*device, target), counted(numel, 5)) << numel;
    device->fill_zero(*compute, target);
    compute->synchronize();
    EXPECT_EQ(values(*device, target),
              std::vector<std::int32_t>(static_cast<std::size_t>(numel), 0));
  }
}

TEST_P(DeviceContract, CopiesTouchNothingBeside) {
  const auto compute = stream("compute");
  const Tensor source = ramp(*device, 100, 0);
  const Tensor target = ramp(*device, 100, 1000);
  device->copy(*compute, target.view().flat(10, 7), source.view().flat(50, 7));
  device->fill_zero(*compute, target.view().flat(90, 3));
  compute->synchronize();
  auto expected = counted(100, 1000);
  for (std::size_t i = 0; i < 7; ++i) expected[10 + i] = static_cast<std::int32_t>(50 + i);
  for (std::size_t i = 90; i < 93; ++i) expected[i] = 0;
  EXPECT_EQ(values(*device, target), expected);
}

TEST_P(DeviceContract, CopiesBetweenHostAndDeviceMemory) {
  const auto compute = stream("compute");
  Tensor host(device->memory(Tier::pinned), kNoStream, DType::i32, Shape{5003}, Category::other);
  std::iota(host.view().as<std::int32_t>(), host.view().as<std::int32_t>() + 5003, 1);
  const Tensor on_device = ramp(*device, 5003, 0);
  Tensor back(device->memory(Tier::pinned), kNoStream, DType::i32, Shape{5003}, Category::other);
  device->copy(*compute, on_device, host);
  device->copy(*compute, back, on_device);
  compute->synchronize();
  EXPECT_EQ(0, std::memcmp(back.view().data(), host.view().data(), back.view().bytes()));
}

TEST_P(DeviceContract, RefusesCopiesOfUnequalOrOverlappingBytes) {
  const auto compute = stream("compute");
  const Tensor tensor = ramp(*device, 10, 0);
  const auto part = [&](std::int64_t begin, std::int64_t count) {
    return tensor.view().flat(begin, count);
  };
  EXPECT_THROW(device->copy(*compute, part(0, 2), part(5, 3)), Error);
  EXPECT_THROW(device->copy(*compute, part(0, 3), part(2, 3)), Error);
  device->copy(*compute, part(0, 3), part(3, 3));
  compute->synchronize();
}

TEST_P(DeviceContract, CopiesFollowStreamOrderAndEvents) {
  const auto first = stream("copy in");
  const auto second = stream("copy out");
  const Tensor a = ramp(*device, 1000, 1);
  const Tensor b = ramp(*device, 1000, 0);
  const Tensor c = ramp(*device, 1000, 0);
  Event event;
  device->copy(*first, b, a);
  first->record(event);
  second->wait(event);
  device->copy(*second, c, b);
  second->record(event);
  first->wait(event);
  device->fill_zero(*first, b);
  first->synchronize();
  second->synchronize();
  EXPECT_EQ(values(*device, c), counted(1000, 1));
  EXPECT_EQ(values(*device, b), std::vector<std::int32_t>(1000, 0));
}

}  // namespace zero3d::contract
