// Takes the log lines of the process for a scope.
#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "zero3d/core/log.h"

namespace zero3d::test {

class LogCapture {
 public:
  LogCapture() {
    set_log_sink([this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    });
  }
  ~LogCapture() { set_log_sink({}); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  /// The lines that contain `text`.
  std::vector<std::string> with(const std::string& text) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> found;
    std::copy_if(lines_.begin(), lines_.end(), std::back_inserter(found),
                 [&](const std::string& line) { return line.find(text) != std::string::npos; });
    return found;
  }
  std::vector<std::string> lines() const { return with(""); }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace zero3d::test
