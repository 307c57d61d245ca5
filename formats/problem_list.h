// Collects what is wrong with a file or folder, so that one message tells all of it, and prints
// names from hostile files harmlessly.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace zero3d {

/// core/printable.h in quotes, of 120 bytes at most.
std::string printable(std::string_view text);

class ProblemList {
 public:
  void add(std::string problem);
  bool empty() const { return count_ == 0; }
  /// "what:\n  - first\n  - second\n  and 3 more".
  std::string text(std::string_view what) const;
  /// Throws IoError(path, text(what)) unless empty.
  void throw_if_any(const std::string& path, std::string_view what) const;

 private:
  static constexpr std::size_t kShown = 24;
  std::vector<std::string> shown_;
  std::size_t count_ = 0;
};

/// "'a', 'b', 'c' and 4 more" for the names of one problem.
std::string name_list(const std::vector<std::string>& names, std::size_t shown = 8);

}  // namespace zero3d
