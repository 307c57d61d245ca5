#include "zero3d/core/descriptor.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "zero3d/core/error.h"

namespace zero3d {

Descriptor::Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(value_, other.value_);
  return *this;
}

Descriptor::~Descriptor() {
  if (value_ >= 0) ::close(value_);
}

void Descriptor::close(const std::string& path) {
  if (::close(std::exchange(value_, -1)) != 0 && errno != EINTR)
    throw IoError(path, errno, "cannot write the end of the file");
}

void Descriptor::write(const std::string& path, const void* data, std::size_t bytes) const {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::write(value_, from, std::min<std::size_t>(bytes, 1u << 30));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) throw IoError(path, put < 0 ? errno : ENOSPC, "cannot write");
    from += put;
    bytes -= static_cast<std::size_t>(put);
  }
}

}  // namespace zero3d
