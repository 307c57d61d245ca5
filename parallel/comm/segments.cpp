#include "zero3d/parallel/comm/segments.h"

#include <algorithm>
#include <sstream>

#include "zero3d/core/text.h"

namespace zero3d::detail {
namespace {

bool reducible(DType dtype) { return dtype == DType::f32 || is_16bit(dtype); }

void check_reducible(const char* operation, DType dtype, const std::string& group) {
  if (!reducible(dtype))
    throw_invalid(concat(operation, " on ", group, ": sums fp32, bf16 and fp16, found ",
                         name_of(dtype), "; gather the values and add them where they are used"));
}

void check_wire(const char* operation, const ReduceOptions& options, const std::string& group) {
  if (options.wire) check_reducible(operation, *options.wire, group);
}

// `inner` is either this rank's own piece of `outer` or outside it altogether.
bool overlap_allowed(const ConstView& outer, const ConstView& inner, int rank) {
  if (outer.bytes() == 0 || inner.bytes() == 0) return true;
  const std::byte* own = outer.data() + static_cast<std::size_t>(rank) * inner.bytes();
  if (inner.data() == own && inner.dtype() == outer.dtype()) return true;
  return inner.data() + inner.bytes() <= outer.data() ||
         outer.data() + outer.bytes() <= inner.data();
}

void check_segment(const char* operation, std::size_t index, const ConstView& full,
                   const ConstView& shard, int rank, int size, const std::string& group) {
  const auto where = [&] { return concat(operation, " on ", group, ", segment ", index, ": "); };
  const std::int64_t expected = shard.defined() ? shard.numel() * size : 0;
  const std::int64_t found = full.defined() ? full.numel() : 0;
  if (found != expected)
    throw_invalid(concat(where(), "`full` must hold ", size, " pieces of ",
                         shard.defined() ? shard.numel() : 0, " elements, found ", found));
  if (!overlap_allowed(full, shard, rank))
    throw_invalid(
        concat(where(), "`shard` overlaps `full` but is not rank ", rank, "'s own piece of it"));
}

}  // namespace

std::vector<Part> gather_parts(std::span<const GatherSegment> segments, int rank, int size,
                               const std::string& group) {
  std::vector<Part> parts;
  parts.reserve(segments.size());
  for (const GatherSegment& s : segments) {
    check_segment("all_gather", parts.size(), s.full, s.shard, rank, size, group);
    if (s.full.dtype() != s.shard.dtype())
      throw_invalid(concat("all_gather on ", group, ", segment ", parts.size(), ": `shard` is ",
                           name_of(s.shard.dtype()), " and `full` is ", name_of(s.full.dtype()),
                           "; they must agree"));
    parts.push_back({s.shard.data(), s.full.data(), s.shard.defined() ? s.shard.numel() : 0,
                     s.shard.dtype(), s.full.dtype()});
  }
  return parts;
}

std::vector<Part> reduce_parts(std::span<const ReduceSegment> segments, int rank, int size,
                               const ReduceOptions& options, const std::string& group) {
  check_wire("reduce_scatter", options, group);
  std::vector<Part> parts;
  parts.reserve(segments.size());
  for (const ReduceSegment& s : segments) {
    check_segment("reduce_scatter", parts.size(), s.full, s.shard, rank, size, group);
    check_reducible("reduce_scatter", s.full.dtype(), group);
    check_reducible("reduce_scatter", s.shard.dtype(), group);
    parts.push_back({s.full.data(), s.shard.data(), s.shard.defined() ? s.shard.numel() : 0,
                     s.full.dtype(), s.shard.dtype()});
  }
  return parts;
}

Part all_reduce_part(const View& data, const ReduceOptions& options, const std::string& group) {
  check_wire("all_reduce", options, group);
  check_reducible("all_reduce", data.dtype(), group);
  return {data.data(), data.data(), data.defined() ? data.numel() : 0, data.dtype(), data.dtype()};
}

void check_root(int root, int size, const std::string& group) {
  if (root < 0 || root >= size)
    throw_invalid(
        concat("broadcast on ", group, ": root must be in [0, ", size, "), found ", root));
}

void check_peer(const char* operation, int peer, int rank, int size, const std::string& group) {
  if (peer < 0 || peer >= size || peer == rank)
    throw_invalid(concat(operation, " on ", group, ": the peer must be another rank in [0, ", size,
                         "), found ", peer, " on rank ", rank));
}

std::vector<Access> accesses(std::span<const GatherSegment> segments) {
  std::vector<Access> list;
  list.reserve(2 * segments.size());
  for (const GatherSegment& s : segments) {
    list.push_back(reads(s.shard));
    list.push_back(writes(s.full));
  }
  return list;
}

std::vector<Access> accesses(std::span<const ReduceSegment> segments) {
  std::vector<Access> list;
  list.reserve(2 * segments.size());
  for (const ReduceSegment& s : segments) {
    list.push_back(reads(s.full));
    list.push_back(writes(s.shard));
  }
  return list;
}

Range all_reduce_piece(std::int64_t numel, int rank, int size) {
  constexpr std::int64_t kAlign = 64;
  const std::int64_t piece = ((numel + size - 1) / size + kAlign - 1) / kAlign * kAlign;
  return {std::min(numel, rank * piece), std::min(numel, (rank + 1) * piece)};
}

std::string split_value(int color, int key) { return concat(color, " ", key); }

SplitResult split_members(const std::vector<std::string>& values, int rank) {
  struct Wish {
    int color = 0, key = 0, rank = 0;
  };
  std::vector<Wish> wishes;
  for (const std::string& value : values) {
    Wish wish;
    std::istringstream in(value);
    in >> wish.color >> wish.key;
    ZERO3D_CHECK(!in.fail(), "split met a value that is no color and key: " + value);
    wish.rank = static_cast<int>(wishes.size());
    wishes.push_back(wish);
  }
  const int color = wishes[static_cast<std::size_t>(rank)].color;
  std::erase_if(wishes, [&](const Wish& wish) { return wish.color != color; });
  std::stable_sort(wishes.begin(), wishes.end(),
                   [](const Wish& a, const Wish& b) { return a.key < b.key; });
  SplitResult result;
  for (const Wish& wish : wishes) {
    if (wish.rank == rank) result.rank = static_cast<int>(result.members.size());
    result.members.push_back(wish.rank);
  }
  return result;
}

std::string describe_ranks(std::span<const int> world_ranks) {
  const std::size_t n = world_ranks.size();
  if (n == 1) return concat("group of rank ", world_ranks[0]);
  bool consecutive = true;
  for (std::size_t i = 1; i < n; ++i)
    consecutive = consecutive && world_ranks[i] == world_ranks[i - 1] + 1;
  if (consecutive && n > 2)
    return concat("group of ranks ", world_ranks[0], "-", world_ranks[n - 1]);
  std::string text = "group of ranks ";
  for (std::size_t i = 0; i < n; ++i) text += (i ? ", " : "") + std::to_string(world_ranks[i]);
  return text;
}

}  // namespace zero3d::detail
