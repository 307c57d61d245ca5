// zero3d inspect and zero3d diff: what a checkpoint holds, and where two differ.
#pragma once

#include <string>

namespace zero3d::tools {

struct InspectOptions {
  std::string checkpoint;
  bool tensors = false;  ///< A line for each.
  bool verify = false;   ///< Reads all of it.
  bool json = false;
};
/// Prints it; throws IoError for what is damaged.
void inspect(const InspectOptions& options);

struct DiffOptions {
  std::string a;
  std::string b;
  int shown = 10;        ///< Tensors that are named.
  double tolerance = 0;  ///< Absolute; values that differ by no more are the same.
};
/// Prints what differs; throws ExitStatus{1} when anything does.
void diff(const DiffOptions& options);

}  // namespace zero3d::tools
