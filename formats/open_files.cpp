#include "zero3d/formats/open_files.h"

#include <algorithm>

namespace zero3d {

std::shared_ptr<const InputFile> OpenFiles::open(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find_if(files_, [&](const auto& file) { return file->path() == path; });
  if (found != files_.end()) {
    files_.splice(files_.begin(), files_, found);
  } else {
    files_.push_front(std::make_shared<const InputFile>(path));
    if (files_.size() > most_) files_.pop_back();
  }
  return files_.front();
}

}  // namespace zero3d
