#include "zero3d/parallel/topology.h"

#include <cstdint>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {

const char* name_of(Axis axis) {
  switch (axis) {
    case Axis::dp:
      return "dp";
    case Axis::tp:
      return "tp";
    case Axis::pp:
      return "pp";
    case Axis::sp:
      return "sp";
    case Axis::model:
      return "model";
    case Axis::zero:
      return "zero";
    case Axis::stage:
      return "stage";
  }
  return "";
}

Topology::Topology(int world_size, const GridDegrees& degrees) : degrees_(degrees) {
  const auto& [dp, tp, pp, sp] = degrees;
  const std::int64_t product = std::int64_t{dp} * tp * pp * sp;
  if (dp < 1 || tp < 1 || pp < 1 || sp < 1 || product != world_size)
    throw_invalid(
        concat("parallel degrees must be positive and multiply to the number of ranks: dp ", dp,
               " x tp ", tp, " x pp ", pp, sp == 1 ? std::string() : concat(" x sp ", sp), " = ",
               product, ", but there are ", world_size, " ranks"));
}

Topology Topology::with_rest_as_dp(int world_size, int tp, int pp) {
  const std::int64_t model = std::int64_t{tp} * pp;
  if (tp < 1 || pp < 1 || world_size < 1 || world_size % model != 0)
    throw_invalid(concat("tp ", tp, " x pp ", pp, " = ", model, " must divide the ", world_size,
                         " ranks, so that the rest can be data parallel"));
  return Topology(world_size, {.dp = static_cast<int>(world_size / model), .tp = tp, .pp = pp});
}

int Topology::degree(Axis axis) const {
  switch (axis) {
    case Axis::dp:
      return degrees_.dp;
    case Axis::tp:
      return degrees_.tp;
    case Axis::pp:
      return degrees_.pp;
    case Axis::sp:
      return degrees_.sp;
    case Axis::model:
      return degrees_.tp * degrees_.pp;
    case Axis::zero:
      return degrees_.dp * degrees_.sp;
    case Axis::stage:
      return degrees_.dp * degrees_.sp * degrees_.tp;
  }
  return 0;
}

void Topology::check_rank(int rank) const {
  ZERO3D_CHECK(rank >= 0 && rank < world_size(),
               concat("rank ", rank, " is not in a world of ", world_size()));
}

Topology::Coordinates Topology::coordinates(int rank) const {
  check_rank(rank);
  const auto& [dp, tp, pp, sp] = degrees_;
  return {.dp = rank / (tp * sp) % dp,
          .tp = rank % tp,
          .pp = rank / (tp * sp * dp),
          .sp = rank / tp % sp};
}

int Topology::rank_of(const Coordinates& place) const {
  return ((place.pp * degrees_.dp + place.dp) * degrees_.sp + place.sp) * degrees_.tp + place.tp;
}

int Topology::color(Axis axis, int rank) const {
  // The lowest rank of the group: its coordinates along the axis set to zero.
  Coordinates place = coordinates(rank);
  const bool data = axis == Axis::zero || axis == Axis::stage;
  if (axis == Axis::dp || data) place.dp = 0;
  if (axis == Axis::sp || data) place.sp = 0;
  if (axis == Axis::tp || axis == Axis::model || axis == Axis::stage) place.tp = 0;
  if (axis == Axis::pp || axis == Axis::model) place.pp = 0;
  return rank_of(place);
}

std::vector<int> Topology::group(Axis axis, int rank) const {
  std::vector<int> ranks;
  const int own = color(axis, rank);
  for (int r = 0; r < world_size(); ++r)
    if (color(axis, r) == own) ranks.push_back(r);
  return ranks;
}

std::vector<std::vector<int>> Topology::groups(Axis axis) const {
  std::vector<std::vector<int>> all;
  for (int rank = 0; rank < world_size(); ++rank)
    if (color(axis, rank) == rank) all.push_back(group(axis, rank));
  return all;
}

int Topology::pipeline_neighbor(int rank, int direction) const {
  Coordinates place = coordinates(rank);
  place.pp += direction;
  return place.pp < 0 || place.pp >= degrees_.pp ? -1 : rank_of(place);
}

std::string Topology::describe(int rank) const {
  const Coordinates place = coordinates(rank);
  std::string text;
  const auto add = [&](Axis axis, int at) {
    if (degree(axis) > 1) append_item(text, ", ", name_of(axis), " ", at);
  };
  add(Axis::dp, place.dp);
  add(Axis::tp, place.tp);
  add(Axis::pp, place.pp);
  add(Axis::sp, place.sp);
  const bool only_dp = degrees_.dp == world_size();
  return only_dp ? concat("rank ", rank) : concat("rank ", rank, " (", text, ")");
}

Subgroups::Subgroups(int group_size, int shard_size, const std::string& purpose)
    : group_size_(group_size), shard_size_(shard_size) {
  if (shard_size < 1 || group_size < 1 || group_size % shard_size != 0)
    throw_invalid(
        concat(purpose, " must divide the group of ", group_size, " ranks, found ", shard_size));
}

std::vector<int> Subgroups::shard_group(int rank) const {
  std::vector<int> ranks;
  const int first = shard_color(rank) * shard_size_;
  for (int i = 0; i < shard_size_; ++i) ranks.push_back(first + i);
  return ranks;
}

std::vector<int> Subgroups::replica_group(int rank) const {
  std::vector<int> ranks;
  for (int r = replica_color(rank); r < group_size_; r += shard_size_) ranks.push_back(r);
  return ranks;
}

}  // namespace zero3d
