// A regular file opened for reading at offsets. Reads go through pread rather than a mapping, so
// that a file that shrinks or fails under us is an IoError and never a SIGBUS; the page cache
// serves both alike. Safe to read from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "zero3d/core/descriptor.h"

namespace zero3d {

class InputFile {
 public:
  /// Throws IoError when `path` does not exist (it names a file of nearly that name), cannot be
  /// read or is no regular file (links are followed).
  explicit InputFile(std::string path);

  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }  ///< Size when opened.

  /// Fills dst with bytes [offset, offset + bytes); throws IoError when the file has fewer.
  void read(std::uint64_t offset, void* dst, std::size_t bytes) const;
  /// The whole file as text; IoError when it is larger than `limit` bytes.
  std::string read_all(std::uint64_t limit) const;

 private:
  std::string path_;
  Descriptor descriptor_;
  std::uint64_t bytes_ = 0;
};

}  // namespace zero3d
