// The files that a program writes. A whole file grows under a temporary name beside its target and
// takes its place in one rename by commit(), after fsync: under the final name there is the old
// file or the whole new one, never a part. Lines are appended to their file as they come, each
// whole or not at all. Links are followed, to a file that is not there yet too. What takes bytes as
// they come (a terminal, /dev/null, a pipe, wherever standard output goes) is written through;
// folders, drives and sockets are refused. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "zero3d/core/descriptor.h"
#include "zero3d/core/temporary_path.h"

namespace zero3d {

class OutputFile {
 public:
  /// Throws IoError when the path cannot be written.
  explicit OutputFile(std::string path);

  const std::string& path() const { return path_; }
  /// Appends; throws IoError with the errno (disk full, size limit).
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Makes the file durable and moves it to its path; throws IoError, after a failed write too.
  /// Nothing may follow.
  void commit();

 private:
  std::string path_;
  std::string target_;                      ///< The path with links followed.
  Descriptor through_;                      ///< Open where there is nothing to rename over.
  std::optional<TemporaryPath> temporary_;  ///< Otherwise.
  bool committed_ = false;
  bool damaged_ = false;  ///< A write has failed.
};

class LineFile {
 public:
  /// Opens `path` and leaves what is there until the first line takes its place. Throws IoError.
  explicit LineFile(std::string path);
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  ~LineFile();  ///< Without a line, a file that was not there is removed.

  /// Keeps the first bytes of what is there when the first line comes; without a call, none.
  void keep(std::int64_t bytes) { kept_ = bytes; }
  /// Writes `line` and the end of it; after an IoError the file ends with the line before.
  void write(std::string_view line);
  /// Whether it is a file, with a place for others beside it.
  bool is_regular() const { return regular_; }

 private:
  std::string path_;
  Descriptor descriptor_;
  bool regular_ = false;
  bool started_ = false;  ///< What was there before is gone, but for what is kept.
  std::int64_t kept_ = 0;
  std::string created_;  ///< What was not there before, while it has no line.
};

/// `path` with the links at its end followed, whether or not there is something at the end of them.
/// Throws IoError for links that go round.
std::string follow_links(const std::string& path);
/// Makes the entries of a folder durable; throws IoError.
void sync_folder(const std::string& path);
/// Writes `text` to `path` through an OutputFile.
void write_text_file(const std::string& path, const std::string& text);

}  // namespace zero3d
