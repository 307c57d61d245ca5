// The counting decorator: elements and bytes per operation, counted on the host at the call.
#include <mutex>

#include "zero3d/parallel/comm/decorators.h"
#include "zero3d/parallel/comm/forwarding.h"

namespace zero3d {

struct CommCounter::State {
  std::mutex mutex;
  CommVolume volume;

  void add(const char* operation, std::int64_t elements, std::int64_t bytes) {
    const std::lock_guard lock(mutex);
    CommVolume::Entry& entry = volume.operations[operation];
    ++entry.calls;
    entry.elements += elements;
    entry.bytes += bytes;
  }
};

std::int64_t CommVolume::elements() const {
  std::int64_t sum = 0;
  for (const auto& [name, entry] : operations) sum += entry.elements;
  return sum;
}

std::int64_t CommVolume::bytes() const {
  std::int64_t sum = 0;
  for (const auto& [name, entry] : operations) sum += entry.bytes;
  return sum;
}

CommCounter::CommCounter() : state_(std::make_shared<State>()) {}
CommCounter::~CommCounter() = default;

CommVolume CommCounter::volume() const {
  const std::lock_guard lock(state_->mutex);
  return state_->volume;
}

void CommCounter::reset() {
  const std::lock_guard lock(state_->mutex);
  state_->volume = {};
}

namespace detail {
namespace {

/// Adds (operation, elements, bytes) to a counter.
using Count = std::function<void(const char*, std::int64_t, std::int64_t)>;

class CountingCommunicator final : public ForwardingCommunicator {
 public:
  CountingCommunicator(std::shared_ptr<Communicator> inner, Count count)
      : ForwardingCommunicator(std::move(inner)), count_(std::move(count)) {}

  void all_gather(Stream& stream, std::span<const GatherSegment> segments) override {
    inner_->all_gather(stream, segments);
    std::int64_t elements = 0, bytes = 0;
    for (const GatherSegment& s : segments) add(s.full, s.full.dtype(), elements, bytes);
    count("all_gather", elements, bytes);
  }

  void reduce_scatter(Stream& stream, std::span<const ReduceSegment> segments,
                      const ReduceOptions& options) override {
    inner_->reduce_scatter(stream, segments, options);
    std::int64_t elements = 0, bytes = 0;
    for (const ReduceSegment& s : segments)
      add(s.full, options.wire.value_or(s.full.dtype()), elements, bytes);
    count("reduce_scatter", elements, bytes);
  }

  void all_reduce(Stream& stream, const View& data, const ReduceOptions& options) override {
    inner_->all_reduce(stream, data, options);
    std::int64_t elements = 0, bytes = 0;
    add(data, options.wire.value_or(data.dtype()), elements, bytes);
    count("all_reduce", 2 * elements, 2 * bytes);
  }

  void broadcast(Stream& stream, const View& data, int root) override {
    inner_->broadcast(stream, data, root);
    count_view("broadcast", data);
  }
  void all_to_all(Stream& stream, std::span<const ConstView> to,
                  std::span<const View> from) override {
    inner_->all_to_all(stream, to, from);
    std::int64_t elements = 0, bytes = 0;
    for (const ConstView& view : to) add(view, view.dtype(), elements, bytes);
    count("all_to_all", elements, bytes);
  }
  void send(Stream& stream, const ConstView& data, int peer) override {
    inner_->send(stream, data, peer);
    count_view("send", data);
  }
  void recv(Stream& stream, const View& data, int peer) override {
    inner_->recv(stream, data, peer);
    count_view("recv", data);
  }
  void barrier(Stream& stream) override {
    inner_->barrier(stream);
    count("barrier", 0, 0);
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<CountingCommunicator>(inner_->split(color, key), count_);
  }

 private:
  static void add(const ConstView& view, DType dtype, std::int64_t& elements, std::int64_t& bytes) {
    elements += elements_of(view);
    bytes += elements_of(view) * static_cast<std::int64_t>(size_of(dtype));
  }
  void count(const char* operation, std::int64_t elements, std::int64_t bytes) {
    const bool alone = size() == 1;
    count_(operation, alone ? 0 : elements, alone ? 0 : bytes);
  }
  void count_view(const char* operation, const ConstView& view) {
    count(operation, elements_of(view), static_cast<std::int64_t>(view.bytes()));
  }

  const Count count_;
};

}  // namespace
}  // namespace detail

std::unique_ptr<Communicator> make_counting(std::unique_ptr<Communicator> inner,
                                            CommCounter& counter) {
  return std::make_unique<detail::CountingCommunicator>(
      std::move(inner),
      [state = counter.state_](const char* operation, std::int64_t elements, std::int64_t bytes) {
        state->add(operation, elements, bytes);
      });
}

}  // namespace zero3d
