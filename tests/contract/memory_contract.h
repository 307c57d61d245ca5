// What every device promises of its memory: alignment, counts and the budget, and whoever gets
// bytes comes after those who used them.
#pragma once

#include <random>
#include <utility>

#include "zero3d/tests/contract/device_contract.h"

namespace zero3d::contract {

/// Enqueues a write of all of `view`.
inline void write_all(const DeviceSubject& subject, Stream& stream, const View& view,
                      std::int32_t value) {
  if (subject.fill) return subject.fill(stream, view, value);
  stream.launch("write", {writes(view)},
                [view, value] { std::fill_n(view.as<std::int32_t>(), view.numel(), value); });
}

class MemoryContract : public DeviceContract {
 protected:
  /// Enqueues a write of all of `tensor`.
  static void write(Stream& stream, const Tensor& tensor, std::int32_t value) {
    write_all(GetParam(), stream, tensor, value);
  }
  static Tensor allocate(Device& on, const MemoryOrder& order, std::int64_t numel) {
    return Tensor(on.memory(), order, DType::i32, Shape{numel}, Category::activations);
  }
  Tensor allocate(const MemoryOrder& order, std::int64_t numel) const {
    return allocate(*device, order, numel);
  }
};

TEST_P(MemoryContract, BytesAreAlignedDistinctAndCounted) {
  TrackingResource& memory = device->memory();
  std::vector<Buffer> buffers;
  std::int64_t sum = 0;
  for (const std::size_t bytes : {1, 63, 64, 65, 4096, 1000003, 0, 0, 7}) {
    buffers.emplace_back(memory, kNoStream, bytes,
                         bytes % 2 == 0 ? Category::parameters : Category::gradients);
    sum += static_cast<std::int64_t>(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffers.back().data()) % 64, 0u);
    EXPECT_EQ(memory.use().current, sum);
  }
  std::vector<std::byte*> starts;
  for (const Buffer& buffer : buffers) starts.push_back(buffer.data());
  std::sort(starts.begin(), starts.end());
  EXPECT_EQ(std::unique(starts.begin(), starts.end()), starts.end());
  EXPECT_EQ(memory.use().categories[Category::parameters].current, 64 + 4096);
  buffers.clear();
  EXPECT_EQ(memory.use().current, 0);
  EXPECT_EQ(memory.use().peak, sum);
  EXPECT_EQ(memory.use().categories[Category::parameters].peak, 64 + 4096);
  memory.reset_peak();
  EXPECT_EQ(memory.use().peak, 0);
}

TEST_P(MemoryContract, TheBudgetHoldsToTheByte) {
  const auto small = make(2, 1000);
  TrackingResource& memory = small->memory();
  EXPECT_EQ(memory.budget(), 1000);
  Buffer a(memory, kNoStream, 600, Category::parameters);
  EXPECT_EQ(memory.available(), 400);
  Buffer b(memory, kNoStream, 400, Category::gradients);
  EXPECT_EQ(memory.available(), 0);
  EXPECT_THROW(Buffer(memory, kNoStream, 1, Category::activations), OutOfMemory);
  Buffer nothing(memory, kNoStream, 0, Category::activations);
  b.reset();
  EXPECT_THROW(Buffer(memory, kNoStream, 401, Category::activations), OutOfMemory);
  EXPECT_EQ(memory.use().current, 600) << "a refusal must not count";
  Buffer c(memory, kNoStream, 400, Category::activations);
  EXPECT_EQ(memory.use().peak, 1000);
  EXPECT_EQ(device->memory().budget(), TrackingResource::kUnlimited);
}

TEST_P(MemoryContract, OutOfMemorySaysWhatIsHeldAndWhatToDo) {
  const auto small = make(2, 1 << 20);
  Buffer a(small->memory(), kNoStream, 200 << 10, Category::gradients);
  Buffer b(small->memory(), kNoStream, 700 << 10, Category::parameters);
  try {
    Buffer c(small->memory(), kNoStream, 300 << 10, Category::activations);
    FAIL() << "no error";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.bytes(), 300 << 10);
    EXPECT_NE(error.tier().find("rank 2"), std::string::npos);
    const std::string text = error.what();
    for (const char* part : {"300.00 KiB", "activations", "900.00 KiB", "1.00 MiB",
                             "parameters 700.00 KiB, gradients 200.00 KiB", "--device-memory"})
      EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
}

