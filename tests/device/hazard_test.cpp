// The hazard checker: a forgotten order is always reported, a given one never.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "zero3d/core/random.h"
#include "zero3d/device/device.h"
#include "zero3d/device/event_state.h"
#include "zero3d/device/hazard.h"
#include "zero3d/device/readback.h"

namespace zero3d {
namespace {

class Hazard : public ::testing::Test {
 protected:
  Hazard() {
    CpuDeviceOptions options;
    options.check_hazards = true;
    device = make_cpu_device(options);
    data = Tensor(device->memory(), kNoStream, DType::f32, Shape{1000}, Category::activations);
    a = device->create_stream("a");
    b = device->create_stream("b");
    c = device->create_stream("c");
  }

  static void write(Stream& stream, const View& view) {
    stream.launch("write", {writes(view)}, [] {});
  }
  static void read(Stream& stream, const View& view) {
    stream.launch("read", {reads(view)}, [] {});
  }
  static void order(Stream& first, Stream& second) {
    Event event;
    first.record(event);
    second.wait(event);
  }
  /// The message of the hazard that `body` must meet.
  template <typename Body>
  static std::string hazard(const Body& body) {
    try {
      body();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kHazard) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "no hazard reported";
    return "";
  }

  std::unique_ptr<Device> device;
  Tensor data;
  std::unique_ptr<Stream> a, b, c;
};

TEST_F(Hazard, AForgottenWaitIsReportedEveryTime) {
  for (int round = 0; round < 100; ++round) {
    write(*a, data);
    if (round % 2 == 1) a->launch("another task between", {}, [] {});
    Event recorded_but_not_waited_for;
    a->record(recorded_but_not_waited_for);
    hazard([&] { read(*b, data); });
    hazard([&] { write(*b, data); });
    a->synchronize();
    read(*b, data);
    hazard([&] { write(*a, data); });
    b->synchronize();
  }
}

TEST_F(Hazard, TheMessageNamesBothLaunchesAndTheBytes) {
  a->launch("reduce-scatter 7", {writes(data.view().flat(10, 20))}, [] {});
  const std::string text =
      hazard([&] { b->launch("adam", {reads(data.view().flat(25, 100))}, [] {}); });
  for (const char* part :
       {"'adam' on stream 'b' reads 20 bytes", "'reduce-scatter 7' on stream 'a' writes",
        "(bytes 0 to 20 of the 400 it declares)", "cpu of rank 0"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST_F(Hazard, ARefusedLaunchLeavesNoTrace) {
  write(*a, data);
  bool ran = false;
  hazard([&] { b->launch("refused", {reads(data)}, [&] { ran = true; }); });
  b->synchronize();
  EXPECT_FALSE(ran);
  write(*a, data);  // would conflict with the refused read
}

TEST_F(Hazard, ConcurrentReadsAndDisjointWritesAreFine) {
  write(*a, data);
  order(*a, *b);
  order(*a, *c);
  read(*b, data);
  read(*c, data);
  order(*b, *a);
  hazard([&] { write(*a, data); });  // c still reads
  order(*c, *a);
  write(*a, data);
  write(*a, data.view().flat(0, 500));
  order(*a, *b);
  write(*b, data.view().flat(500, 500));
  write(*a, data.view().flat(0, 500));
}

TEST_F(Hazard, OrderIsTransitiveAcrossThreeStreams) {
  write(*a, data);
  order(*a, *b);
  b->launch("hop", {}, [] {});
  order(*b, *c);
  write(*c, data);
  hazard([&] { read(*b, data); });
  order(*c, *a);
  read(*a, data);
}

TEST_F(Hazard, AnEventCoversOnlyWhatCameBeforeIt) {
  Event early;
  write(*a, data.view().flat(0, 10));
  a->record(early);
  write(*a, data.view().flat(10, 10));
  b->wait(early);
  read(*b, data.view().flat(0, 10));
  hazard([&] { read(*b, data.view().flat(10, 1)); });
  Event late = early;  // a copy names the early point, whatever is recorded into the other next
  a->record(early);
  c->wait(late);
  hazard([&] { read(*c, data.view().flat(10, 1)); });
  c->wait(early);
  read(*c, data.view().flat(10, 1));
}

TEST_F(Hazard, AHostWaitOrdersEveryStream) {
  write(*a, data);
  Event event;
  a->record(event);
  event.wait();
  write(*b, data);
  hazard([&] { read(*c, data); });
  b->synchronize();
  read(*c, data);
}

TEST_F(Hazard, HostAccessNeedsAWait) {
  const Tensor host(device->memory(Tier::pinned), kNoStream, DType::f32, Shape{1000},
                    Category::other);
  write(*a, host);
  hazard([&] { device->host_read(host); });
  a->synchronize();
  device->host_read(host);
  read(*a, host);
  device->host_read(host);
  EXPECT_NE(hazard([&] { device->host_write(host); }).find("host_write"), std::string::npos);
  a->synchronize();
  device->host_write(host);
}

TEST_F(Hazard, DeviceMemoryIsOutOfBoundsForTheHost) {
  for (const auto& access : {reads(data), writes(data.view().flat(999, 1))}) {
    bool ran = false;
    const std::string text =
        hazard([&] { a->host_task("add loss", {access}, [&] { ran = true; }); });
    for (const char* part : {"'add loss' on stream 'a'", "device memory"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
    a->synchronize();
    EXPECT_FALSE(ran);
  }
  write(*a, data);  // in bounds for a kernel
  a->synchronize();
  EXPECT_NE(hazard([&] { device->host_read(data); }).find("'host_read'"), std::string::npos);
  EXPECT_NE(hazard([&] { device->host_write(data); }).find("'host_write'"), std::string::npos);
  // Whoever was given the memory last, and without a checker too.
  data.reset();
  CpuDeviceOptions options;
  options.check_hazards = false;
  const auto unchecked = make_cpu_device(options);
  const Tensor other(unchecked->memory(), kNoStream, DType::f32, Shape{10}, Category::activations);
  hazard([&] { unchecked->host_read(other); });
  hazard([&] { unchecked->create_stream("d")->host_task("task", {reads(other)}, [] {}); });
}

TEST_F(Hazard, HostTasksReachHostMemoryInTheStreamsOrder) {
  const Tensor host(device->memory(Tier::pinned), kNoStream, DType::f32, Shape{10},
                    Category::other);
  a->host_task("fill", {writes(host)}, [view = host.view()] { view.as<float>()[3] = 5; });
  hazard([&] { b->host_task("look too early", {reads(host)}, [] {}); });
  device->copy(*a, data.view().flat(0, 10), host);
  const Readback back(*a, data.view().flat(3, 1));
  hazard([&] { device->host_read(host); });
  EXPECT_EQ(back.wait().as<float>()[0], 5);
  b->host_task("look", {reads(host)}, [] {});
}

TEST_F(Hazard, FreedMemoryReusedByAnotherStreamIsReported) {
  Tensor first(device->memory(), kNoStream, DType::f32, Shape{5000}, Category::activations);
  const void* bytes = first.view().data();
  write(*a, first);
  first.reset();
  Tensor second(device->memory(), kNoStream, DType::f32, Shape{5000}, Category::activations);
  ASSERT_EQ(second.view().data(), bytes) << "the test needs the same bytes again";
  hazard([&] { write(*b, second); });
  write(*a, second);  // the same stream's order
  order(*a, *b);
  write(*b, second);
}

TEST_F(Hazard, ADestroyedStreamWasWaitedFor) {
  write(*c, data);
  c.reset();
  write(*a, data);
}

TEST_F(Hazard, AWaitInsideATaskOrdersNothing) {
  write(*a, data);
  Event event;
  a->record(event);
  b->launch("waits when it runs", {}, [event] { event.wait(); });
  b->launch("then", {}, [] {});
  for (int i = 0; i < 100 && !event.done(); ++i) std::this_thread::yield();
  hazard([&] { read(*c, data); });
}

TEST_F(Hazard, OrderPassesThroughAnotherDeviceAndAnIoQueue) {
  CpuDeviceOptions options;
  options.rank = 1;
  options.check_hazards = true;
  const auto other = make_cpu_device(options);
  const auto far = other->create_stream("far");
  write(*a, data);
  order(*a, *far);
  far->launch("hop", {}, [] {});
  hazard([&] { read(*b, data); });
  order(*far, *b);
  read(*b, data);

  Tensor host(device->memory(Tier::pinned), kNoStream, DType::f32, Shape{1000}, Category::other);
  const auto declare = [&](const char* what, Access access, std::vector<Event> after) {
    Event done;
    done.begin_record().complete();
    device->declare(what, std::span<const Access>(&access, 1), after, done);
    return done;
  };
  const Event read_in = declare("nvme read", writes(host), {});
  hazard([&] { read(*a, host); });
  hazard([&] { declare("nvme read again", writes(host), {}); });
  a->wait(read_in);
  a->launch("use", {reads(host), writes(host)}, [] {});
  hazard([&] { declare("nvme write", reads(host), {read_in}); });
  Event used;
  a->record(used);
  declare("nvme write", reads(host), {used}).wait();
  write(*c, host);
}

TEST_F(Hazard, OrderPassesThroughAnUncheckedDevice) {
  CpuDeviceOptions options;
  options.check_hazards = false;
  const auto unchecked = make_cpu_device(options);
  const auto far = unchecked->create_stream("far");
  write(*a, data);
  order(*a, *far);
  hazard([&] { read(*b, data); });
  order(*far, *b);
  read(*b, data);
}

TEST_F(Hazard, HistoryIsDroppedOnceTheHostHasSeenIt) {
  HazardChecker checker("test");
  HazardChecker::Lane lane = checker.add_lane("lane");
  std::vector<std::byte> bytes(1 << 16);
  std::size_t most = 0;
  for (std::size_t step = 0; step < 200; ++step) {
    for (std::size_t i = 0; i < 100; ++i) {
      const Access access{bytes.data() + (step * 100 + i) * 3 % 65000, 2, true};
      checker.launch(lane, "write", std::span<const Access>(&access, 1));
    }
    checker.record(lane).observe();
    most = std::max(most, checker.ranges());
  }
  EXPECT_LE(most, 600u);
}

TEST_F(Hazard, RanksFeedTheirDevicesFromTheirOwnThreads) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([rank] {
      CpuDeviceOptions options;
      options.rank = rank;
      options.check_hazards = true;
      const auto own = make_cpu_device(options);
      const auto compute = own->create_stream("compute");
      const auto gather = own->create_stream("gather");
      const Tensor unit(own->memory(), kNoStream, DType::f32, Shape{256}, Category::other);
      for (int step = 0; step < 200; ++step) {
        Event gathered, released;
        own->fill_zero(*gather, unit);
        gather->record(gathered);
        compute->wait(gathered);
        compute->launch("use", {reads(unit)}, [] {});
        compute->record(released);
        gather->wait(released);
        if (step % 10 == 0) compute->synchronize();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(Hazard, DeclaredWorkOnAReusedLaneIsNotTakenForOrdered) {
  Tensor x(device->memory(Tier::pinned), kNoStream, DType::f32, Shape{64}, Category::other);
  Tensor y(device->memory(Tier::pinned), kNoStream, DType::f32, Shape{64}, Category::other);
  const auto declare = [&](const Tensor& tensor, std::vector<Event> after) {
    Event done;
    done.begin_record().complete();
    const Access access = writes(tensor.view());
    device->declare("io", std::span<const Access>(&access, 1), after, done);
    return done;
  };
  const Event first = declare(x, {});
  const Event second = declare(y, {});
  a->wait(second);
  hazard([&] { read(*a, x); });
  const Event third = declare(y, {second});
  b->wait(third);
  read(*b, y);
  hazard([&] { read(*b, x); });
  b->wait(first);
  read(*b, x);
}

/// Random programs over three streams: compared with reachability in the full graph of launches.
TEST_F(Hazard, AgreesWithReachabilityOnRandomPrograms) {
  struct Use {
    int launch;
    int begin, end;
    bool write;
  };
  int reported = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::uint64_t draw = 0;
    const auto random = [&](int below) {
      return static_cast<int>(hash_name(reinterpret_cast<const char*>(&(++draw += seed << 32)), 8) %
                              static_cast<std::uint64_t>(below));
    };
    CpuDeviceOptions options;
    options.check_hazards = true;
    options.inline_streams = true;
    const auto checked = make_cpu_device(options);
    std::vector<std::unique_ptr<Stream>> streams;
    for (int s = 0; s < 3; ++s) streams.push_back(checked->create_stream(std::to_string(s)));
    std::vector<std::byte> bytes(32);
    std::vector<std::vector<bool>> before;    // before[i][j]: launch j is ordered before launch i
    std::vector<std::vector<bool>> known(3);  // what the next launch of each stream comes after
    std::vector<bool> host;
    std::vector<Event> events;
    std::vector<std::vector<bool>> event_known;
    std::vector<Use> uses;
    const auto join = [](std::vector<bool>& into, const std::vector<bool>& from) {
      if (into.size() < from.size()) into.resize(from.size());
      for (std::size_t i = 0; i < from.size(); ++i) into[i] = into[i] || from[i];
    };
    for (int step = 0; step < 60; ++step) {
      const auto s = static_cast<std::size_t>(random(3));
      const int action = random(10);
      if (action < 5) {
        const int begin = random(31);
        const Use use{static_cast<int>(before.size()), begin, begin + 1 + random(31 - begin),
                      random(3) == 0};
        join(known[s], host);
        bool conflict = false;
        for (const Use& other : uses) {
          const bool overlap = other.begin < use.end && use.begin < other.end;
          const auto j = static_cast<std::size_t>(other.launch);
          const bool ordered = j < known[s].size() && known[s][j];
          conflict |= overlap && (use.write || other.write) && !ordered;
        }
        const Access access{bytes.data() + use.begin, static_cast<std::size_t>(use.end - use.begin),
                            use.write};
        bool thrown = false;
        try {
          streams[s]->launch("launch", std::span<const Access>(&access, 1), [] {});
        } catch (const Error&) {
          thrown = true;
        }
        ASSERT_EQ(thrown, conflict) << "seed " << seed << " step " << step;
        reported += thrown;
        if (thrown) continue;
        uses.push_back(use);
        before.push_back(known[s]);
        known[s].resize(before.size());
        known[s].back() = true;
      } else if (action < 7) {
        events.emplace_back();
        streams[s]->record(events.back());
        join(known[s], host);
        event_known.push_back(known[s]);
      } else if (action < 9 && !events.empty()) {
        const auto e = static_cast<std::size_t>(random(static_cast<int>(events.size())));
        streams[s]->wait(events[e]);
        join(known[s], event_known[e]);
      } else if (!events.empty() && random(4) == 0) {
        const auto e = static_cast<std::size_t>(random(static_cast<int>(events.size())));
        events[e].wait();
        join(host, event_known[e]);
      }
    }
  }
  EXPECT_GT(reported, 300);
}

}  // namespace
}  // namespace zero3d
