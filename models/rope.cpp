// The fp32 arithmetic of transformers' rope initialisation, so that cos and sin come out the same.
#include "zero3d/models/rope.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "zero3d/kernels/attention.h"

namespace zero3d {
namespace {

using Type = RopeConfig::Type;

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

/// Between which angles YaRN (arXiv 2309.00071, section 3.2) goes over from the trained frequency
/// to the stretched one: those that turn beta_fast and beta_slow times within the original context.
class YarnRamp {
 public:
  YarnRamp(const RopeConfig& rope, std::int64_t head_dim) {
    const auto dim = static_cast<double>(head_dim);
    const auto angle_of = [&](double turns) {
      return dim * std::log(static_cast<double>(rope.original_max_positions) / (turns * 2 * kPi)) /
             (2 * std::log(rope.theta));
    };
    double first = angle_of(rope.beta_fast), last = angle_of(rope.beta_slow);
    if (rope.truncate) {
      first = std::floor(first);
      last = std::ceil(last);
    }
    first = std::max(first, 0.0);
    last = std::min(last, dim - 1);
    if (first == last) last += 0.001;
    low_ = static_cast<float>(first);
    span_ = static_cast<float>(last - first);
  }

  /// 0: trained, 1: stretched.
  float at(std::size_t i) const {
    return std::clamp((static_cast<float>(i) - low_) / span_, 0.0f, 1.0f);
  }

 private:
  float low_ = 0, span_ = 0;
};

float yarn_frequency(const RopeConfig& rope, const YarnRamp& ramp, std::size_t i, float power) {
  const float trained = 1.0f / power;
  const float stretched = 1.0f / (static_cast<float>(rope.factor) * power);
  const float keep = 1.0f - ramp.at(i);
  return stretched * (1.0f - keep) + trained * keep;
}

/// What a rope scaling makes of theta^(2i/dim).
float frequency_of(const RopeConfig& rope, const YarnRamp* ramp, bool is_long, std::size_t i,
                   std::size_t count, float power) {
  const auto factor = static_cast<float>(rope.factor);
  switch (rope.type) {
    case Type::standard:
    case Type::dynamic:  // in theta
      return 1.0f / power;
    case Type::linear:
      return 1.0f / power / factor;
    case Type::llama3:
      return llama3_frequency(rope, 1.0f / power);
    case Type::yarn:
      return yarn_frequency(rope, *ramp, i, power);
    case Type::longrope:
      return 1.0f /
             (static_cast<float>(is_long ? rope.long_factor[i] : rope.short_factor[i]) * power);
    case Type::proportional:
      return static_cast<double>(i) < std::floor(rope.rotated * static_cast<double>(count))
                 ? 1.0f / power / factor
                 : 0.0f;
  }
  return 0;
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace

std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, std::int64_t head_dim,
                                            std::int64_t max_positions, std::int64_t seq) {
  double base = rope.theta;
  const auto dim = static_cast<double>(head_dim);
  if (rope.type == Type::dynamic && seq > max_positions) {
    const double stretch =
        rope.factor * static_cast<double>(seq) / static_cast<double>(max_positions) -
        (rope.factor - 1.0);
    base *= std::pow(stretch, dim / (dim - 2.0));
  }
  std::optional<YarnRamp> ramp;
  if (rope.type == Type::yarn) ramp.emplace(rope, head_dim);
  const bool is_long = seq > rope.original_max_positions;
  std::vector<float> frequencies(static_cast<std::size_t>(head_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float power = std::pow(static_cast<float>(base), exponent);
    frequencies[i] =
        frequency_of(rope, ramp ? &*ramp : nullptr, is_long, i, frequencies.size(), power);
  }
  return frequencies;
}

float rope_attention_factor(const RopeConfig& rope) {
  if (rope.attention_factor) return static_cast<float>(*rope.attention_factor);
  if (rope.type == Type::yarn) {
    if (rope.mscale == 0 || rope.mscale_all_dim == 0)
      return static_cast<float>(yarn_scale(rope.factor, 1.0));
    return static_cast<float>(yarn_scale(rope.factor, rope.mscale) /
                              yarn_scale(rope.factor, rope.mscale_all_dim));
  }
  if (rope.type == Type::longrope && rope.factor > 1.0)
    return static_cast<float>(std::sqrt(
        1 + std::log(rope.factor) / std::log(static_cast<double>(rope.original_max_positions))));
  return 1.0f;
}

Rope::Rope(const ModelConfig& config)
    : rope_(config.rope),
      head_dim_(config.head_dim),
      max_positions_(config.max_positions),
      attention_factor_(rope_attention_factor(rope_)),
      trained_(rope_inverse_frequencies(
          rope_, head_dim_, max_positions_,
          rope_.type == Type::longrope ? rope_.original_max_positions : max_positions_)) {
  if (rope_.type == Type::longrope)
    long_ = rope_inverse_frequencies(rope_, head_dim_, max_positions_,
                                     rope_.original_max_positions + 1);
}

const std::vector<float>& Rope::table(std::int64_t seq) const {
  if (rope_.type == Type::longrope) return seq > rope_.original_max_positions ? long_ : trained_;
  if (rope_.type != Type::dynamic || seq <= max_positions_) return trained_;
  const std::lock_guard lock(mutex_);
  std::vector<float>& entry = stretched_[seq];
  if (entry.empty()) entry = rope_inverse_frequencies(rope_, head_dim_, max_positions_, seq);
  return entry;
}

void Rope::turn(BlockContext& context, std::int64_t seq, std::initializer_list<Columns> columns,
                bool inverse) const {
  const std::vector<float>& frequencies = table(context.sp().whole(seq));
  for (const Columns& x : columns)
    kernels::rope(context.stream(), x, {seq, context.sp().first()}, head_dim_, frequencies,
                  attention_factor_, inverse);
}

}  // namespace zero3d
