#include "zero3d/formats/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {

std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> number{0};
  return concat(path, ".tmp-", ::getpid(), "-", number++);
}

void sync_folder(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw IoError(path, errno, "cannot open the folder");
  const int code = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  // Some file systems know no fsync of folders; their renames are as durable as they get.
  if (code != 0 && code != EINVAL) throw IoError(path, code, "cannot sync the folder");
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  do {
    temporary_ = temporary_name(path_);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) throw IoError(path_, errno, "cannot create the file");
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void OutputFile::write(const void* data, std::size_t bytes) {
  ZERO3D_CHECK(descriptor_ >= 0, "write after commit");
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::write(descriptor_, from, std::min<std::size_t>(bytes, 1u << 30));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      throw IoError(path_, put < 0 ? errno : ENOSPC, concat("cannot write at byte ", written_));
    }
    from += put;
    bytes -= static_cast<std::size_t>(put);
    written_ += static_cast<std::uint64_t>(put);
  }
}

void OutputFile::commit() {
  ZERO3D_CHECK(descriptor_ >= 0, "commit called twice");
  if (::fsync(descriptor_) != 0) throw IoError(path_, errno, "cannot sync the file");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    throw IoError(path_, errno, "cannot move the complete file to its name");
  }
  ::close(std::exchange(descriptor_, -1));
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  sync_folder(folder.empty() ? "." : folder);
}

void write_text_file(const std::string& path, const std::string& text) {
  OutputFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace zero3d
