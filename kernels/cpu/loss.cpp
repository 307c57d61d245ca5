// Cross-entropy on the CPU: forward reads the logits from memory once, with a running maximum and
// sum; backward reads and writes them once.
#include "zero3d/kernels/cpu/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "zero3d/device/parallel.h"
#include "zero3d/kernels/cpu/simd_targets.h"
#include "zero3d/kernels/loss.h"
#include "zero3d/kernels/out_of_range.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero3d/kernels/cpu/loss.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "zero3d/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::kernels::HWY_NAMESPACE {

/// The sum of exp(x) over what was read so far, as sum * exp(max).
struct RunningSum {
  // The lowest finite number, not -inf: a row may begin with a block of -inf (a masked vocabulary).
  float max = std::numeric_limits<float>::lowest();
  float sum = 0;

  float log() const { return max + std::log(sum); }
};

/// Goes on with x. Each block is read for its maximum and, from the cache, for its sum; the sum so
/// far is rescaled once a block.
template <typename T>
RunningSum add_exponentials(const T* x, std::int64_t count, RunningSum so_far) {
  constexpr std::int64_t kBlock = 2048;
  constexpr auto kStep = static_cast<std::int64_t>(kLanes);
  auto [max, sum] = so_far;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const T* block = x + begin;
    const std::int64_t size = HWY_MIN(kBlock, count - begin);
    Vec32 largest = set(max);
    Vec32 others[3] = {largest, largest, largest};
    std::int64_t done = 0;
    for (; done + 4 * kStep <= size; done += 4 * kStep) {
      largest = hn::Max(load(block + done), largest);
      for (int u = 0; u < 3; ++u)
        others[u] = hn::Max(load(block + done + (u + 1) * kStep), others[u]);
    }
    for_lanes(size - done, [&](std::int64_t i, auto lanes) HWY_ATTR {
      largest = hn::Max(keep_or(load(block + done + i, lanes), largest, lanes), largest);
    });
    largest = hn::Max(hn::Max(largest, others[0]), hn::Max(others[1], others[2]));
    const float new_max = max_of_lanes(largest);
    const Vec32 shift = set(new_max);
    float part = 0;
    sum_over<1>(size, &part, [&](std::int64_t i, auto lanes, Vec32* term) HWY_ATTR {
      term[0] = keep(exp(hn::Sub(load(block + i, lanes), shift)), lanes);
    });
    sum = sum * std::exp(max - new_max) + part;
    max = new_max;
  }
  return {max, sum};
}

/// losses[row] of rows that count, zero of ignored ones.
void cross_entropy_rows(const CrossEntropyArgs& a, float* losses, std::int64_t begin,
                        std::int64_t end) {
  with_type(a.dtype, [&](auto tag) HWY_ATTR {
    using T = decltype(tag);
    for (std::int64_t row = begin; row < end; ++row) {
      const T* logits = static_cast<const T*>(a.logits) + row * a.vocabulary;
      if (a.targets[row] == kIgnoreTarget) {
        a.lse[row] = losses[row] = 0;
        continue;
      }
      a.lse[row] = add_exponentials(logits, a.vocabulary, {}).log();
      losses[row] = a.lse[row] - to_float(logits[a.targets[row]]);
    }
  });
}

void cross_entropy_part_rows(const CrossEntropyPartArgs& a, std::int64_t begin, std::int64_t end) {
  with_type(a.dtype, [&](auto tag) HWY_ATTR {
    using T = decltype(tag);
    for (std::int64_t row = begin; row < end; ++row) {
      const T* logits = static_cast<const T*>(a.logits) + row * a.columns;
      const std::int32_t target = a.targets[row];
      float &max = a.statistics[row], &sum = a.statistics[a.rows + row];
      float& of_target = a.statistics[2 * a.rows + row];
      RunningSum found;
      if (a.continues) found = {max, sum};
      if (target != kIgnoreTarget) found = add_exponentials(logits, a.part.count, found);
      max = found.max;
      sum = found.sum;
      if (a.part.holds(target)) {
        of_target = to_float(logits[target - a.part.first]);
      } else if (!a.continues) {
        of_target = 0;
      }
    }
  });
}

