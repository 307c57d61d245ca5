// The fp32 arithmetic of transformers' rope initialisation, so that cos and sin come out the same.
#include "zero3d/models/rope.h"

#include <algorithm>
#include <cmath>

#include "zero3d/kernels/attention.h"

namespace zero3d {
namespace {

constexpr double kPi = 3.14159265358979323846;

/// Wavelengths beyond the trained context are stretched by the factor, short ones left, and those
/// between interpolated (Llama 3.1).
float llama3_frequency(const RopeConfig& rope, float frequency) {
  const auto factor = static_cast<float>(rope.factor);
  const double context = static_cast<double>(rope.original_max_positions);
  const float wavelength = static_cast<float>(2 * kPi) / frequency;
  const auto longest = static_cast<float>(context / rope.low_freq_factor);
  const auto shortest = static_cast<float>(context / rope.high_freq_factor);
  if (wavelength > longest) return frequency / factor;
  if (wavelength < shortest) return frequency;
  const float smooth =
      (static_cast<float>(context) / wavelength - static_cast<float>(rope.low_freq_factor)) /
      static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

}  // namespace

std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, std::int64_t head_dim,
                                            std::int64_t max_positions, std::int64_t seq) {
  double base = rope.theta;
  const auto dim = static_cast<double>(head_dim);
  if (rope.type == RopeConfig::Type::dynamic && seq > max_positions) {
    const double stretch =
        rope.factor * static_cast<double>(seq) / static_cast<double>(max_positions) -
        (rope.factor - 1.0);
    base *= std::pow(stretch, dim / (dim - 2.0));
  }
  std::vector<float> frequencies(static_cast<std::size_t>(head_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float frequency = 1.0f / std::pow(static_cast<float>(base), exponent);
    if (rope.type == RopeConfig::Type::linear) {
      frequencies[i] = frequency / static_cast<float>(rope.factor);
    } else if (rope.type == RopeConfig::Type::llama3) {
      frequencies[i] = llama3_frequency(rope, frequency);
    } else {
      frequencies[i] = frequency;
    }
  }
  return frequencies;
}

Rope::Rope(const ModelConfig& config)
    : rope_(config.rope),
      head_dim_(config.head_dim),
      max_positions_(config.max_positions),
      trained_(rope_inverse_frequencies(rope_, head_dim_, max_positions_, max_positions_)) {}

const std::vector<float>& Rope::table(std::int64_t seq) const {
  if (rope_.type != RopeConfig::Type::dynamic || seq <= max_positions_) return trained_;
  const std::lock_guard lock(mutex_);
  std::vector<float>& entry = stretched_[seq];
  if (entry.empty()) entry = rope_inverse_frequencies(rope_, head_dim_, max_positions_, seq);
  return entry;
}

void Rope::turn(BlockContext& context, std::int64_t seq, std::initializer_list<Columns> columns,
                bool inverse) const {
  for (const Columns& x : columns)
    kernels::rope(context.stream(), x, seq, head_dim_, table(seq), 1.0f, inverse);
}

}  // namespace zero3d
