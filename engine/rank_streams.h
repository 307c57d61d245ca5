// The streams of one rank: what computes, what gathers parameters, and what reduces gradients run
// beside each other, ordered by events alone.
#pragma once

#include <array>
#include <memory>

#include "zero3d/device/device.h"

namespace zero3d {

struct RankStreams {
  explicit RankStreams(Device& device)
      : compute(device.create_stream("compute")),
        gather(device.create_stream("gather")),
        reduce(device.create_stream("reduce")) {}

  std::array<Stream*, 3> all() const { return {compute.get(), reduce.get(), gather.get()}; }
  /// Blocks the host until all are empty; rethrows the first error it meets.
  void synchronize() const {
    for (Stream* stream : all()) stream->synchronize();
  }

  std::unique_ptr<Stream> compute;
  std::unique_ptr<Stream> gather;
  std::unique_ptr<Stream> reduce;
};

}  // namespace zero3d
