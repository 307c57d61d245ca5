// Exact sums on the GPU: the digits of core/exact_sum.h, added by integer atomics. Whatever the
// order, the digits are those that the CPU's additions leave.
#include <cstddef>

#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/kernels/cuda/launch.cuh"
#include "zero3d/kernels/cuda/stream_state.h"

namespace zero3d::kernels::cuda {
namespace {

using Word = unsigned long long;
__extension__ typedef unsigned __int128 Wide;

constexpr int kDigits = ExactSum::kDigits;
constexpr int kBias = 1088;
constexpr std::int64_t kDigitMask = 0xffffffff;

/// ExactSum's members, which are its own.
struct Digits {
  std::int64_t digits[kDigits];
  std::int32_t pending;
  bool nan, positive_infinity, negative_infinity;
};
static_assert(sizeof(Digits) == sizeof(ExactSum) && alignof(Digits) == alignof(ExactSum));

constexpr int kRanges = 96;           // of one launch: its parameters stay below 4 KiB
constexpr std::int64_t kPart = 2048;  // values of one block

struct Ranges {
  SumRange v[kRanges];
};

__device__ void add_to(Word* digits, double value) {
  const auto bits = static_cast<Word>(__double_as_longlong(value));
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
  const Word fraction = bits & ((Word{1} << 52) - 1);
  // A multiple of the weight of digit 0: the least subnormal is 2^-1074, 14 places above it.
  const Word mantissa = exponent == 0 ? fraction : fraction | Word{1} << 52;
  const int position = (exponent == 0 ? 1 : exponent) + kBias - 1075;
  const int digit = position / 32, shift = position % 32;
  const Word low = mantissa << shift;
  const Word high = shift == 0 ? 0 : mantissa >> (64 - shift);
  const Word parts[3] = {low & 0xffffffffu, low >> 32, high & 0xffffffffu};
#pragma unroll
  for (int i = 0; i < 3; ++i)
    if (parts[i] != 0)
      atomicAdd(digits + digit + i, static_cast<Word>(value < 0 ? -parts[i] : parts[i]));
}

/// Where a value that is not finite lies: the range among all, then its place there.
__device__ Word place_of(std::int64_t range, std::int64_t i) {
  return static_cast<Word>(range) << 40 | static_cast<Word>(i);
}

/// Block (x, y) adds part x of range y of this launch.
__global__ void __launch_bounds__(kThreads)
    add_kernel(const double* values, __grid_constant__ const Ranges ranges,
               std::int64_t first_range, Digits* sums, Word* first_bad) {
  __shared__ Word digits[kDigits];
  __shared__ int finite_count;
  const SumRange range = ranges.v[blockIdx.y];
  Digits* sum = sums + range.sum;
  for (std::int64_t begin = blockIdx.x * kPart; begin < range.count; begin += gridDim.x * kPart) {
    for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kThreads) digits[i] = 0;
    if (threadIdx.x == 0) finite_count = 0;
    __syncthreads();
    const std::int64_t end = min(begin + kPart, range.count);
    int mine = 0;
    for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const double value = values[range.first + i];
      if (isfinite(value)) {
        add_to(digits, value);
        ++mine;
        continue;
      }
      if (isnan(value)) sum->nan = true;
      if (value > 0) sum->positive_infinity = true;
      if (value < 0) sum->negative_infinity = true;
      atomicMin(first_bad, place_of(first_range + blockIdx.y, i));
    }
    if (mine > 0) atomicAdd(&finite_count, mine);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kThreads)
      if (digits[i] != 0) atomicAdd(reinterpret_cast<Word*>(sum->digits) + i, digits[i]);
    if (threadIdx.x == 0) atomicAdd(&sum->pending, finite_count);
    __syncthreads();
  }
}

/// If the first bad value is in a range of this launch, says which and whether it is a NaN.
__global__ void name_kernel(const double* values, __grid_constant__ const Ranges ranges,
                            std::int64_t first_range, std::int64_t count, const Word* first_bad,
                            std::int64_t* bad_range) {
  if (first_range == 0) {
    bad_range[0] = -1;
    bad_range[1] = 0;
  }
  if (*first_bad == ~Word{0}) return;
  const auto at = static_cast<std::int64_t>(*first_bad >> 40) - first_range;
  if (at < 0 || at >= count) return;
  const SumRange& range = ranges.v[at];
  bad_range[0] = range.name;
  bad_range[1] =
      isnan(values[range.first + static_cast<std::int64_t>(*first_bad & ((Word{1} << 40) - 1))])
          ? 1
          : 0;
}

/// Carries, so that every digit but the last lies in [0, 2^32).
__device__ void normalise(std::int64_t* digits) {
  std::int64_t carry = 0;
  for (int i = 0; i + 1 < kDigits; ++i) {
    const std::int64_t digit = digits[i] + carry;
    digits[i] = digit & kDigitMask;
    carry = (digit - digits[i]) >> 32;
  }
  digits[kDigits - 1] += carry;
}

