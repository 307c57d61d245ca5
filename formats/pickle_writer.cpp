#include "zero3d/formats/pickle_writer.h"

#include <bit>
#include <utility>

#include "zero3d/core/narrow.h"

namespace zero3d {

void PickleWriter::integer(std::int64_t value) {
  if (value >= INT32_MIN && value <= INT32_MAX) {
    bytes_ += 'J';
    const auto small = static_cast<std::uint32_t>(static_cast<std::int32_t>(value));
    for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(small >> shift & 0xFF);
    return;
  }
  bytes_ += "\x8a\x08";  // LONG1 of 8 bytes, two's complement
  const auto large = static_cast<std::uint64_t>(value);
  for (int shift = 0; shift < 64; shift += 8) bytes_ += static_cast<char>(large >> shift & 0xFF);
}

void PickleWriter::real(double value) {
  bytes_ += 'G';
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) bytes_ += static_cast<char>(bits >> shift & 0xFF);
}

void PickleWriter::text(std::string_view utf8) {
  bytes_ += 'X';
  const auto size = narrow<std::uint32_t>(utf8.size(), "the length of a text in a pickle");
  for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(size >> shift & 0xFF);
  bytes_ += utf8;
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  bytes_ += 'c';
  bytes_ += module;
  bytes_ += '\n';
  bytes_ += name;
  bytes_ += '\n';
}

void PickleWriter::begin_ordered_dict() {
  global("collections", "OrderedDict");
  bytes_ += ")R(";
}

std::string PickleWriter::finish() {
  bytes_ += '.';
  return std::exchange(bytes_, {});
}

}  // namespace zero3d
