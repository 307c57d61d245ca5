#include "zero3d/formats/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // Non-blocking, or opening a named pipe would wait for its writer.
  descriptor_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor_) throw IoError(path_, errno, "cannot open the file");
  struct stat status = {};
  const int code = ::fstat(descriptor_.value(), &status) == 0 ? 0 : errno;
  if (code != 0 || !S_ISREG(status.st_mode)) {
    throw IoError(
        path_, code,
        S_ISDIR(status.st_mode) ? "expected a file, found a folder" : "expected a regular file");
  }
  bytes_ = static_cast<std::uint64_t>(status.st_size);
}

void InputFile::read(std::uint64_t offset, void* dst, std::size_t bytes) const {
  if (offset > bytes_ || bytes > bytes_ - offset) {
    throw IoError(path_, 0,
                  concat("expected ", bytes, " bytes at offset ", offset, ", the file has ", bytes_,
                         " bytes"));
  }
  char* out = static_cast<char*>(dst);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_.value(), out, std::min<std::size_t>(bytes, 1u << 30),
                                static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError(path_, errno, concat("cannot read at offset ", offset));
    if (got == 0) {
      throw IoError(path_, 0,
                    concat("the file shrank while it was read: no byte at offset ", offset,
                           ", it had ", bytes_, " when opened"));
    }
    out += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

std::string InputFile::read_all(std::uint64_t limit) const {
  if (bytes_ > limit) {
    throw IoError(path_, 0,
                  concat("expected at most ", format_bytes(static_cast<std::int64_t>(limit)),
                         ", found ", format_bytes(static_cast<std::int64_t>(bytes_))));
  }
  std::string text(static_cast<std::size_t>(bytes_), '\0');
  read(0, text.data(), text.size());
  return text;
}

}  // namespace zero3d
