#include "zero3d/engine/sequence_parallel.h"

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/parallel/comm/communicator.h"

namespace zero3d {

SequencePart sequence_part(std::int64_t length, int rank, int size, std::int64_t grain) {
  if (length < size)
    throw_invalid(concat("samples of ", length, " tokens cannot be cut over sp ", size,
                         " ranks, a token each at least: give longer samples, or lower the sp "
                         "degree (sequence_parallel_size)"));
  std::int64_t unit = grain;
  if (length % unit != 0 || length / unit < size) unit = 1;
  const std::int64_t units = length / unit;
  const std::int64_t first = units * rank / size, end = units * (rank + 1) / size;
  return {first * unit, (end - first) * unit};
}

SequenceParallel SequenceParallel::without_links() const {
  SequenceParallel same = *this;
  same.group_ = nullptr;
  return same;
}

SequenceParallel SequenceParallel::of(std::int64_t length) const {
  SequenceParallel same = *this;
  same.length_ = length;
  if (!alone()) same.mine();
  return same;
}

void SequenceParallel::all_to_all(Stream& stream, std::span<const ConstView> to,
                                  std::span<const View> from) const {
  if (group_ != nullptr) group_->all_to_all(stream, to, from);
}

void SequenceParallel::sum(Stream& stream, const View& data) const {
  if (group_ != nullptr) group_->all_reduce(stream, data, {});
}

}  // namespace zero3d
