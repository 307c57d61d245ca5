// Which blocks of a model are in which segment of a pipeline: pure functions of the blocks'
// weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zero3d {

enum class PartitionMethod {
  parameters,  ///< The segment with the most parameters has as few as can be.
  uniform,     ///< As many blocks in each; the first ones have those that are left over.
  time,        ///< The slowest segment is as fast as can be, by measured times of blocks.
  type,        ///< As many blocks in each whose name `pattern` is found in.
  given        ///< `blocks` says.
};

struct PartitionChoice {
  PartitionMethod method = PartitionMethod::parameters;
  std::string pattern;      ///< Of type: a regular expression, upper and lower case alike.
  std::vector<int> blocks;  ///< Of given: how many blocks each segment has.
};

/// "parameters", "uniform", "time", "type:PATTERN" or "2,3,3,2"; "best" is parameters. Throws
/// Error(kInvalid) for other words, patterns that are none, and lists with a segment without
/// blocks.
PartitionChoice parse_partition(const std::string& text);
std::string describe(const PartitionChoice& choice);

/// Contiguous segments, none empty, of which the heaviest is as light as can be, and then the
/// others as equal as they can be: where each begins, and the number of blocks at the end.
std::vector<int> balance(const std::vector<std::int64_t>& weights, int segments);

struct PartitionBlock {
  std::string name;
  std::int64_t parameters = 0;
  std::int64_t nanoseconds = 0;  ///< Of its forward and backward, where they were measured.
};
/// The bounds of the segments, as balance() gives them. Throws Error(kInvalid) that says what would
/// work where there are fewer blocks than segments, no name matches, times are asked for and not
/// measured (pipeline/measured_partition), or a list does not fit.
std::vector<int> partition_blocks(const PartitionChoice& choice,
                                  const std::vector<PartitionBlock>& blocks, int segments);
/// The same segments as a list of their blocks.
PartitionChoice given_partition(const std::vector<int>& bounds);

}  // namespace zero3d
