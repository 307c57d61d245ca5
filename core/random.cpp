#include "zero3d/core/random.h"

#include <cmath>

namespace zero3d {
namespace {

std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
std::uint32_t high(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> c,
                                        std::array<std::uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {high(p1) ^ c[1] ^ k[0], low(p1), high(p0) ^ c[3] ^ k[1], low(p0)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

std::uint32_t RandomKey::word(std::uint64_t sample_index, std::uint64_t element) const {
  // The counter holds (element, sample, layer); the key (seed, step). Elements of a sample fit 2^34
  // (words of a block).
  const std::array<std::uint32_t, 4> counter = {low(element >> 2), low(sample_index),
                                                high(sample_index), layer};
  const std::array<std::uint32_t, 2> k = {low(seed) ^ (high(seed) * 0x85EBCA6Bu), step};
  return philox4x32(counter, k)[element & 3];
}

float random_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t element) {
  const std::uint64_t pair = element >> 1;
  const auto words =
      philox4x32({low(pair), high(pair), low(stream), high(stream)}, {low(seed), high(seed)});
  const double u = (words[0] + 0.5) / 4294967296.0;
  const double v = (words[1] + 0.5) / 4294967296.0;
  const double radius = std::sqrt(-2.0 * std::log(u));
  const double angle = 6.283185307179586476925 * v;
  return static_cast<float>(radius * ((element & 1) != 0 ? std::sin(angle) : std::cos(angle)));
}

std::uint64_t hash_name(const char* data, std::size_t size) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (std::size_t i = 0; i < size; ++i)
    hash = (hash ^ static_cast<unsigned char>(data[i])) * 0x100000001b3u;
  return hash;
}

}  // namespace zero3d
