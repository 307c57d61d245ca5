// The base of decorators: passes everything on. Tasks that a decorator enqueues share the inner
// communicator, since they may outlive the decorator. Internal.
#pragma once

#include <memory>
#include <utility>

#include "zero3d/parallel/comm/call.h"

namespace zero3d::detail {

class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(std::shared_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string description() const override { return inner_->description(); }

  void all_gather(Stream& stream, std::span<const GatherSegment> segments) override {
    inner_->all_gather(stream, segments);
  }
  void reduce_scatter(Stream& stream, std::span<const ReduceSegment> segments,
                      const ReduceOptions& options) override {
    inner_->reduce_scatter(stream, segments, options);
  }
  void all_reduce(Stream& stream, const View& data, const ReduceOptions& options) override {
    inner_->all_reduce(stream, data, options);
  }
  void broadcast(Stream& stream, const View& data, int root) override {
    inner_->broadcast(stream, data, root);
  }
  void all_to_all(Stream& stream, std::span<const ConstView> to,
                  std::span<const View> from) override {
    inner_->all_to_all(stream, to, from);
  }
  void send(Stream& stream, const ConstView& data, int peer) override {
    inner_->send(stream, data, peer);
  }
  void recv(Stream& stream, const View& data, int peer) override {
    inner_->recv(stream, data, peer);
  }
  void barrier(Stream& stream) override { inner_->barrier(stream); }

  std::vector<std::string> exchange(const std::string& value) override {
    return inner_->exchange(value);
  }
  void fail(const std::exception_ptr& cause) noexcept override { inner_->fail(cause); }
  void check() override { inner_->check(); }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_->set_timeout(timeout); }

 protected:
  const std::shared_ptr<Communicator> inner_;
};

}  // namespace zero3d::detail
