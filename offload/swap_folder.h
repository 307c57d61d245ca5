// Where a rank's state lies on drives: a private folder under each of the given paths, locked while
// the run lives and removed when it ends; what killed runs of this host have left is removed when
// the next one begins (core/temporary_path).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/temporary_path.h"
#include "zero3d/offload/io_file.h"

namespace zero3d {

class SwapFolder {
 public:
  /// A range of one of the files.
  struct Place {
    int file = 0;
    std::int64_t offset = 0;
  };

  /// One file "<path>/zero3d-swap.tmp-<host>-<process>-<number>/<name>" per path; paths that are
  /// not there are made. Direct where the file system can: a line in the log where not. Throws
  /// IoError.
  SwapFolder(const std::vector<std::string>& paths, const std::string& name, bool direct);

  /// Gives each range of `bytes` (multiples of 4 KiB; zero: none) a place, in turn on the paths,
  /// and reserves them. `what` names them in the error when a drive has not the room. Once.
  std::vector<Place> reserve(const std::vector<std::int64_t>& bytes, std::string_view what);

  const std::vector<std::shared_ptr<const IoFile>>& files() const { return files_; }

 private:
  struct Part {
    std::string path;
    std::unique_ptr<TemporaryPath> folder;
    std::shared_ptr<IoFile> file;
  };
  std::vector<Part> parts_;
  std::vector<std::shared_ptr<const IoFile>> files_;
};

/// Throws IoError when the file system at `path` has less than `need` bytes free for this user;
/// `free` is what it has, for tests; negative: asked.
void check_free_space(const std::string& path, std::int64_t need, std::string_view what,
                      std::int64_t free = -1);

}  // namespace zero3d