/// ExactSum::value of normalised digits.
__device__ double value_of(std::int64_t* digits) {
  const bool negative = digits[kDigits - 1] < 0;
  if (negative) {
    for (int i = 0; i < kDigits; ++i) digits[i] = -digits[i];
    normalise(digits);
  }
  int top = kDigits - 1;
  while (top > 0 && digits[top] == 0) --top;
  Wide leading = 0;
  for (int i = top; i > top - 3; --i)
    leading = leading << 32 | static_cast<Word>(i >= 0 ? digits[i] : 0);
  bool sticky = false;
  for (int i = 0; i < top - 2; ++i) sticky |= digits[i] != 0;
  int scale = (top - 2) * 32 - kBias;
  while (leading >> 64 != 0) {
    sticky |= (leading & 1) != 0;
    leading >>= 1;
    ++scale;
  }
  const Word bits = static_cast<Word>(leading) | (sticky ? 1u : 0u);
  const double result = ldexp(__ull2double_rn(bits), scale);
  return negative ? -result : result;
}

/// Thread i totals sum number i.
__global__ void __launch_bounds__(32)
    totals_kernel(const Digits* sums, std::int64_t parts, std::int64_t count, double* values) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x;
  if (at >= count) return;
  std::int64_t total[kDigits], term[kDigits];
  for (int i = 0; i < kDigits; ++i) total[i] = 0;
  bool nan = false, positive = false, negative = false;
  for (std::int64_t part = 0; part < parts; ++part) {
    const Digits& sum = sums[part * count + at];
    for (int i = 0; i < kDigits; ++i) term[i] = sum.digits[i];
    normalise(term);
    for (int i = 0; i < kDigits; ++i) total[i] += term[i];
    normalise(total);
    nan |= sum.nan;
    positive |= sum.positive_infinity;
    negative |= sum.negative_infinity;
  }
  if (nan || (positive && negative)) {
    values[at] = __longlong_as_double(0x7ff8000000000000);
  } else if (positive || negative) {
    values[at] = positive ? HUGE_VAL : -HUGE_VAL;
  } else {
    values[at] = value_of(total);
  }
}

}  // namespace

void exact_sums(const ExactSumsArgs& a, NativeStream stream) {
  constexpr const char* kWhat = "exact_sums";
  std::int64_t additions = 0;
  for (const SumRange& range : a.ranges) additions += range.count;
  if (additions >= 1 << 29)
    throw_invalid(concat(kWhat, ": expected fewer than 2^29 values, found ", additions));
  check_cuda(cudaMemsetAsync(static_cast<void*>(a.sums), 0,
                             static_cast<std::size_t>(a.count) * sizeof(Digits), stream),
             kWhat);
  auto* first_bad = reinterpret_cast<Word*>(state_of(stream).scratch(sizeof(Word)));
  check_cuda(cudaMemsetAsync(first_bad, 0xff, sizeof(Word), stream), kWhat);
  const auto total = static_cast<std::int64_t>(a.ranges.size());
  // At least one launch that names no bad range.
  for (std::int64_t first = 0; first == 0 || first < total; first += kRanges) {
    const std::int64_t count = std::min<std::int64_t>(kRanges, total - first);
    Ranges ranges{};
    std::int64_t longest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      ranges.v[i] = a.ranges[static_cast<std::size_t>(first + i)];
      longest = std::max(longest, ranges.v[i].count);
    }
    if (longest > 0) {
      const dim3 grid(grid_of(divided_up(longest, kPart)), static_cast<unsigned>(count));
      add_kernel<<<grid, kThreads, 0, stream>>>(a.values, ranges, first,
                                                reinterpret_cast<Digits*>(a.sums), first_bad);
    }
  }
  for (std::int64_t first = 0; a.bad_range != nullptr && (first == 0 || first < total);
       first += kRanges) {
    const std::int64_t count = std::min<std::int64_t>(kRanges, total - first);
    Ranges ranges{};
    std::copy_n(a.ranges.begin() + first, count, ranges.v);
    name_kernel<<<1, 1, 0, stream>>>(a.values, ranges, first, count, first_bad, a.bad_range);
  }
  check_launch(kWhat);
}

void exact_totals(const ExactTotalsArgs& a, NativeStream stream) {
  if (a.count == 0) return;
  totals_kernel<<<static_cast<unsigned>(divided_up(a.count, 32)), 32, 0, stream>>>(
      reinterpret_cast<const Digits*>(a.sums), a.parts, a.count, a.values);
  check_launch("exact_totals");
}

}  // namespace zero3d::kernels::cuda
