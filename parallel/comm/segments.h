// Checks of the arguments of collectives and the byte ranges they touch, shared by all
// communicators. Internal to them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "zero3d/parallel/comm/communicator.h"

namespace zero3d::detail {

/// One segment of a collective as the work functions see it: bytes, not views.
struct Part {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::int64_t piece = 0;  ///< Elements per rank (all_reduce, broadcast, messages: all elements).
  DType in_dtype = DType::f32;
  DType out_dtype = DType::f32;
};

/// The segments as parts. Throws Error(kInvalid) when sizes, dtypes or overlap break the contract
/// of communicator.h; `group` describes the group in messages.
std::vector<Part> gather_parts(std::span<const GatherSegment> segments, int rank, int size,
                               const std::string& group);
std::vector<Part> reduce_parts(std::span<const ReduceSegment> segments, int rank, int size,
                               const ReduceOptions& options, const std::string& group);
Part all_reduce_part(const View& data, const ReduceOptions& options, const std::string& group);
/// Throws Error(kInvalid) unless 0 <= peer < size (and, for messages, peer is not rank).
void check_root(int root, int size, const std::string& group);
void check_peer(const char* operation, int peer, int rank, int size, const std::string& group);

std::vector<Access> accesses(std::span<const GatherSegment> segments);
std::vector<Access> accesses(std::span<const ReduceSegment> segments);

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

/// "group of ranks 0-3", "group of ranks 0, 2".
std::string describe_ranks(std::span<const int> world_ranks);

}  // namespace zero3d::detail
