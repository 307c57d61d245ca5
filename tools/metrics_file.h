// The metrics of a run as JSON lines, one a step, written as steps finish.
#pragma once

#include <string>

#include "zero3d/core/output_file.h"
#include "zero3d/engine/engine.h"

namespace zero3d::tools {

class MetricsFile {
 public:
  /// Of a run whose first step is `first_step`: records of earlier steps stay, and those that are
  /// there of later ones go with the first line; until then all is as it was. Throws IoError when
  /// the file cannot be read or written.
  MetricsFile(const std::string& path, std::int64_t first_step);
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
