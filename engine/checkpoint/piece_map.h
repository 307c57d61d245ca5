// Which elements of a global tensor a block of bytes in a checkpoint's file holds: runs, and runs
// that repeat at a stride, as tensor parallelism leaves them of a matrix cut along its columns. A
// rank's part of a tensor is no box of it, so that nothing but runs tells what is where. Pure
// functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zero3d/engine/zero/placement.h"

namespace zero3d {

/// `repeat` runs of `count` elements: run i holds elements [first + i * stride, + count) of the
/// global tensor, and lies `offset` bytes and i * pitch elements into its file; stride and pitch
/// are at least `count` where it repeats.
struct Piece {
  int file = 0;
  std::int64_t offset = 0;  ///< Bytes.
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t repeat = 1;
  std::int64_t stride = 0;
  std::int64_t pitch = 0;
  friend bool operator==(const Piece&, const Piece&) = default;
};

/// The runs of a block that begins at byte `offset` of `file`, as few pieces as possible.
std::vector<Piece> pieces_of(std::span<const GlobalRun> runs, int file, std::int64_t offset,
                             std::int64_t element_bytes);

/// A run of the global tensor, and the byte of a file where it begins.
struct PlacedRun {
  std::int64_t first = 0;
  std::int64_t count = 0;
  int file = 0;
  std::int64_t offset = 0;
};

/// All runs of `pieces`, by their first element. Throws Error(kInvalid) unless they hold every
/// element of [0, numel) once; `what` names the tensor.
std::vector<PlacedRun> placed_runs(std::span<const Piece> pieces, std::int64_t numel,
                                   std::int64_t element_bytes, const std::string& what);

}  // namespace zero3d
