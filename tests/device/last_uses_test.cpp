#include "zero3d/device/last_uses.h"

#include <gtest/gtest.h>

#include "zero3d/device/device.h"

namespace zero3d {
namespace {

class LastUsesOfStreams : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device = make_cpu_device({});
  std::unique_ptr<Stream> a = device->create_stream("a");
  std::unique_ptr<Stream> b = device->create_stream("b");
  LastUses uses;
};

TEST_F(LastUsesOfStreams, NeighboursOfOneStreamAreOneRange) {
  uses.add(64, 128, *a, {});
  uses.add(192, 256, *a, {});
  EXPECT_EQ(uses.size(), 2u);
  uses.add(128, 192, *a, {});
  EXPECT_EQ(uses.size(), 1u);
  uses.add(256, 320, *b, {});
  EXPECT_EQ(uses.size(), 2u);
}

TEST_F(LastUsesOfStreams, OnlyOthersAreWaitedForAndEachOnce) {
  uses.add(0, 64, *a, {});
  uses.add(64, 128, *b, {});
  uses.add(128, 192, *a, {});
  EXPECT_EQ(uses.take(0, 64, *a).size(), 0u);
  uses.add(0, 64, *a, {});
  EXPECT_EQ(uses.take(0, 192, *b).size(), 1u) << "one point of one stream";
  EXPECT_EQ(uses.size(), 0u);
  EXPECT_EQ(uses.take(0, 192, kNoStream).size(), 0u) << "taken: no longer free";
}

TEST_F(LastUsesOfStreams, APartIsTakenAndTheRestKept) {
  Event event;
  b->record(event);
  uses.add(0, 256, *a, {event});
  EXPECT_EQ(uses.take(64, 128, *a).size(), 1u) << "the event, in every order";
  EXPECT_EQ(uses.size(), 2u);
  EXPECT_EQ(uses.take(64, 128, kNoStream).size(), 0u);
  EXPECT_EQ(uses.take(0, 64, kNoStream).size(), 2u);
  EXPECT_EQ(uses.take(128, 256, *b).size(), 2u);
}

TEST_F(LastUsesOfStreams, AStreamThatEndedIsNotWaitedFor) {
  uses.add(0, 64, *a, {});
  a.reset();
  EXPECT_EQ(uses.take(0, 64, *b).size(), 0u);
}

}  // namespace
}  // namespace zero3d
