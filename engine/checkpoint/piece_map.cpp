#include "zero3d/engine/checkpoint/piece_map.h"

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

/// Whether `run` goes on with `piece`, whose last run is `last`; the first repetition says how.
bool repeats(const Piece& piece, const GlobalRun& last, const GlobalRun& run) {
  if (run.count != piece.count) return false;
  return piece.repeat == 1 || (run.global_first - last.global_first == piece.stride &&
                               run.offset - last.offset == piece.pitch);
}

[[noreturn]] void refuse(const std::string& what, std::int64_t numel, std::int64_t at,
                         std::string_view problem) {
  throw_invalid(concat("the pieces of ", what, ", which has ", numel, " elements, hold element ",
                       at, " ", problem));
}

}  // namespace

std::vector<Piece> pieces_of(std::span<const GlobalRun> runs, int file, std::int64_t offset,
                             std::int64_t element_bytes) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const GlobalRun& run = runs[i];
    if (i > 0 && repeats(pieces.back(), runs[i - 1], run)) {
      Piece& piece = pieces.back();
      piece.stride = run.global_first - runs[i - 1].global_first;
      piece.pitch = run.offset - runs[i - 1].offset;
      ++piece.repeat;
    } else {
      pieces.push_back(
          {file, offset + run.offset * element_bytes, run.global_first, run.count, 1, 0, 0});
    }
  }
  return pieces;
}

std::vector<PlacedRun> placed_runs(std::span<const Piece> pieces, std::int64_t numel,
                                   std::int64_t element_bytes, const std::string& what) {
  std::vector<PlacedRun> runs;
  std::int64_t held = 0;
  for (const Piece& piece : pieces) {
    if (piece.count > numel || piece.repeat > numel / std::max<std::int64_t>(1, piece.count) ||
        held > numel - piece.count * piece.repeat)
      refuse(what, numel, piece.first, "or another one twice");
    held += piece.count * piece.repeat;
    for (std::int64_t i = 0; i < piece.repeat; ++i) {
      runs.push_back({piece.first + i * piece.stride, piece.count, piece.file,
                      piece.offset + i * piece.pitch * element_bytes});
    }
  }
  std::sort(runs.begin(), runs.end(),
            [](const PlacedRun& a, const PlacedRun& b) { return a.first < b.first; });
  std::int64_t next = 0;
  for (const PlacedRun& run : runs) {
    if (run.first < next) refuse(what, numel, run.first, "twice");
    if (run.first > next) refuse(what, numel, next, "nowhere");
    next = run.first + run.count;
  }
  if (next < numel) refuse(what, numel, next, "nowhere");
  if (next > numel) refuse(what, numel, next - 1, "though it has none of that number");
  return runs;
}

}  // namespace zero3d
