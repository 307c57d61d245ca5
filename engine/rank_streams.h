// The streams of one rank: what computes, what gathers parameters, and what reduces gradients run
// beside each other, ordered by events alone; and where state is offloaded, what copies it to the
// device and from it, and what computes on the host.
#pragma once

#include <memory>
#include <vector>

#include "zero3d/device/device.h"

namespace zero3d {

struct RankStreams {
  explicit RankStreams(Device& device, bool offloads = false, bool sums_beside = false)
      : compute(device.create_stream("compute")),
        gather(device.create_stream("gather")),
        reduce(device.create_stream("reduce")) {
    if (sums_beside) tp = device.create_stream("tp");
    if (!offloads) return;
    copy_in = device.create_stream("copy in");
    copy_out = device.create_stream("copy out");
    host = device.create_host_stream("host");
  }

  std::vector<Stream*> all() const {
    std::vector<Stream*> streams;
    for (const auto* stream : {&compute, &tp, &reduce, &copy_out, &host, &copy_in, &gather})
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
  std::unique_ptr<Stream> tp;  ///< Sums of tensor-parallel ranks beside compute; or null.
  // Null where nothing is offloaded.
  std::unique_ptr<Stream> copy_in;
  std::unique_ptr<Stream> copy_out;
  std::unique_ptr<Stream> host;
};

}  // namespace zero3d
