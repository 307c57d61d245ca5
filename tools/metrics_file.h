// The metrics of a run as JSON lines, one a step, written as steps finish.
#pragma once

#include <string>

#include "zero3d/core/output_file.h"
#include "zero3d/engine/engine.h"

namespace zero3d::tools {

class MetricsFile {
 public:
  /// What is at the path is kept until the first line. Throws IoError when it cannot be written.
  explicit MetricsFile(const std::string& path) : lines_(path) {}
  /// Whether other files can lie beside it: it is no pipe or device.
  bool is_regular() const { return lines_.is_regular(); }
  /// Into how many tiles layers are cut: in the records of steps, where any are.
  void set_tiles(const TileSettings& tiles) { tiles_ = tiles; }
  void train(const StepResult& result);
  void evaluation(std::int64_t step, double loss);

 private:
  LineFile lines_;
  TileSettings tiles_{1, 1};
};

}  // namespace zero3d::tools
