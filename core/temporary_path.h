// A name beside a target for what is not yet complete, "<target>.tmp-<host>-<process>-<number>",
// and the file or folder under it. It is locked (flock) while its run lives, so that the next run
// for the same target can tell what a killed one has left, and removes that.
#pragma once

#include <string>
#include <system_error>
#include <vector>

#include "zero3d/core/descriptor.h"

namespace zero3d {

class TemporaryPath {
 public:
  enum class Kind { file, folder };

  /// Removes what killed runs of this host have left beside `target`, then makes a new file (open
  /// for writing) or folder. Throws IoError at the target.
  TemporaryPath(const std::string& target, Kind kind);
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;
  ~TemporaryPath();  ///< Removes what has that name, folders with all that is in them.

  /// What killed runs of this host have left in a folder, for any target.
  static std::vector<std::string> abandoned_in(const std::string& folder);
  /// Removes it unless a run took it up since.
  static void remove_abandoned(const std::string& path);

  const std::string& path() const { return path_; }
  const Descriptor& descriptor() const { return descriptor_; }
  /// Removes it now; the error when something stays.
  std::error_code remove();
  /// It has another name now: nothing is left to remove.
  void release();

 private:
  std::string path_;
  Descriptor descriptor_;
};

}  // namespace zero3d
