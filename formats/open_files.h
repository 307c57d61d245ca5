// Files kept open between reads, the last used ones: a checkpoint may have more files than a
// process may open. Safe from several threads. Internal to formats.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "zero3d/formats/input_file.h"

namespace zero3d {

class OpenFiles {
 public:
  explicit OpenFiles(std::size_t most = 32) : most_(most) {}
  OpenFiles(const OpenFiles&) = delete;
  OpenFiles& operator=(const OpenFiles&) = delete;

  /// The file under `path`; it stays open as long as the caller has it. Throws IoError.
  std::shared_ptr<const InputFile> open(const std::string& path);

 private:
  const std::size_t most_;
  std::mutex mutex_;
  std::list<std::shared_ptr<const InputFile>> files_;  ///< The last used one first.
};

}  // namespace zero3d
