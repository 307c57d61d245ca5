// Parameter values on their way between where a unit is updated and where its shard lies, when that
// is not the same memory: a few pieces of one record each, filled again once they are copied. Used
// from one host thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "zero3d/engine/zero/parameter_store.h"

namespace zero3d {

class ParameterPieces {
 public:
  /// Pieces of `elements` in memory of `tier`.
  ParameterPieces(Device& device, ParameterStore& parameters, Tier tier, DType dtype,
                  std::int64_t elements);

  /// Room for `count` new values, to be written by work on `stream`, ...
  View take(Stream& stream, std::int64_t count);
  /// ... all of which is enqueued: they go to the unit's shard, from element `begin` on.
  void send(Stream& stream, int unit, std::int64_t begin);
  /// The point where all that was sent has arrived.
  const Event& arrived() const { return arrived_; }

  /// `count` values of the unit's shard, for work on `stream` ...
  View fetch(Stream& stream, int unit, std::int64_t begin, std::int64_t count);
  /// ... all of which is enqueued.
  void done(Stream& stream);

  static std::int64_t bytes(std::int64_t elements, DType dtype) {
    return static_cast<std::int64_t>(kPieces) * bytes_of(elements, dtype);
  }

 private:
  static constexpr std::size_t kPieces = 4;
  struct Piece {
    Tensor values;
    Event free;
  };
  ParameterStore& parameters_;
  std::array<Piece, kPieces> pieces_;
  std::size_t current_ = 0;
  View taken_;
  Event arrived_;
};

}  // namespace zero3d
