// The delayed decorator: a sleep on the stream before each operation, as long as a network of the
// given latency and bandwidth would take. Bytes are what a rank sends on a ring.
#include <thread>

#include "zero3d/parallel/comm/decorators.h"
#include "zero3d/parallel/comm/forwarding.h"

namespace zero3d {
namespace detail {
namespace {

class DelayedCommunicator final : public ForwardingCommunicator {
 public:
  DelayedCommunicator(std::shared_ptr<Communicator> inner, const NetworkModel& network)
      : ForwardingCommunicator(std::move(inner)), network_(network) {}

  void all_gather(Stream& stream, std::span<const GatherSegment> segments) override {
    double bytes = 0;
    for (const GatherSegment& s : segments) bytes += static_cast<double>(s.full.bytes());
    delay(stream, ring_share() * bytes);
    inner_->all_gather(stream, segments);
  }

  void reduce_scatter(Stream& stream, std::span<const ReduceSegment> segments,
                      const ReduceOptions& options) override {
    double bytes = 0;
    for (const ReduceSegment& s : segments) bytes += wire_bytes(s.full, options);
    delay(stream, ring_share() * bytes);
    inner_->reduce_scatter(stream, segments, options);
  }

  void all_reduce(Stream& stream, const View& data, const ReduceOptions& options) override {
    delay(stream, 2 * ring_share() * wire_bytes(data, options));
    inner_->all_reduce(stream, data, options);
  }

  void broadcast(Stream& stream, const View& data, int root) override {
    delay(stream, size() > 1 ? static_cast<double>(data.bytes()) : 0);
    inner_->broadcast(stream, data, root);
  }
  void all_to_all(Stream& stream, std::span<const ConstView> to,
                  std::span<const View> from) override {
    double bytes = 0;
    for (std::size_t i = 0; i < to.size(); ++i)
      if (static_cast<int>(i % static_cast<std::size_t>(size())) != rank())
        bytes += static_cast<double>(to[i].bytes());
    delay(stream, bytes);
    inner_->all_to_all(stream, to, from);
  }
  // The sender pays: a recv ends when its message has arrived.
  void send(Stream& stream, const ConstView& data, int peer) override {
    delay(stream, static_cast<double>(data.bytes()));
    inner_->send(stream, data, peer);
  }
  void barrier(Stream& stream) override {
    delay(stream, 0);
    inner_->barrier(stream);
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<DelayedCommunicator>(inner_->split(color, key), network_);
  }

 private:
  double ring_share() const { return static_cast<double>(size() - 1) / size(); }

  static double wire_bytes(const ConstView& view, const ReduceOptions& options) {
    return static_cast<double>(elements_of(view)) *
           static_cast<double>(size_of(options.wire.value_or(view.dtype())));
  }

  void delay(Stream& stream, double bytes) {
    if (size() == 1) return;
    std::chrono::duration<double> time = network_.latency;
    if (network_.bytes_per_second > 0)
      time += std::chrono::duration<double>(bytes / network_.bytes_per_second);
    stream.launch("network", std::initializer_list<Access>{},
                  [time] { std::this_thread::sleep_for(time); });
  }

  const NetworkModel network_;
};

}  // namespace
}  // namespace detail

std::unique_ptr<Communicator> make_delayed(std::unique_ptr<Communicator> inner,
                                           const NetworkModel& network) {
  return std::make_unique<detail::DelayedCommunicator>(std::move(inner), network);
}

}  // namespace zero3d
