#include "zero3d/core/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargePart = std::size_t{1} << 20;

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/// What is at the end of `path`; nothing when nothing is there.
std::optional<struct stat> status_of(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0) return status;
  if (errno != ENOENT || path.empty()) throw IoError(path, errno, "cannot be written");
  return std::nullopt;
}

/// Standard output or error, where that goes to the file with this status: a file that is opened a
/// second time would be written over itself.
Descriptor standard_descriptor(const std::string& path, const struct stat& status) {
  for (const int standard : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat open = {};
    if (::fstat(standard, &open) != 0 || !same_file(open, status)) continue;
    Descriptor copy(::fcntl(standard, F_DUPFD_CLOEXEC, 0));
    if (!copy) throw IoError(path, errno, "cannot be written");
    return copy;
  }
  return Descriptor();
}

Descriptor open_pipe(const std::string& path) {
  // Without blocking first, to tell of a wait for its reader.
  Descriptor pipe(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));
  if (!pipe && errno == ENXIO) {
    log_warning(concat(path, ": nothing reads this pipe yet; waiting until something does"));
    pipe = Descriptor(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  } else if (pipe) {
    ::fcntl(pipe.value(), F_SETFL, ::fcntl(pipe.value(), F_GETFL) & ~O_NONBLOCK);
  }
  return pipe;
}

/// Open for writing when `path` is to be written as it is; not open when a file may take its place.
Descriptor open_through(const std::string& path, const std::optional<struct stat>& status) {
  if (!status) return Descriptor();
  if (Descriptor standard = standard_descriptor(path, *status)) return standard;
  Descriptor through;
  switch (status->st_mode & S_IFMT) {
    case S_IFREG:
      if (::access(path.c_str(), W_OK) != 0) throw IoError(path, errno, "cannot be written");
      return Descriptor();
    case S_IFIFO:
      through = open_pipe(path);
      break;
    case S_IFCHR:
      through = Descriptor(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
      break;
    default:
      throw IoError(path, 0,
                    concat("expected a file to write, found ",
                           S_ISDIR(status->st_mode)   ? "a folder"
                           : S_ISBLK(status->st_mode) ? "a drive"
                                                      : "a socket",
                           "; choose another path"));
  }
  if (!through) throw IoError(path, errno, "cannot be written");
  return through;
}

/// The path without links, for a file that may be renamed over.
std::string regular_target(const std::string& path, const std::optional<struct stat>& status) {
  std::string target = follow_links(path);
  struct stat found = {};
  if (status && (::lstat(target.c_str(), &found) != 0 || !same_file(found, *status)))
    throw IoError(path, 0, "leads to a file without a name; choose another path");
  return target;
}

/// A file takes over whom the old one belongs to and who may use it.
void take_over_access(const Descriptor& file, const struct stat& old) {
  // Only root may give files away; others keep their own.
  if (::fchown(file.value(), old.st_uid, old.st_gid) != 0) errno = 0;
  if (::fchmod(file.value(), old.st_mode & 0777) != 0) errno = 0;
}

}  // namespace

std::string follow_links(const std::string& path) {
  fs::path at(path);
  for (int link = 0; link < 40; ++link) {  // as many as the system follows
    std::error_code code;
    const fs::path to = fs::read_symlink(at, code);
    if (code) return at.string();
    at = at.parent_path() / to;
  }
  throw IoError(path, ELOOP, "cannot be followed");
}

void sync_folder(const std::string& path) {
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) throw IoError(path, errno, "cannot open the folder");
  // Some file systems know no fsync of folders; their renames are as durable as they get.
  if (::fsync(folder.value()) != 0 && errno != EINVAL)
    throw IoError(path, errno, "cannot sync the folder");
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  const std::optional<struct stat> status = status_of(path_);
  through_ = open_through(path_, status);
  if (through_) return;
  target_ = regular_target(path_, status);
  temporary_.emplace(target_, TemporaryPath::Kind::file);
  if (status) take_over_access(temporary_->descriptor(), *status);
}

void OutputFile::write(const void* data, std::size_t bytes) {
  ZERO3D_CHECK(!committed_, "write after commit");
  const bool before = std::exchange(damaged_, true);
  (through_ ? through_ : temporary_->descriptor()).write(path_, data, bytes);
  damaged_ = before;
  // Large files are brought to the drive while they grow, rather than all of it by commit(). A
  // hint.
  if (!through_ && bytes >= kLargePart)
    ::sync_file_range(temporary_->descriptor().value(), 0, 0, SYNC_FILE_RANGE_WRITE);
}

void OutputFile::commit() {
  ZERO3D_CHECK(!committed_, "commit called twice");
  if (damaged_) throw IoError(path_, 0, "a write failed before, the file is not whole");
  committed_ = true;
  if (through_) return through_.close(path_);
  if (::fsync(temporary_->descriptor().value()) != 0)
    throw IoError(path_, errno, "cannot sync the file");
  if (::rename(temporary_->path().c_str(), target_.c_str()) != 0)
    throw IoError(path_, errno, "cannot move the complete file to its name");
  temporary_->release();
  const std::string folder = fs::path(target_).parent_path().string();
  sync_folder(folder.empty() ? "." : folder);
}

LineFile::LineFile(std::string path) : path_(std::move(path)) {
  const std::optional<struct stat> status = status_of(path_);
  descriptor_ = open_through(path_, status);
  if (descriptor_) return;
  regular_ = true;
  if (!status) created_ = follow_links(path_);
  descriptor_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!descriptor_) throw IoError(path_, errno, "cannot be written");
  if (::flock(descriptor_.value(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw IoError(path_, errno, "is written by another run now; name another file");
}

LineFile::~LineFile() {
  if (!created_.empty()) ::unlink(created_.c_str());
}

void LineFile::write(std::string_view line) {
  if (regular_ && !std::exchange(started_, true) && ::ftruncate(descriptor_.value(), kept_) != 0)
    throw IoError(path_, errno, "cannot be written");
  created_.clear();
  struct stat before = {};
  const bool known = regular_ && ::fstat(descriptor_.value(), &before) == 0;
  try {
    const std::string whole = concat(line, "\n");
    descriptor_.write(path_, whole.data(), whole.size());
  } catch (const IoError&) {
    if (known && ::ftruncate(descriptor_.value(), before.st_size) != 0) errno = 0;
    throw;
  }
}

void write_text_file(const std::string& path, const std::string& text) {
  OutputFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace zero3d
