// The streams of one rank: what computes, what gathers parameters, and what reduces gradients run
// beside each other, ordered by events alone; where state is offloaded, what copies it to the
// device and from it, what computes on the host, and what updates there beside the next steps; and
// in a pipeline what goes to other stages and comes from them.
#pragma once

#include <memory>
#include <vector>

#include "zero3d/device/device.h"

namespace zero3d {

/// What runs beside the three that every rank has.
struct StreamsBeside {
  bool offloads = false;
  bool overlaps_updates = false;  ///< Where it offloads: updates beside the next steps.
  bool transfers = false;         ///< Between stages.
  bool sums = false;              ///< Of tensor-parallel ranks.
};

struct RankStreams {
  explicit RankStreams(Device& device, const StreamsBeside& beside = {})
      : compute(device.create_stream("compute")),
        gather(device.create_stream("gather")),
        reduce(device.create_stream("reduce")) {
    if (beside.sums) tp = device.create_stream("tp");
    if (beside.transfers) {
      send = device.create_stream("send");
      receive = device.create_stream("receive");
    }
    if (!beside.offloads) return;
    copy_in = device.create_stream("copy in");
    copy_out = device.create_stream("copy out");
    host = device.create_host_stream("host");
    if (beside.overlaps_updates) late = device.create_host_stream("late");
  }

  std::vector<Stream*> all() const {
    std::vector<Stream*> streams;
    for (const auto* stream :
         {&compute, &tp, &reduce, &copy_out, &host, &late, &copy_in, &gather, &receive, &send})
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
  std::unique_ptr<Stream> late;  ///< Of updates beside the next steps; null where there are none.
  // Null where there is one stage.
  std::unique_ptr<Stream> send;
  std::unique_ptr<Stream> receive;
};

}  // namespace zero3d
