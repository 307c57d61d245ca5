#include "zero3d/engine/tensor_parallel.h"

#include <vector>

#include "zero3d/parallel/comm/communicator.h"

namespace zero3d {
namespace {

/// Sample `index` of [B, ...].
template <typename V>
V sample(const V& samples, std::int64_t index) {
  const std::int64_t elements = samples.numel() / samples.shape()[0];
  return samples.flat(index * elements, elements);
}

std::vector<ReduceSegment> segments_of(const ConstView& parts, const View& mine) {
  std::vector<ReduceSegment> segments;
  for (std::int64_t i = 0; i < mine.shape()[0]; ++i)
    segments.push_back({sample(parts, i), sample(mine, i)});
  return segments;
}

}  // namespace

void TensorParallel::all_gather(Stream& stream, const ConstView& mine, const View& all) const {
  if (links_.group != nullptr) links_.group->all_gather(stream, mine, all);
}

void TensorParallel::sum(Stream& stream, const View& data) const {
  if (links_.group != nullptr) links_.group->all_reduce(stream, data, {});
}

void TensorParallel::gather_rows(Stream& stream, const ConstView& mine, const View& all) const {
  if (links_.group == nullptr) return;
  std::vector<GatherSegment> segments;
  for (std::int64_t i = 0; i < all.shape()[0]; ++i)
    segments.push_back({sample(mine, i), sample(all, i)});
  links_.group->all_gather(stream, segments);
}

void TensorParallel::scatter_sums(Stream& stream, const ConstView& parts, const View& mine) const {
  if (links_.group != nullptr) links_.group->reduce_scatter(stream, segments_of(parts, mine), {});
}

template <typename Work>
Event TensorParallel::beside(Stream& compute, const Work& work) const {
  Event written, done;
  compute.record(written);
  links_.stream->wait(written);
  work(*links_.stream);
  links_.stream->record(done);
  return done;
}

Event TensorParallel::sum_beside(Stream& compute, const View& data) const {
  return beside(compute, [&](Stream& stream) { links_.beside->all_reduce(stream, data, {}); });
}

Event TensorParallel::scatter_sums_beside(Stream& compute, const ConstView& parts,
                                          const View& mine) const {
  return beside(compute, [&](Stream& stream) {
    links_.beside->reduce_scatter(stream, segments_of(parts, mine), {});
  });
}

}  // namespace zero3d
