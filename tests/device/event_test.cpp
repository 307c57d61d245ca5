// Calls that follow an event.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "zero3d/device/event_state.h"

namespace zero3d {
namespace {

TEST(EventState, ThenCallsOncePassed) {
  EventState state;
  int calls = 0;
  state.then([&] { ++calls; });
  state.then([&] { calls += 10; });
  EXPECT_EQ(calls, 0);
  state.complete();
  EXPECT_EQ(calls, 11);
  state.then([&] { calls += 100; });
  EXPECT_EQ(calls, 111) << "at once";
}

TEST(EventState, ThenSeesTheError) {
  EventState state;
  std::exception_ptr seen;
  state.then([&] { seen = state.error(); });
  state.complete(std::make_exception_ptr(1));
  EXPECT_NE(seen, nullptr);
}

TEST(EventState, NoCallIsLostWhileThePointIsPassed) {
  for (int trial = 0; trial < 300; ++trial) {
    EventState state;
    std::atomic<int> calls{0};
    std::thread passer([&] { state.complete(); });
    for (int i = 0; i < 20; ++i) state.then([&] { ++calls; });
    state.await();
    passer.join();
    EXPECT_EQ(calls, 20);
  }
}

}  // namespace
}  // namespace zero3d
