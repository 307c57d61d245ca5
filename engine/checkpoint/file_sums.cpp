#include "zero3d/engine/checkpoint/file_sums.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "zero3d/core/error.h"
#include "zero3d/core/multiples.h"
#include "zero3d/core/text.h"
#include "zero3d/offload/checksum.h"

namespace zero3d {
namespace {

constexpr std::uint64_t kMultiplier = 0x9E3779B97F4A7C15;  // odd: no step loses a bit
constexpr std::size_t kDigits = 16;

/// Takes on the sums of the pages of `bytes`, which lie at `offset` of their file.
void add_pages(const ConstView& bytes, std::int64_t offset, std::uint64_t& sum) {
  std::array<std::uint64_t, 256> pages{};
  const auto size = static_cast<std::int64_t>(bytes.bytes());
  const auto step = static_cast<std::int64_t>(pages.size()) * FileSums::kPageBytes;
  for (std::int64_t at = 0; at < size; at += step) {
    const std::int64_t count = std::min(step, size - at);
    checksum_pages(bytes.flat(at, count), offset + at, pages.data());
    const auto used = static_cast<std::size_t>(ceil_div(count, FileSums::kPageBytes));
    for (std::size_t page = 0; page < used; ++page) {
      sum = (sum ^ pages[page]) * kMultiplier;
      sum ^= sum >> 32;
    }
  }
}

}  // namespace

void FileSums::add(const ConstView& bytes) {
  ZERO3D_CHECK(bytes_ % kPageBytes == 0, "only the end of a file is no whole page");
  const auto size = static_cast<std::int64_t>(bytes.bytes());
  for (std::int64_t done = 0; done < size;) {
    if (bytes_ % kChunkBytes == 0) chunks_.push_back(0);
    const std::int64_t count = std::min(kChunkBytes - bytes_ % kChunkBytes, size - done);
    add_pages(bytes.flat(done, count), bytes_, chunks_.back());
    bytes_ += count;
    done += count;
  }
}

std::uint64_t chunk_sum(const ConstView& bytes, std::int64_t number) {
  std::uint64_t sum = 0;
  add_pages(bytes, number * FileSums::kChunkBytes, sum);
  return sum;
}

std::string sums_to_text(const std::vector<std::uint64_t>& sums) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  text.reserve(sums.size() * kDigits);
  for (const std::uint64_t sum : sums)
    for (int shift = 60; shift >= 0; shift -= 4) text += kHex[sum >> shift & 15];
  return text;
}

std::vector<std::uint64_t> sums_from_text(std::string_view text) {
  if (text.size() % kDigits != 0)
    throw_invalid(concat("checksums have ", kDigits, " digits each, found ", text.size()));
  std::vector<std::uint64_t> sums;
  for (; !text.empty(); text.remove_prefix(kDigits)) {
    std::uint64_t sum = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + kDigits, sum, 16);
    if (error != std::errc() || end != text.data() + kDigits)
      throw_invalid(concat("\"", text.substr(0, kDigits), "\" is no checksum"));
    sums.push_back(sum);
  }
  return sums;
}

}  // namespace zero3d
