// What one rank brings to a collective: the checked arguments, what is compared between ranks, and
// the byte ranges it touches. Shared by all communicators, internal to them.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zero3d/parallel/comm/communicator.h"

namespace zero3d::detail {

inline std::int64_t elements_of(const ConstView& view) { return view.defined() ? view.numel() : 0; }

/// One segment of a collective as the work functions see it: bytes, not views.
struct Part {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::int64_t piece = 0;  ///< Elements per rank (all_reduce, broadcast, messages: all elements).
  DType in_dtype = DType::f32;
  DType out_dtype = DType::f32;
};

/// All of it but pointers and `value` is the same on every rank.
struct Call {
  const char* operation = "";  ///< Those of the host say so: "split (host)".
  std::vector<Part> parts;
  std::optional<ReduceOptions> options;
  int root = -1;
  std::string value;  ///< What a host operation gives out; of_pairs: what it expects of each peer.
  /// Parts are from rank to rank, and differ between ranks: first what is sent, set by set in rank
  /// order (`in`), then as many that arrive (`out`).
  bool of_pairs = false;
};

/// Each throws Error(kInvalid) when sizes, dtypes, overlap or ranks break the contract of
/// communicator.h; `group` describes the group in messages.
Call gather_call(std::span<const GatherSegment> segments, int rank, int size,
                 const std::string& group);
Call reduce_call(std::span<const ReduceSegment> segments, int rank, int size,
                 const ReduceOptions& options, const std::string& group);
Call all_reduce_call(const View& data, const ReduceOptions& options, const std::string& group);
Call broadcast_call(const View& data, int root, int size, const std::string& group);
Call all_to_all_call(std::span<const ConstView> to, std::span<const View> from, int size,
                     const std::string& group);
void check_peer(const char* operation, int peer, int rank, int size, const std::string& group);

std::vector<Access> accesses(std::span<const GatherSegment> segments);
std::vector<Access> accesses(std::span<const ReduceSegment> segments);
std::vector<Access> accesses(std::span<const ConstView> to, std::span<const View> from);

/// "#3 all_gather of 8 x fp32, 2 x bf16": the `sequence`th call of its group.
std::string describe(const Call& call, std::int64_t sequence);
/// Whether both describe the same operation.
bool agree(const Call& a, const Call& b);
/// "" when the lines of all ranks are equal, else the first two ranks that differ, what they say,
/// and where.
std::string mismatch(std::span<const std::string> lines);
/// "" when the pieces of all ranks' calls of_pairs fit, given by their values; else the first that
/// does not.
std::string pair_mismatch(std::span<const std::string> values);
/// "" when a message fits, else what both sides say.
std::string mismatch(int source, const Part& sent, int target, const Part& expected);

/// The elements [begin, end) that rank `rank` of `size` reduces of `numel` in an all_reduce: equal
/// pieces, rounded up so that ranks write to different cache lines.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
Range all_reduce_piece(std::int64_t numel, int rank, int size);

/// The value of a rank that calls split(color, key), and what all ranks' values make of it: the
/// members of `rank`'s new group as ranks of the old one, in their new order, and its place there.
std::string split_value(int color, int key);
struct SplitResult {
  std::vector<int> members;
  int rank = 0;
};
SplitResult split_members(const std::vector<std::string>& values, int rank);

/// A wait that has taken this part of its limit is worth a line in the log, where the limit is long
/// enough for somebody to read it.
constexpr int kWaitToTell = 10;
constexpr std::chrono::milliseconds kLimitToTell{3000};
/// "rank 0 has waited 30 s in all_gather on group of ranks 0-1 for rank 1".
std::string describe_wait(int rank, std::chrono::milliseconds waited, const std::string& operation,
                          const std::string& missing);

/// "group of ranks 0-3", "group of ranks 0, 2".
std::string describe_ranks(std::span<const int> world_ranks);

}  // namespace zero3d::detail
