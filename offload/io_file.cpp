#include "zero3d/offload/io_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

int system_open(const char* path, int flags) { return ::open(path, flags, 0600); }

}  // namespace

IoFile::IoFile(std::string path, bool direct, Open open) : path_(std::move(path)) {
  if (open == nullptr) open = system_open;
  const int flags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
  if (direct) descriptor_ = Descriptor(open(path_.c_str(), flags | O_DIRECT));
  direct_ = bool(descriptor_);
  // EINVAL is how a file system says that it has no direct I/O.
  if (!descriptor_ && (!direct || errno == EINVAL))
    descriptor_ = Descriptor(open(path_.c_str(), flags));
  if (!descriptor_) throw IoError(path_, errno, "cannot create the file");
}

void IoFile::reserve(std::int64_t bytes) {
  if (bytes > 0) {
    int code = 0;
    do {
      code = ::fallocate(descriptor_.value(), 0, 0, bytes) == 0 ? 0 : errno;
    } while (code == EINTR);
    if (code != 0 && code != EOPNOTSUPP && code != ENOSYS)
      throw IoError(path_, code, concat("cannot reserve ", format_count(bytes), " bytes"));
    if (code == 0) return;
  }
  if (::ftruncate(descriptor_.value(), bytes) != 0)
    throw IoError(path_, errno,
                  concat("cannot make the file ", format_count(bytes), " bytes long"));
}

}  // namespace zero3d
