// Reads the JSON dialect that ds_config files are written in: HJSON as the Python package reads it
// (comments, optional commas and quotes, 5e8 as an integer, BOM, CRLF, optional root braces).
// Input is hostile: nesting and size are limited, and every fault is an HjsonError with its place.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/formats/json_value.h"

namespace zero3d {

struct HjsonProblem {
  std::string path;  ///< Of the key: "zero_optimization.stage".
  TextPosition position;
  std::string message;  ///< What is wrong and what to write, without place or line.
};

/// A text that does not parse. what() is "name:line:column: message" and the line, marked.
class HjsonError : public Error {
 public:
  HjsonError(TextPosition position, std::string problem, const std::string& text)
      : Error(ErrorKind::kConfig, text), position_(position), problem_(std::move(problem)) {}
  TextPosition position() const noexcept { return position_; }
  /// The message alone, without place and line.
  const std::string& problem() const noexcept { return problem_; }

 private:
  TextPosition position_;
  std::string problem_;
};

struct HjsonOptions {
  int max_depth = 200;               ///< Objects and lists inside each other.
  std::size_t max_bytes = 1u << 20;  ///< Texts above this are refused unread.
  std::size_t max_duplicates = 20;   ///< Duplicate keys reported; more are counted as one.
};

/// Parses `text`; `name` stands for the file in messages. Duplicate keys, at any depth, do not stop
/// the reading: each is added to `duplicates` (naming both lines) and the last value wins. Throws
/// HjsonError.
JsonValue parse_hjson(std::string_view text, std::string_view name,
                      std::vector<HjsonProblem>& duplicates, const HjsonOptions& options = {});

/// "name:line:column: message" followed by the line of `text` there and a caret under the column.
std::string locate(std::string_view text, std::string_view name, TextPosition position,
                   std::string_view message);

}  // namespace zero3d
