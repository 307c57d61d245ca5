// Spans of what ran where and when: recorded by streams and the engine, written as a Chrome trace
// (one process per rank, one thread per stream). Recording is off until a Tracer is installed;
// thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zero3d {

class OutputFile;

struct Span {
  std::string name;    ///< What ran: "gather block 3".
  std::string stream;  ///< The stream or host thread it ran on.
  int rank = 0;
  std::int64_t begin_ns = 0;  ///< Steady clock.
  std::int64_t end_ns = 0;
  std::int64_t bytes = 0;  ///< Bytes moved, 0 when that is not the point.
};

std::int64_t now_ns();

class Tracer {
 public:
  static void enable();   ///< Starts recording into an empty list.
  static void disable();  ///< Stops and drops what was recorded.
  static bool enabled();
  static void add(Span span);
  static std::vector<Span> spans();  ///< A copy, in the order of arrival.
  /// Writes all spans as Chrome trace event JSON and commits the file. Throws IoError.
  static void write_chrome_trace(OutputFile& file);
};

}  // namespace zero3d
