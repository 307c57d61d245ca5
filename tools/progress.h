// What a person sees of a run: a progress bar on a terminal, plain lines elsewhere, and a loss
// curve in text at the end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zero3d/engine/engine.h"

namespace zero3d::tools {

class Progress {
 public:
  /// Of a run of `steps` steps, the first of which here is `first`.
  explicit Progress(std::int64_t steps, std::int64_t first = 1);
  void step(const StepResult& result);
  void evaluation(std::int64_t step, double loss);
  /// Ends the bar's line, so that other output starts on its own.
  void finish();

 private:
  void draw(const StepResult& result);

  std::int64_t steps_;
  std::int64_t first_;
  bool terminal_;
  bool line_open_ = false;
  std::int64_t begin_ns_;
  std::int64_t lines_every_;
};

/// Bytes as a terminal shows them: what is no UTF-8, and control characters but line breaks and
/// tabs, become U+FFFD.
std::string printable(const std::string& bytes);

/// A chart of `values` in `rows` lines of at most `columns` characters, each column the mean of its
/// share; non-finite values are left out. The first value is of step `first`.
std::string draw_curve(const std::vector<double>& values, int rows, int columns,
                       std::int64_t first = 1);

}  // namespace zero3d::tools
