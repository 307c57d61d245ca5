// Attention where ranks share sequences: outside of it each has its rows of all heads, within it
// all rows of some heads. This is what goes over that border, in either direction.
#pragma once

#include <span>

#include "zero3d/engine/module.h"

namespace zero3d {

/// Of some heads, in the order of the model.
struct HeadsHere {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  ///< One at least, which ranks then share.
  std::int64_t first = 0;     ///< Heads before these in the whole model.
};

/// What rank `rank` of `ranks` works on of `all`, which they divide: query heads evenly, key and
/// value heads too, or ranks in a row share one.
HeadsHere heads_of_rank(const HeadsHere& all, int rank, int ranks);

class HeadExchange {
 public:
  /// `all`: the heads that the ranks of context.sp() divide, each `head_dim` wide. `context` must
  /// outlive this.
  HeadExchange(const BlockContext& context, const HeadsHere& all, std::int64_t head_dim);

  const HeadsHere& mine() const { return mine_; }
  /// Elements of a row of q (0), or k or v (1, 2), of the heads that this rank works on.
  std::int64_t width(int index) const { return width(mine_, index); }
  std::int64_t row_width() const { return width(0) + width(1) + width(2); }

  /// Queries, keys and values [B * t, ...] of this rank's rows -> [B, T, row_width()], one beside
  /// the other.
  Tensor gather_rows(std::int64_t batch, const ConstColumns& q, const ConstColumns& k,
                     const ConstColumns& v) const;
  /// Its backward, into columns that are as those were: gradients of a shared head are summed in
  /// fp32, in rank order.
  void scatter_rows(Tensor& gradients, const Columns& q, const Columns& k, const Columns& v) const;
  /// The same of the queries' heads alone.
  Tensor gather_rows(std::int64_t batch, const ConstColumns& q) const;
  void scatter_rows(Tensor& whole, const Columns& q) const;

 private:
  std::int64_t width(const HeadsHere& heads, int index) const {
    return (index == 0 ? heads.heads : heads.kv_heads) * head_dim_;
  }
  /// Which of the columns of all heads rank `rank` works on.
  template <typename V>
  BasicColumns<V> columns_of(const BasicColumns<V>& all, int rank, int index) const;
  Tensor gather(std::int64_t batch, std::span<const ConstColumns> parts) const;
  void scatter(Tensor& whole, std::span<const Columns> parts) const;

  const BlockContext& context_;
  const SequenceParallel& sp_;
  HeadsHere all_;
  HeadsHere mine_;
  std::int64_t head_dim_;
};

}  // namespace zero3d
