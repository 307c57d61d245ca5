#include "zero3d/parallel/comm/call.h"

#include <algorithm>
#include <cstring>
#include <functional>
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
  const std::int64_t expected = elements_of(shard) * size;
  const std::int64_t found = elements_of(full);
  if (found != expected)
    throw_invalid(concat(where(), "`full` must hold ", size, " pieces of ", elements_of(shard),
                         " elements, found ", found));
  if (!overlap_allowed(full, shard, rank))
    throw_invalid(
        concat(where(), "`shard` overlaps `full` but is not rank ", rank, "'s own piece of it"));
}

/// What both ends of a piece of an all_to_all say of it.
struct PieceWords {
  std::int64_t elements = 0;
  std::int64_t dtype = 0;
  friend bool operator==(const PieceWords&, const PieceWords&) = default;
};

/// Whether a view of `written` shares bytes with another, or with one of `read`.
bool overlaps(std::span<const ConstView> read, std::span<const View> written) {
  struct Bytes {
    const std::byte* begin;
    const std::byte* end;
    bool writes;
  };
  std::vector<Bytes> all;
  const auto add = [&all](const ConstView& view, bool writes) {
    if (view.bytes() > 0) all.push_back({view.data(), view.data() + view.bytes(), writes});
  };
  for (const ConstView& view : read) add(view, false);
  for (const View& view : written) add(view, true);
  std::sort(all.begin(), all.end(), [](const Bytes& a, const Bytes& b) {
    return std::less<const std::byte*>()(a.begin, b.begin);
  });
  const std::byte* any_end = nullptr;
  const std::byte* written_end = nullptr;
  for (const Bytes& bytes : all) {
    if (bytes.begin < (bytes.writes ? any_end : written_end)) return true;
    any_end = std::max(any_end, bytes.end);
    if (bytes.writes) written_end = std::max(written_end, bytes.end);
  }
  return false;
}

/// Lines of operations on many segments are long: what is shown starts shortly before the
/// difference.
std::string excerpt(const std::string& line, std::size_t difference) {
  constexpr std::size_t kBefore = 60;
  constexpr std::size_t kShown = 160;
  const std::size_t begin = difference > kBefore && line.size() > kShown ? difference - kBefore : 0;
  std::string text = begin > 0 ? line.substr(0, line.find(' ', line.find(' ') + 1)) + " ..." : "";
  text += line.substr(begin, kShown);
  return begin + kShown < line.size() ? text + "..." : text;
}

}  // namespace

Call gather_call(std::span<const GatherSegment> segments, int rank, int size,
                 const std::string& group) {
  Call call{.operation = "all_gather"};
  call.parts.reserve(segments.size());
  for (const GatherSegment& s : segments) {
    check_segment("all_gather", call.parts.size(), s.full, s.shard, rank, size, group);
    if (s.full.dtype() != s.shard.dtype())
      throw_invalid(concat("all_gather on ", group, ", segment ", call.parts.size(),
                           ": `shard` is ", name_of(s.shard.dtype()), " and `full` is ",
                           name_of(s.full.dtype()), "; they must agree"));
    call.parts.push_back(
        {s.shard.data(), s.full.data(), elements_of(s.shard), s.shard.dtype(), s.full.dtype()});
  }
  return call;
}

Call reduce_call(std::span<const ReduceSegment> segments, int rank, int size,
                 const ReduceOptions& options, const std::string& group) {
  check_wire("reduce_scatter", options, group);
  Call call{.operation = "reduce_scatter", .options = options};
  call.parts.reserve(segments.size());
  for (const ReduceSegment& s : segments) {
    check_segment("reduce_scatter", call.parts.size(), s.full, s.shard, rank, size, group);
    check_reducible("reduce_scatter", s.full.dtype(), group);
    check_reducible("reduce_scatter", s.shard.dtype(), group);
    call.parts.push_back(
        {s.full.data(), s.shard.data(), elements_of(s.shard), s.full.dtype(), s.shard.dtype()});
  }
  return call;
}

Call all_reduce_call(const View& data, const ReduceOptions& options, const std::string& group) {
  check_wire("all_reduce", options, group);
  check_reducible("all_reduce", data.dtype(), group);
  return {.operation = "all_reduce",
          .parts = {{data.data(), data.data(), elements_of(data), data.dtype(), data.dtype()}},
          .options = options};
}

Call broadcast_call(const View& data, int root, int size, const std::string& group) {
  if (root < 0 || root >= size)
    throw_invalid(
        concat("broadcast on ", group, ": root must be in [0, ", size, "), found ", root));
  return {.operation = "broadcast",
          .parts = {{data.data(), data.data(), elements_of(data), data.dtype(), data.dtype()}},
          .root = root};
}

