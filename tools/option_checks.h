// What a number on the command line may be; the messages are ours. For the sources that declare
// options: it includes the parser's headers.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>

namespace zero3d::tools {

/// Decimal digits that say a number from `low` to `high`.
CLI::Validator whole_number(std::uint64_t low,
                            std::uint64_t high = std::numeric_limits<std::int64_t>::max());
/// The same for what is kept as an int.
inline CLI::Validator int_number(std::uint64_t low, int high = std::numeric_limits<int>::max()) {
  return whole_number(low, static_cast<std::uint64_t>(high));
}
/// A finite number, at least `low`.
CLI::Validator real_number(double low = -std::numeric_limits<double>::infinity());

}  // namespace zero3d::tools
