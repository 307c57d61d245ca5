// The streams of one rank: what computes, what gathers parameters, and what reduces gradients run
// beside each other, ordered by events alone; and where state is offloaded, what copies it to the
// device and from it, what computes on the host, and what updates there beside the next steps.
#pragma once

#include <memory>
#include <vector>

#include "zero3d/device/device.h"

namespace zero3d {

struct RankStreams {
  explicit RankStreams(Device& device, bool offloads = false, bool overlaps_updates = false)
      : compute(device.create_stream("compute")),
        gather(device.create_stream("gather")),
        reduce(device.create_stream("reduce")) {
    if (!offloads) return;
    copy_in = device.create_stream("copy in");
    copy_out = device.create_stream("copy out");
    host = device.create_host_stream("host");
    if (overlaps_updates) late = device.create_host_stream("late");
  }

  std::vector<Stream*> all() const {
    std::vector<Stream*> streams;
    for (const auto* stream : {&compute, &reduce, &copy_out, &host, &late, &copy_in, &gather})
      if (*stream != nullptr) streams.push_back(stream->get());
    return streams;
  }
  /// Blocks the host until all are empty; rethrows the first error it meets.
  void synchronize() const {
    for (Stream* stream : all()) stream->synchronize();
  }

  std::unique_ptr<Stream> compute;
  std::unique_ptr<Stream> gather;
  std::unique_ptr<Stream> reduce;
  // Null where nothing is offloaded.
  std::unique_ptr<Stream> copy_in;
  std::unique_ptr<Stream> copy_out;
  std::unique_ptr<Stream> host;
  std::unique_ptr<Stream> late;  ///< Of updates beside the next steps; null where there are none.
};

}  // namespace zero3d