Call all_to_all_call(std::span<const ConstView> to, std::span<const View> from, int size,
                     const std::string& group) {
  const auto where = [&] { return concat("all_to_all on ", group, ": "); };
  if (to.size() != from.size() || to.size() % static_cast<std::size_t>(size) != 0)
    throw_invalid(concat(where(), "expected a piece to and from each of ", size,
                         " ranks, or several sets of them, found ", to.size(), " and ",
                         from.size()));
  if (overlaps(to, from)) throw_invalid(concat(where(), "what arrives overlaps another piece"));
  Call call{.operation = "all_to_all", .of_pairs = true};
  for (const ConstView& view : to)
    call.parts.push_back({view.data(), nullptr, elements_of(view), view.dtype(), view.dtype()});
  for (const View& view : from)
    call.parts.push_back({nullptr, view.data(), elements_of(view), view.dtype(), view.dtype()});
  for (const Part& part : call.parts) {
    const PieceWords words{part.piece, static_cast<std::int64_t>(part.in_dtype)};
    call.value.append(reinterpret_cast<const char*>(&words), sizeof words);
  }
  return call;
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

std::vector<Access> accesses(std::span<const ConstView> to, std::span<const View> from) {
  std::vector<Access> list;
  list.reserve(to.size() + from.size());
  for (const ConstView& view : to) list.push_back(reads(view));
  for (const View& view : from) list.push_back(writes(view));
  return list;
}

std::string describe(const Call& call, std::int64_t sequence) {
  std::string text = concat("#", sequence, " ", call.operation);
  if (call.of_pairs) return concat(text, " of ", call.parts.size() / 2, " pieces a rank");
  for (const Part& part : call.parts) {
    text += concat(&part == call.parts.data() ? " of " : ", ", part.piece, " x ",
                   name_of(part.in_dtype));
    if (part.out_dtype != part.in_dtype) text += concat(" to ", name_of(part.out_dtype));
  }
  if (call.root >= 0) text += concat(" from root ", call.root);
  if (call.options)
    text += concat(" scale_in ", call.options->scale_in, " scale_out ", call.options->scale_out,
                   " wire ", call.options->wire ? name_of(*call.options->wire) : "none");
  return text;
}

bool agree(const Call& a, const Call& b) {
  const auto same_part = [](const Part& x, const Part& y) {
    return x.piece == y.piece && x.in_dtype == y.in_dtype && x.out_dtype == y.out_dtype;
  };
  const auto same_options = [](const ReduceOptions& x, const ReduceOptions& y) {
    return x.scale_in == y.scale_in && x.scale_out == y.scale_out && x.wire == y.wire;
  };
  if (a.of_pairs || b.of_pairs)
    return std::string_view(a.operation) == b.operation && a.parts.size() == b.parts.size();
  return std::string_view(a.operation) == b.operation && a.root == b.root &&
         std::equal(a.parts.begin(), a.parts.end(), b.parts.begin(), b.parts.end(), same_part) &&
         a.options.has_value() == b.options.has_value() &&
         (!a.options || same_options(*a.options, *b.options));
}

std::string mismatch(std::span<const std::string> lines) {
  for (std::size_t r = 1; r < lines.size(); ++r) {
    const std::string& a = lines[0];
    const std::string& b = lines[r];
    if (a == b) continue;
    const auto difference = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
    const auto at = static_cast<std::size_t>(difference);
    return concat("ranks call different operations: group rank 0: ", excerpt(a, at),
                  "; group rank ", r, ": ", excerpt(b, at));
  }
  return {};
}

std::string pair_mismatch(std::span<const std::string> values) {
  const std::size_t size = values.size();
  const std::size_t sets = values[0].size() / sizeof(PieceWords) / size / 2;
  const auto words = [&](std::size_t rank, std::size_t at) {
    PieceWords piece;
    std::memcpy(&piece, values[rank].data() + at * sizeof piece, sizeof piece);
    return piece;
  };
  for (std::size_t from = 0; from < size; ++from)
    for (std::size_t to = 0; to < size; ++to)
      for (std::size_t set = 0; set < sets; ++set) {
        const PieceWords sent = words(from, set * size + to);
        const PieceWords expected = words(to, (sets + set) * size + from);
        if (sent == expected) continue;
        return concat("all_to_all: group rank ", from, " sends ", sent.elements, " x ",
                      name_of(static_cast<DType>(sent.dtype)), " to group rank ", to,
                      ", which expects ", expected.elements, " x ",
                      name_of(static_cast<DType>(expected.dtype)));
      }
  return {};
}

std::string mismatch(int source, const Part& sent, int target, const Part& expected) {
  if (sent.piece == expected.piece && sent.in_dtype == expected.in_dtype) return {};
  return concat("rank ", source, " sends ", sent.piece, " x ", name_of(sent.in_dtype), " but rank ",
                target, " receives ", expected.piece, " x ", name_of(expected.in_dtype));
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

std::string describe_wait(int rank, std::chrono::milliseconds waited, const std::string& operation,
                          const std::string& missing) {
  return concat("rank ", rank, " has waited ", std::chrono::duration<double>(waited).count(),
                " s in ", operation, " for ", missing);
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