void cross_entropy_gradient_rows(const CrossEntropyGradientArgs& a, std::int64_t begin,
                                 std::int64_t end) {
  const float factor = a.loss[1] > 0 ? a.seed[0] / a.loss[1] : 0.0f;
  with_type(a.dtype, [&](auto tag) HWY_ATTR {
    using T = decltype(tag);
    const auto clear = [](T* from, std::int64_t count) HWY_ATTR {
      for_lanes(count,
                [&](std::int64_t i, auto lanes) HWY_ATTR { store(set(0), from + i, lanes); });
    };
    for (std::int64_t row = begin; row < end; ++row) {
      T* logits = static_cast<T*>(a.logits) + row * a.columns;
      const std::int32_t target = a.targets[row];
      if (target == kIgnoreTarget) {
        clear(logits, a.columns);
        continue;
      }
      const bool here = a.part.holds(target);
      T* const own = here ? logits + (target - a.part.first) : logits;
      const float probability = here ? std::exp(to_float(*own) - a.lse[row]) : 0.0f;
      const Vec32 lse = set(a.lse[row]);
      const Vec32 scale = set(factor);
      for_lanes(a.part.count, [&](std::int64_t i, auto lanes) HWY_ATTR {
        store(hn::Mul(exp(hn::Sub(load(logits + i, lanes), lse)), scale), logits + i, lanes);
      });
      if (here) *own = from_float<T>((probability - 1.0f) * factor);
      clear(logits + a.part.count, a.columns - a.part.count);
    }
  });
}

}  // namespace zero3d::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zero3d::kernels {

HWY_EXPORT(cross_entropy_rows);
HWY_EXPORT(cross_entropy_part_rows);
HWY_EXPORT(cross_entropy_gradient_rows);

namespace cpu {
namespace {

void check_targets(const std::int32_t* targets, std::int64_t rows, std::int64_t vocabulary) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int32_t target = targets[row];
    if (target != kIgnoreTarget && (target < 0 || target >= vocabulary))
      throw_bad_target(vocabulary, row, target, kIgnoreTarget);
  }
}

/// loss = (sum over rows that count of loss_of(row), how many they are).
template <typename LossOf>
void sum_losses(const std::int32_t* targets, std::int64_t rows, const LossOf& loss_of,
                float* loss) {
  double sum = 0;
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (targets[row] == kIgnoreTarget) continue;
    sum += loss_of(row);
    ++count;
  }
  loss[0] = static_cast<float>(sum);
  loss[1] = static_cast<float>(count);
}

}  // namespace

void cross_entropy_forward(const CrossEntropyArgs& args) {
  check_targets(args.targets, args.rows, args.vocabulary);
  std::vector<float> losses(static_cast<std::size_t>(args.rows));
  parallel_for(args.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(cross_entropy_rows)(args, losses.data(), begin, end);
  });
  sum_losses(
      args.targets, args.rows,
      [&](std::int64_t row) { return losses[static_cast<std::size_t>(row)]; }, args.loss);
}

void cross_entropy_statistics(const CrossEntropyPartArgs& args) {
  check_targets(args.targets, args.rows, args.part.total);
  parallel_for(args.rows, 1, [&args](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(cross_entropy_part_rows)(args, begin, end);
  });
}

void cross_entropy_join(const CrossEntropyJoinArgs& args) {
  const auto statistic = [&args](std::int64_t part, std::int64_t which, std::int64_t row) {
    return args.statistics[(part * 3 + which) * args.rows + row];
  };
  const auto loss_of = [&](std::int64_t row) {
    float max = std::numeric_limits<float>::lowest();
    for (std::int64_t part = 0; part < args.parts; ++part)
      max = std::max(max, statistic(part, 0, row));
    float sum = 0, target = 0;
    for (std::int64_t part = 0; part < args.parts; ++part) {
      sum += statistic(part, 1, row) * std::exp(statistic(part, 0, row) - max);
      target += statistic(part, 2, row);
    }
    args.lse[row] = max + std::log(sum);
    return args.lse[row] - target;
  };
  for (std::int64_t row = 0; row < args.rows; ++row)
    if (args.targets[row] == kIgnoreTarget) args.lse[row] = 0;
  sum_losses(args.targets, args.rows, loss_of, args.loss);
}

void cross_entropy_backward(const CrossEntropyGradientArgs& args) {
  parallel_for(args.rows, 1, [&args](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(cross_entropy_gradient_rows)(args, begin, end);
  });
}

void add_mean_loss(const MeanLossArgs& args) {
  const float* loss = args.loss;
  const bool counts = loss[1] != 0;
  const double mean = counts ? static_cast<double>(loss[0]) / static_cast<double>(loss[1]) : 0.0;
  args.means[0] = args.accumulate ? args.means[0] + mean : mean;
  args.means[1] = (args.accumulate ? args.means[1] : 0.0) + (counts ? 1.0 : 0.0);
}

}  // namespace cpu
}  // namespace zero3d::kernels
#endif  // HWY_ONCE
