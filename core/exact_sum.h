// Exact, order-independent sums of doubles: a fixed-point accumulator as wide as the range of a
// double (Kulisch). However the terms are split over ranks, units, tiles or threads, the sum is the
// same bits. The gradient norm is built on it.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

namespace zero3d {

class ExactSum {
 public:
  /// Digits of 32 bits, least significant first; digit 0 has weight 2^-1088. Signed, with headroom
  /// for 2^29 additions between normalisations.
  static constexpr int kDigits = 68;

  void add(double value);
  void add(const ExactSum& other);
  /// The sum rounded once to double; inf or NaN if such a term was added (NaN wins, and inf - inf
  /// is NaN).
  double value() const;
  bool finite() const { return !nan_ && !positive_infinity_ && !negative_infinity_; }

  friend bool operator==(const ExactSum& a, const ExactSum& b);

 private:
  void normalise();

  std::array<std::int64_t, kDigits> digits_{};
  std::int32_t pending_ = 0;  ///< Additions since the last normalisation.
  bool nan_ = false;
  bool positive_infinity_ = false;
  bool negative_infinity_ = false;
};
static_assert(std::is_trivially_copyable_v<ExactSum>, "ranks exchange it as bytes");

}  // namespace zero3d
