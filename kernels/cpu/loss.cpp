// Cross-entropy on the CPU: forward reads the logits from memory once, with a running maximum and
// sum; backward reads and writes them once.
#include "zero3d/kernels/cpu/loss.h"

#include <cmath>
#include <limits>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/parallel.h"
#include "zero3d/kernels/cpu/simd_targets.h"
#include "zero3d/kernels/loss.h"

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

void cross_entropy_tile_rows(const CrossEntropyTileArgs& a, std::int64_t begin, std::int64_t end) {
  with_type(a.dtype, [&](auto tag) HWY_ATTR {
    using T = decltype(tag);
    for (std::int64_t row = begin; row < end; ++row) {
      if (a.targets[row] == kIgnoreTarget) continue;
      const T* logits = static_cast<const T*>(a.logits) + row * a.classes;
      float* state = a.state + 3 * row;
      RunningSum sum;
      if (a.first > 0) sum = {state[0], state[1]};
      sum = add_exponentials(logits, a.classes, sum);
      state[0] = sum.max;
      state[1] = sum.sum;
      const std::int64_t target = a.targets[row] - a.first;
      if (target >= 0 && target < a.classes) state[2] = to_float(logits[target]);
    }
  });
}

void cross_entropy_gradient_rows(const CrossEntropyGradientArgs& a, std::int64_t begin,
                                 std::int64_t end) {
  const float factor = a.loss[1] > 0 ? a.seed[0] / a.loss[1] : 0.0f;
  with_type(a.dtype, [&](auto tag) HWY_ATTR {
    using T = decltype(tag);
    for (std::int64_t row = begin; row < end; ++row) {
      T* logits = static_cast<T*>(a.logits) + row * a.vocabulary;
      const std::int32_t target = a.targets[row];
      if (target == kIgnoreTarget) {
        for_lanes(a.vocabulary,
                  [&](std::int64_t i, auto lanes) HWY_ATTR { store(set(0), logits + i, lanes); });
        continue;
      }
      const std::int64_t hit = target - a.first;
      const bool here = hit >= 0 && hit < a.vocabulary;
      const float probability = here ? std::exp(to_float(logits[hit]) - a.lse[row]) : 0.0f;
      const Vec32 lse = set(a.lse[row]);
      const Vec32 scale = set(factor);
      for_lanes(a.vocabulary, [&](std::int64_t i, auto lanes) HWY_ATTR {
        store(hn::Mul(exp(hn::Sub(load(logits + i, lanes), lse)), scale), logits + i, lanes);
      });
      if (here) logits[hit] = from_float<T>((probability - 1.0f) * factor);
    }
  });
}

}  // namespace zero3d::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zero3d::kernels {

HWY_EXPORT(cross_entropy_rows);
HWY_EXPORT(cross_entropy_tile_rows);
HWY_EXPORT(cross_entropy_gradient_rows);

namespace cpu {
namespace {

void check_targets(const char* what, const std::int32_t* targets, std::int64_t rows,
                   std::int64_t vocabulary) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int32_t target = targets[row];
    if (target != kIgnoreTarget && (target < 0 || target >= vocabulary))
      throw_invalid(concat(what, ": expected targets in [0, ", vocabulary, ") or ", kIgnoreTarget,
                           " (ignored), but target ", row, " is ", target));
  }
}

/// Of the rows that count.
void sum_losses(const std::vector<float>& losses, const std::int32_t* targets, float* loss) {
  double sum = 0;
  std::int64_t count = 0;
  for (std::size_t row = 0; row < losses.size(); ++row) {
    if (targets[row] == kIgnoreTarget) continue;
    sum += losses[row];
    ++count;
  }
  loss[0] = static_cast<float>(sum);
  loss[1] = static_cast<float>(count);
}

}  // namespace

void cross_entropy_forward(const CrossEntropyArgs& args) {
  check_targets("cross_entropy_forward", args.targets, args.rows, args.vocabulary);
  std::vector<float> losses(static_cast<std::size_t>(args.rows));
  parallel_for(args.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(cross_entropy_rows)(args, losses.data(), begin, end);
  });
  sum_losses(losses, args.targets, args.loss);
}

void cross_entropy_tile(const CrossEntropyTileArgs& args) {
  check_targets("cross_entropy_tile", args.targets, args.rows, args.vocabulary);
  parallel_for(args.rows, 1, [&args](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(cross_entropy_tile_rows)(args, begin, end);
  });
}

void cross_entropy_finish(const CrossEntropyFinishArgs& args) {
  std::vector<float> losses(static_cast<std::size_t>(args.rows));
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const float* state = args.state + 3 * row;
    const bool counts = args.targets[row] != kIgnoreTarget;
    args.lse[row] = counts ? state[0] + std::log(state[1]) : 0.0f;
    losses[static_cast<std::size_t>(row)] = counts ? args.lse[row] - state[2] : 0.0f;
  }
  sum_losses(losses, args.targets, args.loss);
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
