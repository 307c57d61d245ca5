// Packs by rank, and lets the exchange place samples: rows of a rank are together in each sample of
// what is whole, and in each rank's pack.
#include "zero3d/models/head_exchange.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "zero3d/kernels/elementwise.h"

namespace zero3d {
namespace {

/// Rows of sample `sample` of [B, rows, ...], from `first` on.
template <typename V>
V rows_of_sample(const V& samples, std::int64_t sample, std::int64_t first, std::int64_t count) {
  const std::int64_t width = samples.shape().last();
  return samples.flat((sample * samples.shape()[1] + first) * width, count * width);
}

/// Rank `rank`'s part of [ranks, B, rows, width].
template <typename V>
V pack_of(const V& packs, int rank) {
  const Shape& shape = packs.shape();
  const std::int64_t elements = packs.numel() / shape[0];
  return packs.flat(rank * elements, elements).reshaped({shape[1], shape[2], shape[3]});
}

}  // namespace

HeadsHere heads_of_rank(const HeadsHere& all, int rank, int ranks) {
  const std::int64_t heads = all.heads / ranks;
  return {heads, std::max<std::int64_t>(1, all.kv_heads / ranks), all.first + rank * heads};
}

HeadExchange::HeadExchange(const BlockContext& context, const HeadsHere& all, std::int64_t head_dim)
    : context_(context),
      sp_(context.sp()),
      all_(all),
      mine_(heads_of_rank(all, sp_.rank(), sp_.size())),
      head_dim_(head_dim) {}

template <typename V>
BasicColumns<V> HeadExchange::columns_of(const BasicColumns<V>& all, int rank, int index) const {
  const std::int64_t count = width(index);
  const std::int64_t heads = index == 0 ? all_.heads : all_.kv_heads;
  return {all.matrix, all.begin + rank * heads / sp_.size() * head_dim_, count};
}

Tensor HeadExchange::gather(std::int64_t batch, std::span<const ConstColumns> parts) const {
  const std::int64_t mine = sp_.mine().count;
  std::int64_t row = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) row += width(static_cast<int>(i));
  Tensor packs = context_.allocate({sp_.size(), batch, mine, row});
  for (int rank = 0; rank < sp_.size(); ++rank) {
    const View pack = pack_of(packs.view(), rank).reshaped({batch * mine, row});
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto index = static_cast<int>(i);
      kernels::copy_columns(context_.stream(), columns_of(parts[i], rank, index),
                            Columns(pack, begin, width(index)));
      begin += width(index);
    }
  }
  Tensor whole = context_.allocate({batch, sp_.whole(mine), row});
  std::vector<ConstView> to;
  std::vector<View> from;
  for (std::int64_t sample = 0; sample < batch; ++sample) {
    for (int rank = 0; rank < sp_.size(); ++rank) {
      const SequencePart theirs = sp_.part(rank);
      to.push_back(rows_of_sample(ConstView(pack_of(packs.view(), rank)), sample, 0, mine));
      from.push_back(rows_of_sample(whole.view(), sample, theirs.first, theirs.count));
    }
  }
  sp_.all_to_all(context_.stream(), to, from);
  context_.read_by_others(packs);
  return whole;
}

void HeadExchange::scatter(Tensor& whole, std::span<const Columns> parts) const {
  const std::int64_t mine = sp_.mine().count;
  const std::int64_t batch = whole.shape()[0], row = whole.shape().last();
  Tensor packs = context_.allocate({sp_.size(), batch, mine, row});
  std::vector<ConstView> to;
  std::vector<View> from;
  for (std::int64_t sample = 0; sample < batch; ++sample) {
    for (int rank = 0; rank < sp_.size(); ++rank) {
      const SequencePart theirs = sp_.part(rank);
      to.push_back(rows_of_sample(ConstView(whole.view()), sample, theirs.first, theirs.count));
      from.push_back(rows_of_sample(pack_of(packs.view(), rank), sample, 0, mine));
    }
  }
  sp_.all_to_all(context_.stream(), to, from);
  context_.read_by_others(whole);
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto index = static_cast<int>(i);
    // Ranks in a row have the same columns where they share them.
    for (int rank = 0; rank < sp_.size();) {
      const Columns target = columns_of(parts[i], rank, index);
      std::vector<ConstColumns> sum;
      for (; rank < sp_.size() && columns_of(parts[i], rank, index).begin == target.begin; ++rank)
        sum.emplace_back(pack_of(packs.view(), rank).reshaped({batch * mine, row}), begin,
                         width(index));
      if (sum.size() == 1) {
        kernels::copy_columns(context_.stream(), sum[0], target);
      } else {
        kernels::sum_columns(context_.stream(), sum, target);
      }
    }
    begin += width(index);
  }
}

Tensor HeadExchange::gather_rows(std::int64_t batch, const ConstColumns& q, const ConstColumns& k,
                                 const ConstColumns& v) const {
  return gather(batch, std::array{q, k, v});
}

void HeadExchange::scatter_rows(Tensor& gradients, const Columns& q, const Columns& k,
                                const Columns& v) const {
  scatter(gradients, std::array{q, k, v});
}

Tensor HeadExchange::gather_rows(std::int64_t batch, const ConstColumns& q) const {
  return gather(batch, {&q, 1});
}

void HeadExchange::scatter_rows(Tensor& whole, const Columns& q) const { scatter(whole, {&q, 1}); }

}  // namespace zero3d
