// Collectives over a group of ranks, enqueued on a stream of the caller's device.
// One communicator is used from one stream at a time, in the same order on every rank. Reductions
// sum in fp32 in rank order and round once, so results are the same bits for every implementation
// but NCCL.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"

namespace zero3d {

/// `full` holds size() equal pieces in rank order, each of `shard.numel()` elements; same dtype on
/// both sides. `shard` may be this rank's own piece of `full` (in place) and must not otherwise
/// overlap it.
struct GatherSegment {
  ConstView shard;
  View full;
};

/// This rank's piece of the elementwise sum over ranks of `full`; dtypes of the two sides may
/// differ (f32, bf16, f16). `shard` may be this rank's own piece of `full`.
struct ReduceSegment {
  ConstView full;
  View shard;
};

/// out = round(scale_out * sum over ranks, in rank order, in fp32, of wire(scale_in * in)).
struct ReduceOptions {
  float scale_in = 1.0f;
  float scale_out = 1.0f;
  /// What travels: inputs are rounded to it after scale_in, and the result is rounded to it before
  /// it is stored. None: the inputs as they are, and the result rounded only to the output's dtype.
  std::optional<DType> wire;
};

/// Another rank failed first: rank() is its world rank, and the message carries its words. Every
/// rank but that one throws it; that one throws what happened.
class CommAborted : public CommError {
 public:
  using CommError::CommError;
};

/// Arguments are checked at the call (Error kInvalid); what fails later fails the stream. To
/// enqueue never waits for other ranks. A stream that fails before or within an operation that
/// others take part in fails the world.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "dp group of ranks 0-3".
  virtual std::string description() const = 0;

  virtual void all_gather(Stream& stream, std::span<const GatherSegment> segments) = 0;
  void all_gather(Stream& stream, const ConstView& shard, const View& full) {
    const GatherSegment segment{shard, full};
    all_gather(stream, {&segment, 1});
  }
  virtual void reduce_scatter(Stream& stream, std::span<const ReduceSegment> segments,
                              const ReduceOptions& options) = 0;
  /// Every rank's `data` becomes the reduced value (reduce-scatter + all-gather, the same sum order
  /// and rounding).
  virtual void all_reduce(Stream& stream, const View& data, const ReduceOptions& options) = 0;
  virtual void broadcast(Stream& stream, const View& data, int root) = 0;
  /// Every rank has a piece for each: `to[r]` goes to rank r, where it becomes `from[this rank]`;
  /// the piece for this rank is copied. The two ends of a piece have the same elements and dtype;
  /// pieces of different pairs may have others, or none. size() views on each side, or several
  /// times as many, one set after the other. What arrives overlaps nothing.
  virtual void all_to_all(Stream& stream, std::span<const ConstView> to,
                          std::span<const View> from) = 0;
  /// Point to point; messages from one rank to another match in order, and sizes and dtypes must
  /// agree. A send is buffered: it never waits for its recv, so crossed pairs cannot deadlock.
  virtual void send(Stream& stream, const ConstView& data, int peer) = 0;
  virtual void recv(Stream& stream, const View& data, int peer) = 0;
  virtual void barrier(Stream& stream) = 0;

  /// Host-blocking collectives for set-up and decisions, outside any stream: every rank's `value`
  /// bytes in rank order (sizes may differ between ranks).
  virtual std::vector<std::string> exchange(const std::string& value) = 0;
  /// A new group of the ranks that give the same `color`, ordered by `key` then rank. Host-blocking
  /// and collective.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// Fails the world: ends every pending and future operation of this group, and of all groups
  /// split from the same world, on all ranks. The first failure wins and is what every rank throws:
  /// this one `cause`, the others CommAborted. Callable from any thread; never blocks.
  virtual void fail(const std::exception_ptr& cause) noexcept = 0;
  /// Throws the world's first failure if there is one.
  virtual void check() = 0;
  /// A rank that waits longer fails the world and names who is missing; a tenth of it is worth a
  /// line in the log. Holds for all groups of the world, waits that have begun included; where
  /// ranks are processes, on this one.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
};

/// A group of one: copies and roundings, no communication.
std::unique_ptr<Communicator> make_self_communicator();

/// body(), as work that every rank takes part in: what it throws fails the world at once, before
/// this rank's streams and groups are torn down, and the world's first failure is thrown. Not for
/// calls that are refused before they begin.
template <typename Body>
auto fail_together(Communicator& world, Body&& body) {
  try {
    return body();
  } catch (...) {
    world.fail(std::current_exception());
    world.check();
    throw;
  }
}

}  // namespace zero3d
