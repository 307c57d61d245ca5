#include "zero3d/formats/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;

/// Of a file that is not there: ", looked for in /home/me; did you mean config.json?"
std::string nearby(const fs::path& wanted) {
  std::error_code ignored;
  const fs::path folder = wanted.has_parent_path() ? wanted.parent_path() : fs::path(".");
  std::vector<std::string> names;
  for (auto entry = fs::directory_iterator(folder, ignored);
       !ignored && entry != fs::directory_iterator() && names.size() < 1000;
       entry.increment(ignored)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  const std::string near = nearest_name(wanted.filename().string(), candidates);
  const fs::path absolute = wanted.is_absolute() ? folder : fs::current_path(ignored);
  const std::string hint =
      near.empty() ? ""
                   : concat("; did you mean ",
                            wanted.has_parent_path() ? (folder / near).string() : near, "?");
  return concat(", looked for in ", absolute.string(), hint);
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // Non-blocking, or opening a named pipe would wait for its writer.
  descriptor_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor_) {
    const int code = errno;
    throw IoError(path_, code, "cannot open the file", code == ENOENT ? nearby(path_) : "");
  }
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