TEST_P(MemoryContract, ServesSeveralThreads) {
  TrackingResource& memory = device->memory();
  std::vector<std::thread> threads;
  std::atomic<int> broken{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 200; ++i) {
        Buffer a(memory, kNoStream, 64 + 64 * (i % 7), Category::other);
        Buffer b(memory, kNoStream, 100000 + i, Category::other);
        if (!GetParam().host_reaches_memory()) continue;
        std::memset(a.data(), t, a.bytes());
        std::memset(b.data(), t, b.bytes());
        for (std::size_t k = 0; k < a.bytes(); ++k) broken += a.data()[k] != std::byte(t);
        broken += b.data()[b.bytes() - 1] != std::byte(t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(broken, 0);
  EXPECT_EQ(memory.use().current, 0);
}

TEST_P(MemoryContract, AStreamGetsItsBytesBackAtOnce) {
  if (!asynchronous()) GTEST_SKIP() << "runs tasks at launch";
  const auto compute = stream("compute");
  Gate gate;
  gate.close_on(*compute);
  Tensor first = allocate(*compute, 1000);
  const std::byte* bytes = first.view().data();
  write(*compute, first, 1);
  first.reset();
  const Tensor second =
      allocate(*compute, 1000);  // before the gate opens: the host waits for nothing
  EXPECT_EQ(second.view().data(), bytes);
  EXPECT_EQ(device->memory().use().peak, 4000);
  write(*compute, second, 2);
  gate.open();
  compute->synchronize();
  EXPECT_EQ(values(*device, second), std::vector<std::int32_t>(1000, 2));
}

TEST_P(MemoryContract, AnotherStreamGetsThemAndWaits) {
  if (!asynchronous()) GTEST_SKIP() << "runs tasks at launch";
  const auto compute = stream("compute");
  const auto gather = stream("gather");
  Gate gate;
  gate.close_on(*compute);
  Tensor first = allocate(*compute, 1000);
  const std::byte* bytes = first.view().data();
  write(*compute, first, 1);
  first.reset();
  const Tensor second = allocate(*gather, 1000);
  ASSERT_EQ(second.view().data(), bytes) << "the test needs the same bytes again";
  write(*gather, second, 2);
  Event written;
  gather->record(written);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(written.done()) << "before the last use of the bytes";
  gate.open();
  gather->synchronize();
  EXPECT_EQ(values(*device, second), std::vector<std::int32_t>(1000, 2));
}

TEST_P(MemoryContract, TheHostGetsThemOnceTheyAreFree) {
  const auto compute = stream("compute");
  std::atomic<bool> used{false};
  Tensor first = allocate(*compute, 1000);
  const std::byte* bytes = first.view().data();
  write(*compute, first, 1);
  compute->launch("slow", {}, [&used] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    used = true;
  });
  first.reset();
  const Tensor second = allocate(kNoStream, 1000);
  ASSERT_EQ(second.view().data(), bytes) << "the test needs the same bytes again";
  EXPECT_TRUE(used);
  const auto other = stream("other");
  write(*other, second, 2);  // ordered after the slow use, since the host waited for it
  other->synchronize();
}

TEST_P(MemoryContract, AStreamThatEndedUsesNothing) {
  const auto compute = stream("compute");
  auto gone = stream("gone");
  Tensor first = allocate(*gone, 1000);
  const std::byte* bytes = first.view().data();
  write(*gone, first, 1);
  gone->synchronize();
  gone.reset();
  first.reset();
  const Tensor second = allocate(*compute, 1000);
  EXPECT_EQ(second.view().data(), bytes);
  write(*compute, second, 2);
  compute->synchronize();
  EXPECT_EQ(values(*device, second), std::vector<std::int32_t>(1000, 2));
}

TEST_P(MemoryContract, AUseElsewhereKeepsTheBytesBack) {
  if (!asynchronous()) GTEST_SKIP() << "runs tasks at launch";
  const auto compute = stream("compute");
  const auto copy_out = stream("copy out");
  Gate gate;
  gate.close_on(*copy_out);
  Tensor first = allocate(*compute, 1000);
  const std::byte* bytes = first.view().data();
  write(*compute, first, 1);
  Event written, copied;
  compute->record(written);
  copy_out->wait(written);
  const Tensor copy = allocate(*copy_out, 1000);
  device->copy(*copy_out, copy, first);
  copy_out->record(copied);
  first.used_on(copied);
  first.reset();
  EXPECT_EQ(device->memory().use().parked, 4000);
  EXPECT_EQ(device->memory().use().current, 4000) << "the copy alone";
  Tensor second = allocate(*compute, 1000);  // there is room elsewhere: nobody waits
  EXPECT_NE(second.view().data(), bytes);
  write(*compute, second, 2);
  compute->synchronize();
  second.reset();
  gate.open();
  copied.wait();
  const Tensor third = allocate(*compute, 1000);
  EXPECT_EQ(device->memory().use().parked, 0) << "the use is over";
  EXPECT_EQ(values(*device, copy), std::vector<std::int32_t>(1000, 1));
}

TEST_P(MemoryContract, TheBudgetCountsWhatIsKeptBackAndTakesItWhenNeeded) {
  if (!asynchronous()) GTEST_SKIP() << "runs tasks at launch";
  const auto small = make(0, 4000);
  const auto compute = small->create_stream("compute");
  const auto copy_out = small->create_stream("copy out");
  Gate gate;
  gate.close_on(*copy_out);
  Tensor first = allocate(*small, *compute, 600);
  Event used;
  copy_out->record(used);
  first.used_on(used);
  first.reset();
  const Tensor second = allocate(*small, *compute, 400);
  EXPECT_EQ(small->memory().use().parked, 2400) << "the rest of the budget was enough";
  write(*compute, second, 2);
  compute->synchronize();
  const Tensor third = allocate(*small, *compute, 600);
  EXPECT_EQ(small->memory().use().parked, 0);
  EXPECT_EQ(small->memory().use().peak, 4000);
  EXPECT_THROW(allocate(*small, *compute, 1), OutOfMemory);
  write(*compute, third, 3);
  Event written;
  compute->record(written);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(written.done()) << "before the use elsewhere is over";
  gate.open();
  compute->synchronize();
  EXPECT_EQ(values(*small, third), std::vector<std::int32_t>(600, 3));
}

TEST_P(MemoryContract, AUseThatWasNeverRecordedIsRefused) {
  Tensor tensor = allocate(kNoStream, 10);
  EXPECT_THROW(tensor.used_on(Event()), Error);
}

/// A program of three streams that give back their memory at once, whatever still uses it: every
/// task finds what the one before it left, and the counts are those of the calls.
class MemoryProgram {
 public:
  MemoryProgram(const DeviceSubject& subject, Device& device) : subject_(subject), device_(device) {
    for (const char* name : {"a", "b", "c"}) streams_.push_back(device.create_stream(name));
  }
  /// `lock_step`: the host waits for everything after every allocation.
  void run(int steps, bool lock_step) {
    std::minstd_rand random(11);
    for (int step = 0; step < steps; ++step) {
      Stream& owner = *streams_[random() % 3];
      Stream& other = *streams_[random() % 3];
      const std::int64_t numel = 1 + static_cast<std::int64_t>(random() % 3000);
      Tensor tensor(device_.memory(), owner, DType::i32, Shape{numel}, Category::activations);
      const View view = tensor.view();
      write_all(subject_, owner, view, step);
      expect(owner, view, step);
      if (&other != &owner) {
        Event written, read;
        owner.record(written);
        other.wait(written);
        expect(other, view, step);
        other.record(read);
        tensor.used_on(read);
      }
      if (random() % 3 == 0) kept_.push_back(std::move(tensor));
      if (kept_.size() > 4) kept_.erase(kept_.begin());
      if (lock_step) synchronize();
    }
    kept_.clear();
    synchronize();
  }
  int wrong() const { return wrong_; }

 private:
  void expect(Stream& stream, const ConstView& view, std::int32_t value) {
    Tensor host;
    ConstView seen = view;
    if (!subject_.host_reaches_memory()) {
      host =
          Tensor(device_.memory(Tier::pinned), stream, view.dtype(), view.shape(), Category::other);
      device_.copy(stream, host, view);
      seen = host;
    }
    stream.launch("read", {reads(seen)}, [this, seen, value] {
      const auto* data = seen.as<std::int32_t>();
      wrong_ += std::any_of(data, data + seen.numel(), [&](std::int32_t v) { return v != value; });
    });
  }
  void synchronize() {
    for (const auto& stream : streams_) stream->synchronize();
  }

  const DeviceSubject& subject_;
  Device& device_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Tensor> kept_;
  std::atomic<int> wrong_{0};
};

TEST_P(MemoryContract, NobodyGetsBytesThatAreStillUsed) {
  MemoryProgram program(GetParam(), *device);
  program.run(300, false);
  EXPECT_EQ(program.wrong(), 0);
  const MemoryUse use = device->memory().use();
  EXPECT_EQ(use.current, 0);

  const auto slow = make(1);
  MemoryProgram in_step(GetParam(), *slow);
  in_step.run(300, true);
  EXPECT_EQ(slow->memory().use().peak, use.peak) << "however far ahead the host is";

  const auto small = make(1, use.peak);
  MemoryProgram pressed(GetParam(), *small);
  pressed.run(300, false);
  EXPECT_EQ(pressed.wrong(), 0);
  EXPECT_EQ(small->memory().use().peak, use.peak) << "what runs without a budget runs in its peak";
}

}  // namespace zero3d::contract
