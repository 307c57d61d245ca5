// A file that an I/O queue reads and writes: open for both, past the page cache (O_DIRECT) where
// its file system can do that.
#pragma once

#include <cstdint>
#include <string>

#include "zero3d/core/descriptor.h"

namespace zero3d {

class IoFile {
 public:
  /// Of offsets, sizes and addresses of what passes the page cache by.
  static constexpr std::int64_t kAlignment = 4096;
  /// The system's open(path, flags, 0600), for tests.
  using Open = int (*)(const char* path, int flags);

  /// Makes an empty file. Where `direct` is wanted and the file system refuses it, the file is
  /// opened without: direct() tells. Throws IoError.
  IoFile(std::string path, bool direct, Open open = nullptr);

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_.value(); }
  bool direct() const { return direct_; }
  /// Gives it this size, with room on the drive where the file system can promise that; throws
  /// IoError.
  void reserve(std::int64_t bytes);

 private:
  std::string path_;
  Descriptor descriptor_;
  bool direct_ = false;
};

}  // namespace zero3d
