#include "zero3d/offload/swap_folder.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <filesystem>
#include <map>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;

std::string exact(std::int64_t bytes) {
  return concat(format_count(bytes), " bytes (", format_bytes(bytes), ")");
}

std::int64_t free_bytes(const std::string& path) {
  struct statvfs found = {};
  if (::statvfs(path.c_str(), &found) != 0)
    throw IoError(path, errno, "cannot tell the free space");
  return static_cast<std::int64_t>(found.f_bavail) * static_cast<std::int64_t>(found.f_frsize);
}

std::uint64_t drive_of(const std::string& path) {
  struct stat found = {};
  if (::stat(path.c_str(), &found) != 0) throw IoError(path, errno, "cannot look at the folder");
  return found.st_dev;
}

}  // namespace

void check_free_space(const std::string& path, std::int64_t need, std::string_view what,
                      std::int64_t free) {
  if (free < 0) free = free_bytes(path);
  if (free >= need) return;
  throw IoError(path, ENOSPC,
                concat("needs ", exact(need), " for ", what, ", and ", exact(free), " are free"),
                concat("; free ", exact(need - free),
                       ", name a path on a larger drive, or several on different drives"));
}

SwapFolder::SwapFolder(const std::vector<std::string>& paths, const std::string& name,
                       bool direct) {
  if (paths.empty()) throw_invalid("a swap folder without a path; expected one per drive");
  for (const std::string& path : paths) {
    std::error_code code;
    fs::create_directories(path, code);
    if (code) throw IoError(path, code.value(), "cannot make the folder");
    Part& part = parts_.emplace_back();
    part.path = path;
    part.folder = std::make_unique<TemporaryPath>((fs::path(path) / "zero3d-swap").string(),
                                                  TemporaryPath::Kind::folder);
    part.file = std::make_shared<IoFile>((fs::path(part.folder->path()) / name).string(), direct);
    files_.push_back(part.file);
    if (direct && !part.file->direct())
      log_once(LogLevel::info,
               concat(path, ": the file system has no direct I/O; its page cache is used"));
  }
}

std::vector<SwapFolder::Place> SwapFolder::reserve(const std::vector<std::int64_t>& bytes,
                                                   std::string_view what) {
  std::vector<Place> places;
  std::vector<std::int64_t> sizes(parts_.size(), 0);
  std::size_t next = 0;
  for (const std::int64_t size : bytes) {
    ZERO3D_CHECK(size >= 0 && size % IoFile::kAlignment == 0, "ranges of whole pages");
    places.push_back({static_cast<int>(next), sizes[next]});
    sizes[next] += size;
    if (size > 0) next = (next + 1) % parts_.size();
  }
  std::map<std::uint64_t, std::int64_t> needs;  // paths may share a drive
  for (std::size_t i = 0; i < parts_.size(); ++i) needs[drive_of(parts_[i].path)] += sizes[i];
  for (const Part& part : parts_) check_free_space(part.path, needs[drive_of(part.path)], what);
  for (std::size_t i = 0; i < parts_.size(); ++i) parts_[i].file->reserve(sizes[i]);
  return places;
}

}  // namespace zero3d
