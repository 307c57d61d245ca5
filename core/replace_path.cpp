#include "zero3d/core/replace_path.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;

/// False when the system cannot.
bool exchange(const std::string& a, const std::string& b) {
#ifdef RENAME_EXCHANGE
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
    throw IoError(b, errno, "cannot take the place of what is there");
#endif
  return false;
}

}  // namespace

void replace_path(const std::string& fresh, const std::string& target) {
  if (exchange(fresh, target)) return;
  const std::string old = concat(target, ".old-", ::getpid());
  std::error_code code;
  fs::rename(target, old, code);
  if (code) throw IoError(target, code.value(), "cannot be moved aside");
  fs::rename(fresh, target, code);
  if (code) {
    std::error_code back;
    fs::rename(old, target, back);
    throw IoError(target, code.value(), "cannot take the place of what was there");
  }
  fs::rename(old, fresh, code);
}

}  // namespace zero3d
