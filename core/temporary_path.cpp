#include "zero3d/core/temporary_path.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestStem = 150;  // a name has at most 255 bytes, with the suffix
constexpr std::size_t kLongestHost = 64;

/// The host's name with what may stand in a file's: locks are asked for on the host that took them
/// only, since not every shared file system passes them on.
std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  std::string text = std::string(name.data()).substr(0, kLongestHost);
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.') c = '_';
  }
  return text;
}

/// All that the temporary names of `target` on this host begin with, without the folder.
std::string name_start(const fs::path& target) {
  return concat(target.filename().string().substr(0, kLongestStem), ".tmp-", host_name(), "-");
}

/// "<process>-<number>".
bool is_name_end(std::string_view text) {
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) return false;
  const auto is_number = [](std::string_view part) {
    return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return is_number(text.substr(0, dash)) && is_number(text.substr(dash + 1));
}

bool still_names(const std::string& path, const Descriptor& descriptor) {
  struct stat named = {};
  struct stat open = {};
  return ::lstat(path.c_str(), &named) == 0 && ::fstat(descriptor.value(), &open) == 0 &&
         named.st_dev == open.st_dev && named.st_ino == open.st_ino;
}

/// The temporary names of a folder that begin with `start`, or of all targets where that is empty.
std::vector<std::string> temporary_names(const fs::path& folder, const std::string& start) {
  const std::string mark = concat(".tmp-", host_name(), "-");
  std::vector<std::string> found;
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    const std::string name = it->path().filename().string();
    const std::size_t at = start.empty() ? name.rfind(mark) : name.find(start);
    if (at == std::string::npos || (!start.empty() && at != 0)) continue;
    const std::size_t rest = at + (start.empty() ? mark : start).size();
    if (is_name_end(std::string_view(name).substr(rest))) found.push_back(it->path().string());
  }
  return found;
}

/// Open and locked where nobody else holds it: of a run that was killed.
Descriptor take_abandoned(const std::string& path) {
  Descriptor held(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!held || ::flock(held.value(), LOCK_EX | LOCK_NB) != 0 || !still_names(path, held))
    return Descriptor();
  return held;
}

void sweep(const fs::path& target) {
  const fs::path folder = target.has_parent_path() ? target.parent_path() : ".";
  for (const std::string& path : temporary_names(folder, name_start(target)))
    TemporaryPath::remove_abandoned(path);
}

/// False when a run that sweeps was faster and takes it away.
bool lock_new(const std::string& path, const Descriptor& descriptor) {
  if (::flock(descriptor.value(), LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;
  return still_names(path, descriptor);
}

}  // namespace

TemporaryPath::TemporaryPath(const std::string& target, Kind kind) {
  // The system would end the path there, and make, or later remove, what another one names.
  if (target.find('\0') != std::string::npos)
    throw IoError(target.substr(0, target.find('\0')), EINVAL,
                  "a path goes on behind a NUL character, which none can hold");
  static std::atomic<unsigned> number{0};
  sweep(target);
  const std::string start = (fs::path(target).parent_path() / name_start(target)).string();
  for (;;) {
    path_ = concat(start, ::getpid(), "-", number++);
    const bool made =
        kind == Kind::folder
            ? ::mkdir(path_.c_str(), 0777) == 0
            : bool(descriptor_ = Descriptor(
                       ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)));
    if (!made && errno == EEXIST) continue;
    if (made && kind == Kind::folder)
      descriptor_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!descriptor_) {
      const int code = errno;
      if (made && code == ENOENT) continue;  // swept before it was locked
      if (made) ::rmdir(path_.c_str());
      throw IoError(target, code,
                    kind == Kind::folder ? "cannot create a folder beside it to write to"
                                         : "cannot create the file");
    }
    if (lock_new(path_, descriptor_)) return;
    descriptor_ = Descriptor();
  }
}

TemporaryPath::~TemporaryPath() { remove(); }

std::vector<std::string> TemporaryPath::abandoned_in(const std::string& folder) {
  std::vector<std::string> paths = temporary_names(folder, "");
  std::erase_if(paths, [](const std::string& path) { return !take_abandoned(path); });
  return paths;
}

void TemporaryPath::remove_abandoned(const std::string& path) {
  const Descriptor held = take_abandoned(path);
  std::error_code code;
  if (held) fs::remove_all(path, code);
}

std::error_code TemporaryPath::remove() {
  std::error_code code;
  if (!path_.empty()) fs::remove_all(path_, code);
  release();
  return code;
}

void TemporaryPath::release() {
  path_.clear();
  descriptor_ = Descriptor();
}

}  // namespace zero3d
