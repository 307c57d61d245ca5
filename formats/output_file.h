// A file written under a temporary name beside its target and renamed over it by commit(), after
// fsync: under the final name there is the old file or the whole new one, never a part. Without
// commit() the temporary file is removed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace zero3d {

class OutputFile {
 public:
  /// Throws IoError when no file can be created in the target's folder.
  explicit OutputFile(std::string path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  const std::string& path() const { return path_; }
  std::uint64_t written() const { return written_; }
  /// Appends; throws IoError with the errno (disk full, size limit).
  void write(const void* data, std::size_t bytes);
  /// Makes the file durable and moves it to its path. Nothing may follow.
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
  std::uint64_t written_ = 0;
};

/// "<path>.tmp-<process>-<number>", not used before in this process: a name for what is not yet
/// complete.
std::string temporary_name(const std::string& path);
/// Makes the entries of a folder durable; throws IoError.
void sync_folder(const std::string& path);
/// Writes `text` to `path` through an OutputFile.
void write_text_file(const std::string& path, const std::string& text);

}  // namespace zero3d
