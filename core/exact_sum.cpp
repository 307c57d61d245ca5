#include "zero3d/core/exact_sum.h"

#include <cmath>
#include <limits>

namespace zero3d {
namespace {

__extension__ typedef unsigned __int128 Wide;  // holds a shifted mantissa, and three digits

constexpr int kDigitBits = 32;
constexpr int kBias =
    1088;  // the weight of digit 0 is 2^-1088, below the least subnormal's 2^-1074
constexpr std::int64_t kDigitMask = 0xffffffff;
constexpr std::int32_t kMaxPending = 1 << 29;

}  // namespace

void ExactSum::add(double value) {
  if (!std::isfinite(value)) {
    nan_ |= std::isnan(value);
    positive_infinity_ |= value > 0;
    negative_infinity_ |= value < 0;
    return;
  }
  int exponent = 0;
  const double fraction =
      std::frexp(value, &exponent);  // value = fraction * 2^exponent, 0.5 <= |fraction| < 1
  auto mantissa = static_cast<std::int64_t>(std::ldexp(std::abs(fraction), 53));
  int position = exponent - 53 + kBias;
  if (position < 0) {  // a subnormal, whose lowest bits are zero: it is a multiple of 2^-1074
    mantissa >>= -position;
    position = 0;
  }
  const int digit = position / kDigitBits;
  const int shift = position % kDigitBits;
  const auto wide = static_cast<Wide>(mantissa) << shift;
  const std::int64_t sign = value < 0 ? -1 : 1;
  for (int i = 0; i < 3 && digit + i < kDigits; ++i) {
    digits_[static_cast<std::size_t>(digit + i)] +=
        sign * (static_cast<std::int64_t>(wide >> (kDigitBits * i)) & kDigitMask);
  }
  if (++pending_ >= kMaxPending) normalise();
}

void ExactSum::add(const ExactSum& other) {
  ExactSum term = other;
  term.normalise();
  normalise();
  for (std::size_t i = 0; i < digits_.size(); ++i) digits_[i] += term.digits_[i];
  pending_ = 2;
  nan_ |= term.nan_;
  positive_infinity_ |= term.positive_infinity_;
  negative_infinity_ |= term.negative_infinity_;
}

/// Carries, so that every digit but the last lies in [0, 2^32).
void ExactSum::normalise() {
  std::int64_t carry = 0;
  for (std::size_t i = 0; i + 1 < digits_.size(); ++i) {
    const std::int64_t digit = digits_[i] + carry;
    digits_[i] = digit & kDigitMask;
    carry = (digit - digits_[i]) >> kDigitBits;
  }
  digits_.back() += carry;
  pending_ = 1;
}

double ExactSum::value() const {
  if (nan_ || (positive_infinity_ && negative_infinity_))
    return std::numeric_limits<double>::quiet_NaN();
  if (positive_infinity_) return std::numeric_limits<double>::infinity();
  if (negative_infinity_) return -std::numeric_limits<double>::infinity();
  ExactSum magnitude = *this;
  magnitude.normalise();
  const bool negative = magnitude.digits_.back() < 0;
  if (negative) {
    for (std::int64_t& digit : magnitude.digits_) digit = -digit;
    magnitude.normalise();
  }
  int top = kDigits - 1;
  while (top > 0 && magnitude.digits_[static_cast<std::size_t>(top)] == 0) --top;
  // The three leading digits hold at least 65 significant bits; what lies below only matters as a
  // sticky bit.
  Wide leading = 0;
  for (int i = 0; i < 3; ++i) {
    const int index = top - i;
    leading = (leading << kDigitBits) |
              static_cast<std::uint64_t>(
                  index >= 0 ? magnitude.digits_[static_cast<std::size_t>(index)] : 0);
  }
  bool sticky = false;
  for (int i = 0; i < top - 2; ++i) sticky |= magnitude.digits_[static_cast<std::size_t>(i)] != 0;
  int scale = (top - 2) * kDigitBits - kBias;
  while (leading >> 64 != 0) {
    sticky |= (leading & 1) != 0;
    leading >>= 1;
    ++scale;
  }
  const auto bits = static_cast<std::uint64_t>(leading) | (sticky ? 1u : 0u);
  // 64 bits to 53: the hardware conversion rounds to nearest even, and the sticky bit breaks false
  // ties. ldexp is exact: a sum below the normal range is a multiple of 2^-1074, as its terms are.
  const double result = std::ldexp(static_cast<double>(bits), scale);
  return negative ? -result : result;
}

bool operator==(const ExactSum& a, const ExactSum& b) {
  ExactSum x = a;
  ExactSum y = b;
  x.normalise();
  y.normalise();
  return x.digits_ == y.digits_ && x.nan_ == y.nan_ &&
         x.positive_infinity_ == y.positive_infinity_ &&
         x.negative_infinity_ == y.negative_infinity_;
}

}  // namespace zero3d
