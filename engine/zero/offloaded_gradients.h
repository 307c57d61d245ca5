// The reduced gradients of the units that are updated on the host: [shard] each, in records that
// lie in host memory or on drives as the optimizer's state does. What a bucket's reduction leaves
// on the device is copied out on a stream of its own, added to what is here and squared for the
// norm on the host's stream. Used from one host thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "zero3d/engine/rank_streams.h"
#include "zero3d/engine/zero/layout.h"
#include "zero3d/engine/zero/update_plan.h"
#include "zero3d/offload/state_store.h"

namespace zero3d {

struct OffloadedGradientsOptions {
  DType dtype = DType::f32;  ///< What micro-batches are added up in.
  TileSizes tiles;           ///< Of the optimizer.
  Tier tier = Tier::pinned;  ///< Of what waits to be added, and of the norm's sums.
  bool square_sums = true;
  StateStoreFactory store;
};

class OffloadedGradients {
 public:
  /// `offloaded[u]`: unit u is one of them. The referred objects must outlive this.
  OffloadedGradients(Device& device, const ParamLayout& layout, const std::vector<bool>& offloaded,
                     const OffloadedGradientsOptions& options, const RankStreams& streams);

  bool holds(int unit) const { return offloaded_[static_cast<std::size_t>(unit)]; }
  /// `values`, device memory of the unit's shard that is written at `ready`, are added to what the
  /// window has (f32), or take its place (`first`; of the gradients' dtype). With `last` the
  /// squares are summed on the way. Returns the point from which `values` may change.
  Event add(int unit, const ConstView& values, const Event& ready, bool first, bool last);
  /// The unit's squares are summed, on the host's stream.
  void require_square_sums(int unit);
  /// Work enqueued on `stream` from here on sees all that was enqueued here.
  void join(Stream& stream);
  /// For the host that has waited for work that joined: the sums of a unit, which has them.
  std::span<const double> host_square_sums(int unit) const;
  /// For work that joined: enqueues on `stream` the copy of a unit's sums of squares, one per
  /// kNormBlock elements, to device memory; or of its whole shard.
  void copy_square_sums(Stream& stream, int unit, const View& sums);
  void copy(Stream& stream, int unit, const View& into);

  IoCounters counters() const { return store_->counters(); }
  /// For windows over tiles of the update plan; one part, the gradient.
  StateStore& store() { return *store_; }
  const RecordLayout& records(int unit) const { return records_[static_cast<std::size_t>(unit)]; }

  static std::vector<RecordLayout> plan_records(const ParamLayout& layout,
                                                const std::vector<bool>& offloaded,
                                                const OffloadedGradientsOptions& options);
  /// Host bytes beside the store's.
  static std::int64_t staging_bytes(const std::vector<RecordLayout>& records);
  static std::int64_t square_sum_bytes(const std::vector<RecordLayout>& records);

 private:
  /// Pieces of one record on their way to be added.
  static constexpr std::size_t kStaged = 2;
  struct Staged {
    Tensor bytes;
    Event added;
  };
  View open(const Tile& tile, Stream& stream, bool contents);
  void close(const Tile& tile, bool changed);
  void take(const ConstView& values, const View& target, bool first);
  void sum_squares(const Tile& tile, const View& bytes);
  /// Calls `visit` for the tile's records: first element in the shard, bytes as a view.
  template <typename Visit>
  void for_each_record(const Tile& tile, const View& bytes, const Visit& visit) const;

  Device& device_;
  const std::vector<bool> offloaded_;
  const OffloadedGradientsOptions options_;
  Stream& copy_out_;
  Stream& host_;
  std::vector<RecordLayout> records_;
  std::vector<std::vector<Tile>> tiles_;  ///< By unit.
  std::vector<View> square_sums_;         ///< By unit, of `sums_`.
  std::vector<bool> summed_;              ///< By unit: its sums are of what is here.
  Tensor sums_;
  std::array<Staged, kStaged> staged_;
  std::size_t next_staged_ = 0;
  std::unique_ptr<StateStore> store_;
  int slot_ = 0;  ///< That is open.
};

}  // namespace zero3d
