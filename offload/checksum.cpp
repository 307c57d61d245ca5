#include "zero3d/offload/checksum.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "zero3d/offload/io_queue.h"

namespace zero3d {
namespace {

constexpr std::size_t kLanes = 8;  // independent, so that multiplications overlap
constexpr std::uint64_t kMultiplier = 0x9E3779B97F4A7C15;  // odd: no step loses a bit

std::uint64_t mix(std::uint64_t state, std::uint64_t word) {
  state = (state ^ word) * kMultiplier;
  return state ^ state >> 32;
}

std::uint64_t checksum(const std::byte* data, std::size_t bytes, std::uint64_t seed) {
  std::uint64_t lanes[kLanes];
  for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = seed + lane;
  std::size_t at = 0;
  for (; at + sizeof lanes <= bytes; at += sizeof lanes) {
    std::uint64_t words[kLanes];
    std::memcpy(words, data + at, sizeof words);
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = mix(lanes[lane], words[lane]);
  }
  for (; at < bytes; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + at, std::min<std::size_t>(8, bytes - at));
    lanes[0] = mix(lanes[0], word);
  }
  std::uint64_t sum = bytes;
  for (const std::uint64_t lane : lanes) sum = mix(sum, lane);
  return sum == 0 ? 1 : sum;
}

/// visit(page, checksum) until it returns false.
template <typename Visit>
void each_page(const ConstView& bytes, std::int64_t offset, const Visit& visit) {
  constexpr std::int64_t kPage = IoTransfer::kPage;
  const auto size = static_cast<std::int64_t>(bytes.bytes());
  for (std::int64_t at = 0; at < size; at += kPage) {
    const auto count = static_cast<std::size_t>(std::min(kPage, size - at));
    if (!visit(at / kPage,
               checksum(bytes.data() + at, count, static_cast<std::uint64_t>(offset + at))))
      return;
  }
}

}  // namespace

void checksum_pages(const ConstView& bytes, std::int64_t offset, std::uint64_t* sums) {
  each_page(bytes, offset, [&](std::int64_t page, std::uint64_t sum) {
    sums[page] = sum;
    return true;
  });
}

std::int64_t first_damaged_page(const ConstView& bytes, std::int64_t offset,
                                const std::uint64_t* sums) {
  std::int64_t damaged = -1;
  each_page(bytes, offset, [&](std::int64_t page, std::uint64_t sum) {
    if (sums[page] != 0 && sums[page] != sum) damaged = offset + page * IoTransfer::kPage;
    return damaged < 0;
  });
  return damaged;
}

}  // namespace zero3d
