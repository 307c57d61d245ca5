// The metrics of a run as JSON lines, one a step, written as steps finish.
#pragma once

#include <fstream>
#include <string>

#include "zero3d/engine/engine.h"

namespace zero3d::tools {

class MetricsFile {
 public:
  /// An empty path writes nothing. Throws IoError when the file cannot be written.
  explicit MetricsFile(const std::string& path);
  void train(const StepResult& result);
  void evaluation(std::int64_t step, double loss);

 private:
  void write(const std::string& line);

  std::string path_;
  std::ofstream out_;
};

}  // namespace zero3d::tools
