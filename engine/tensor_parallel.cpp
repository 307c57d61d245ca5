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

}  // namespace

void TensorParallel::all_gather(Stream& stream, const ConstView& mine, const View& all) const {
  if (group_ != nullptr) group_->all_gather(stream, mine, all);
}

void TensorParallel::sum(Stream& stream, const View& data) const {
  if (group_ != nullptr && size_ > 1) group_->all_reduce(stream, data, {});
}

void TensorParallel::gather_rows(Stream& stream, const ConstView& mine, const View& all) const {
  if (group_ == nullptr) return;
  std::vector<GatherSegment> segments;
  for (std::int64_t i = 0; i < all.shape()[0]; ++i)
    segments.push_back({sample(mine, i), sample(all, i)});
  group_->all_gather(stream, segments);
}

void TensorParallel::scatter_sums(Stream& stream, const ConstView& parts, const View& mine) const {
  if (group_ == nullptr) return;
  std::vector<ReduceSegment> segments;
  for (std::int64_t i = 0; i < mine.shape()[0]; ++i)
    segments.push_back({sample(parts, i), sample(mine, i)});
  group_->reduce_scatter(stream, segments, {});
}

}  // namespace zero3d
