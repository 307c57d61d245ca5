// Checksums of the chunks of a checkpoint's file, taken as it is written and held to as it is read,
// chunk by chunk, so that a rank that reads a slice need not read the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/view.h"

namespace zero3d {

class FileSums {
 public:
  static constexpr std::int64_t kChunkBytes = std::int64_t{1} << 22;
  /// What is added at a time is a multiple of this, but for the end.
  static constexpr std::int64_t kPageBytes = 4096;

  /// The next bytes of the file.
  void add(const ConstView& bytes);
  /// Of every chunk; the last may be shorter.
  const std::vector<std::uint64_t>& chunks() const { return chunks_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::vector<std::uint64_t> chunks_;
  std::int64_t bytes_ = 0;
};

/// Of the chunk with this number, whole.
std::uint64_t chunk_sum(const ConstView& bytes, std::int64_t number);

/// 16 hexadecimal digits each, and back; throws Error(kInvalid) for another text.
std::string sums_to_text(const std::vector<std::uint64_t>& sums);
std::vector<std::uint64_t> sums_from_text(std::string_view text);

}  // namespace zero3d
