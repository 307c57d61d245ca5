#include "zero3d/parallel/topology.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

Topology Topology::with_rest_as_dp(int world_size, int tp, int pp, int sp) {
  if (tp < 1 || pp < 1 || sp < 1 || world_size < 1)
    throw_invalid(concat("parallel degrees and ranks are at least 1, found tp ", tp, ", pp ", pp,
                         ", sp ", sp, " and ", world_size, " ranks"));
  const std::int64_t shared = std::int64_t{tp} * pp * sp;
  if (world_size % shared != 0)
    throw_invalid(concat("tp ", tp, " x pp ", pp, sp == 1 ? std::string() : concat(" x sp ", sp),
                         " = ", shared, " must divide the ", world_size,
                         " ranks, so that the rest can be data parallel; possible: ",
                         nearest_meshes(world_size, tp, pp, sp)));
  return Topology(world_size,
                  {.dp = static_cast<int>(world_size / shared), .tp = tp, .pp = pp, .sp = sp});
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

std::string Topology::factors() const {
  const auto& [dp, tp, pp, sp] = degrees_;
  return concat("dp ", dp, " x tp ", tp, " x pp ", pp,
                sp == 1 ? std::string() : concat(" x sp ", sp));
}

std::vector<std::string> Topology::table() const {
  constexpr int kEnds = 4;  // places shown at either end of a line
  const auto& [dp, tp, pp, sp] = degrees_;
  const auto place = [&](int stage, int replica, int part) {
    const int first = rank_of({.dp = replica, .tp = 0, .pp = stage, .sp = part});
    const std::string ranks =
        tp == 1 ? concat("rank ", first) : concat("ranks ", first, "-", first + tp - 1);
    return concat("  dp ", replica, sp == 1 ? std::string() : concat(" sp ", part), ": ", ranks);
  };
  std::vector<std::string> lines;
  for (int stage = 0; stage < pp; ++stage) {
    std::string line = concat("pp ", stage);
    for (int at = 0; at < dp * sp; ++at) {
      if (at >= kEnds && at < dp * sp - kEnds) {
        line += "  ...";
        at = dp * sp - kEnds;
      }
      line += place(stage, at / sp, at % sp);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

namespace {

struct SharedDegrees {
  std::array<std::int64_t, 3> value;  ///< tp, pp, sp.
  double distance = 0;                ///< From what was asked.
};

std::string describe(const SharedDegrees& degrees, int world_size) {
  constexpr const char* kNames[] = {"tp", "pp", "sp"};
  std::string text;
  std::int64_t shared = 1;
  for (std::size_t i = 0; i < 3; ++i) {
    shared *= degrees.value[i];
    if (degrees.value[i] > 1) append_item(text, " x ", kNames[i], " ", degrees.value[i]);
  }
  return concat(text.empty() ? "degrees of 1" : text, " (dp ", world_size / shared, ")");
}

/// All degrees that divide the world, but that a degree of 1 stays; nearest first, and of two
/// equally near ones the smaller.
std::vector<SharedDegrees> possible_degrees(int world_size,
                                            const std::array<std::int64_t, 3>& wanted) {
  std::vector<SharedDegrees> found;
  const auto candidates = [&](std::size_t i, std::int64_t rest) {
    std::vector<std::int64_t> divisors;
    for (std::int64_t d = 1; d <= (wanted[i] == 1 ? 1 : rest); ++d)
      if (rest % d == 0) divisors.push_back(d);
    return divisors;
  };
  for (const std::int64_t tp : candidates(0, world_size))
    for (const std::int64_t pp : candidates(1, world_size / tp))
      for (const std::int64_t sp : candidates(2, world_size / tp / pp)) {
        SharedDegrees degrees{{tp, pp, sp}};
        for (std::size_t i = 0; i < 3; ++i)
          degrees.distance += std::abs(std::log2(static_cast<double>(degrees.value[i])) -
                                       std::log2(static_cast<double>(wanted[i])));
        found.push_back(degrees);
      }
  std::stable_sort(found.begin(), found.end(), [](const SharedDegrees& a, const SharedDegrees& b) {
    return a.distance < b.distance;
  });
  return found;
}

}  // namespace

std::string nearest_meshes(int world_size, std::int64_t tp, std::int64_t pp, std::int64_t sp) {
  constexpr std::size_t kShown = 2;
  std::string text;
  std::vector<SharedDegrees> near = possible_degrees(world_size, {tp, pp, sp});
  near.resize(std::min(near.size(), kShown));
  std::sort(near.begin(), near.end(),
            [](const SharedDegrees& a, const SharedDegrees& b) { return a.value < b.value; });
  for (const SharedDegrees& degrees : near)
    append_item(text, " or ", describe(degrees, world_size));
  text += concat(" with ", world_size, " ranks");
  std::int64_t shared = 1;
  if (__builtin_mul_overflow(tp, pp, &shared) || __builtin_mul_overflow(shared, sp, &shared) ||
      shared > std::numeric_limits<int>::max() - world_size)
    return text;
  const std::int64_t below = world_size / shared * shared;
  return concat(text, ", or ", below == 0 ? std::string() : concat(below, " or "), below + shared,
                " ranks");
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
