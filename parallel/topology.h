// Which rank has which place in the grid of data, tensor, pipeline and sequence parallelism, and
// who shares a group with whom. Pure arithmetic; a Mesh makes the groups real.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace zero3d {

/// A direction of the grid, or several joined: `model` (tp, pp) are the ranks that together hold
/// one replica of the parameters, `zero` (dp, sp) those that hold the same piece of them, which
/// ZeRO may shard, and `stage` (dp, sp, tp) those with the same blocks.
enum class Axis { dp, tp, pp, sp, model, zero, stage };
inline constexpr std::array kAxes = {Axis::dp,    Axis::tp,   Axis::pp,   Axis::sp,
                                     Axis::model, Axis::zero, Axis::stage};
const char* name_of(Axis axis);

struct GridDegrees {
  int dp = 1;
  int tp = 1;
  int pp = 1;
  int sp = 1;
};

/// The grid (pp, dp, sp, tp), the last axis fastest, as DeepSpeed numbers ranks:
/// rank = ((pp_rank * dp + dp_rank) * sp + sp_rank) * tp + tp_rank.
class Topology {
 public:
  struct Coordinates {
    int dp = 0;
    int tp = 0;
    int pp = 0;
    int sp = 0;
    friend bool operator==(const Coordinates&, const Coordinates&) = default;
  };

  /// Throws Error(kInvalid) with the product unless dp x tp x pp x sp == world_size, all positive.
  Topology(int world_size, const GridDegrees& degrees);
  /// dp is what tp, pp and sp leave of the world. Throws Error(kInvalid) when they do not divide
  /// it, with the meshes that are near (nearest_meshes).
  static Topology with_rest_as_dp(int world_size, int tp, int pp, int sp = 1);

  int world_size() const { return degrees_.dp * degrees_.tp * degrees_.pp * degrees_.sp; }
  const GridDegrees& degrees() const { return degrees_; }
  int degree(Axis axis) const;

  Coordinates coordinates(int rank) const;
  int rank_of(const Coordinates& place) const;
  /// The ranks, ascending, that share with `rank` every coordinate but those of `axis`.
  std::vector<int> group(Axis axis, int rank) const;
  /// All groups along `axis`; each rank is in exactly one.
  std::vector<std::vector<int>> groups(Axis axis) const;
  /// Equal for the ranks of one group along `axis`, different between groups.
  int color(Axis axis, int rank) const;
  /// The rank of the pipeline stage before (-1) or after (+1) with the same place otherwise; -1
  /// past either end.
  int pipeline_neighbor(int rank, int direction) const;
  /// "rank 5 (dp 1, tp 1)": its place along the axes that there are; "rank 5" when dp is the only
  /// one.
  std::string describe(int rank) const;
  /// For people: "dp 2 x tp 2 x pp 1", with sp where there is any.
  std::string factors() const;
  /// A line for each pipeline stage, "pp 0  dp 0: ranks 0-1  dp 1: ranks 2-3": the ranks that share
  /// layers at each place. Long lines leave out their middle.
  std::vector<std::string> table() const;

 private:
  void check_rank(int rank) const;
  GridDegrees degrees_;
};

/// Degrees near `tp`, `pp` and `sp` that the ranks can be dealt to, and numbers of ranks that these
/// can: "tp 2 (dp 2) or tp 4 (dp 1) with 4 ranks, or 3 or 6 ranks". For messages; degrees of 1
/// stay.
std::string nearest_meshes(int world_size, std::int64_t tp, std::int64_t pp, std::int64_t sp);

/// Consecutive subgroups of a group, as hpZ's secondary shards and MiCS need them: a shard group
/// is `shard_size` neighbouring ranks that together hold one copy; a replica group is the ranks
/// that hold the same piece of it, one from each shard group.
class Subgroups {
 public:
  /// `purpose` names the setting in the message: "zero_hpz_partition_size". Throws
  /// Error(kInvalid) unless shard_size divides group_size.
  Subgroups(int group_size, int shard_size, const std::string& purpose);

  int shard_size() const { return shard_size_; }
  int replicas() const { return group_size_ / shard_size_; }
  /// Colors for Communicator::split on the group, with the rank as key.
  int shard_color(int rank) const { return rank / shard_size_; }
  int replica_color(int rank) const { return rank % shard_size_; }
  std::vector<int> shard_group(int rank) const;
  std::vector<int> replica_group(int rank) const;

 private:
  int group_size_;
  int shard_size_;
};

}  // namespace zero3d
