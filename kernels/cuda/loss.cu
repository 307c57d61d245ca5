// Cross-entropy on the GPU. A row is read in blocks of 2,048 logits, a warp each; what the blocks
// say is joined in their order, so that a row read in parts of whole blocks gives the same bits.
#include <cfloat>

#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/kernels/cuda/functions.cuh"
#include "zero3d/kernels/cuda/launch.cuh"
#include "zero3d/kernels/cuda/stream_state.h"
#include "zero3d/kernels/loss.h"

namespace zero3d::kernels::cuda {
namespace {

constexpr int kBlock = 2048;           // logits that are joined at once
constexpr int kPerLane = kBlock / 32;  // of one thread: runs of kWide, 32 kWide apart
constexpr int kWarps = kThreads / 32;
constexpr int kBlocksAtOnce = 8 * kWarps;  // blocks between two joins

/// The sum of exp(x) over what was read so far, as sum * exp(max).
struct RunningSum {
  float max = -FLT_MAX;  // finite: a row may begin with a block of -inf
  float sum = 0;

  __device__ void join(const RunningSum& more) {
    const float larger = fmaxf(max, more.max);
    sum = sum * exp_of(max - larger) + more.sum * exp_of(more.max - larger);
    max = larger;
  }
};

/// One block of at most kBlock logits, by one warp; the same in every lane.
template <int n, typename T>
__device__ RunningSum block_sum_of(const T* x, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float value[kPerLane];
  RunningSum found;
#pragma unroll
  for (int v = 0; v < kPerLane; v += kWide) {
    const int first = v * 32 + lane * kWide;
#pragma unroll
    for (int k = 0; k < kWide; k += n) {
      if (first + k + n <= count) {
        const Floats<n> some = load<n>(x + first + k);
#pragma unroll
        for (int j = 0; j < n; ++j) value[v + k + j] = some.v[j];
      } else {
#pragma unroll
        for (int j = 0; j < n; ++j)
          value[v + k + j] = first + k + j < count ? widen(x[first + k + j]) : -INFINITY;
      }
    }
#pragma unroll
    for (int k = 0; k < kWide; ++k) found.max = fmaxf(found.max, value[v + k]);
  }
  found.max = warp_max(found.max);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) found.sum += exp_of(value[i] - found.max);
  found.sum = warp_sum(found.sum);
  return found;
}

/// Goes on with x; the result is that of thread 0. All threads of the block call it.
template <int n, typename T>
__device__ RunningSum add_exponentials(const T* x, std::int64_t count, RunningSum so_far,
                                       RunningSum* shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
  for (std::int64_t first = 0; first < blocks; first += kBlocksAtOnce) {
    const int here = static_cast<int>(min(blocks - first, std::int64_t{kBlocksAtOnce}));
    for (int b = warp; b < here; b += kWarps) {
      const std::int64_t begin = (first + b) * kBlock;
      const RunningSum found =
          block_sum_of<n>(x + begin, static_cast<int>(min(count - begin, std::int64_t{kBlock})));
      if (threadIdx.x % 32 == 0) shared[b] = found;
    }
    __syncthreads();
    if (threadIdx.x == 0)
      for (int b = 0; b < here; ++b) so_far.join(shared[b]);
    __syncthreads();
  }
  return so_far;
}

__device__ bool is_bad(std::int32_t target, std::int64_t total) {
  return target != kIgnoreTarget && (target < 0 || target >= total);
}
__device__ void report_bad(std::uint64_t* bad, std::int64_t row, std::int32_t target) {
  atomicMin(reinterpret_cast<unsigned long long*>(bad),
            static_cast<unsigned long long>(row) << 32 | static_cast<std::uint32_t>(target));
}

struct Rows3 {
  float *max, *sum, *target;
};

/// statistics as [3, rows], or lse alone where `lse` is given.
template <typename T, int n>
__global__ void __launch_bounds__(kThreads)
    statistics_kernel(const T* logits, std::int64_t columns, const VocabularyPart part,
                      const std::int32_t* targets, bool continues, Rows3 statistics, float* lse,
                      std::uint64_t* bad) {
  __shared__ RunningSum shared[kBlocksAtOnce];
  const std::int64_t row = blockIdx.x;
  const T* x = logits + row * columns;
  const std::int32_t target = targets[row];
  if (threadIdx.x == 0 && is_bad(target, part.total)) report_bad(bad, row, target);
  RunningSum found;
  if (continues) found = {statistics.max[row], statistics.sum[row]};
  if (target != kIgnoreTarget) found = add_exponentials<n>(x, part.count, found, shared);
  if (threadIdx.x != 0) return;
  if (lse != nullptr) {
    lse[row] = target == kIgnoreTarget ? 0.0f : found.max + logf(found.sum);
    return;
  }
  statistics.max[row] = found.max;
  statistics.sum[row] = found.sum;
  if (target >= part.first && target < part.first + part.count) {
    statistics.target[row] = widen(x[target - part.first]);
  } else if (!continues) {
    statistics.target[row] = 0;
  }
}

constexpr int kSumThreads = 1024;

/// loss = (sum over rows that count of lse - logit_of(row), how many they are), by one block.
template <typename LogitOf>
__device__ void sum_losses(std::int64_t rows, const std::int32_t* targets, const float* lse,
                           const LogitOf& logit_of, float* loss) {
  __shared__ double shared[kSumThreads / 32];
  double sum = 0, count = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += kSumThreads) {
    if (targets[row] == kIgnoreTarget) continue;
    sum += static_cast<double>(lse[row] - logit_of(row));
    count += 1;
  }
  sum = block_sum<kSumThreads>(sum, shared);
  count = block_sum<kSumThreads>(count, shared);
  if (threadIdx.x != 0) return;
  loss[0] = static_cast<float>(sum);
  loss[1] = static_cast<float>(count);
}

template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    losses_kernel(const T* logits, std::int64_t rows, std::int64_t columns,
                  const std::int32_t* targets, const float* lse, float* loss) {
  sum_losses(
      rows, targets, lse,
      [&](std::int64_t row) {
        const std::int32_t target = targets[row];
        return is_bad(target, columns) ? NAN : widen(logits[row * columns + target]);
      },
      loss);
}

__global__ void __launch_bounds__(kThreads)
    join_kernel(__grid_constant__ const CrossEntropyJoinArgs a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= a.rows) return;
  const auto statistic = [&](std::int64_t part, int which) {
    return a.statistics[(part * 3 + which) * a.rows + row];
  };
  float max = -FLT_MAX, sum = 0;
  for (std::int64_t part = 0; part < a.parts; ++part) max = fmaxf(max, statistic(part, 0));
  for (std::int64_t part = 0; part < a.parts; ++part)
    sum += statistic(part, 1) * exp_of(statistic(part, 0) - max);
  a.lse[row] = a.targets[row] == kIgnoreTarget ? 0.0f : max + logf(sum);
}

__global__ void __launch_bounds__(kSumThreads)
    join_losses_kernel(__grid_constant__ const CrossEntropyJoinArgs a) {
  sum_losses(
      a.rows, a.targets, a.lse,
      [&](std::int64_t row) {
        float target = 0;
        for (std::int64_t part = 0; part < a.parts; ++part)
          target += a.statistics[(part * 3 + 2) * a.rows + row];
        return target;
      },
      a.loss);
}

template <typename T>
struct Gradient {
  T* logits;
  std::int64_t columns;
  VocabularyPart part;
  const std::int32_t* targets;
  const float *lse, *loss, *seed;

  template <int n>
  __device__ void at(std::int64_t row, std::int64_t i) const {
    T* x = logits + row * columns + i;
    const std::int32_t target = targets[row];
    const float factor = loss[1] > 0 ? seed[0] / loss[1] : 0.0f;
    const bool counts = target != kIgnoreTarget;
    const std::int64_t own = target - part.first - i;
    const float of_row = lse[row];
    const Floats<n> value = load<n>(x);
    store(each<n>([&](int k) {
            if (!counts || i + k >= part.count) return 0.0f;
            const float p = exp_of(value.v[k] - of_row);
            return (k == own ? p - 1.0f : p) * factor;
          }),
          x);
  }
};

template <typename T>
void run_statistics(const CrossEntropyPartArgs& a, float* lse, NativeStream stream) {
  std::uint64_t* bad = state_of(stream).bad_word();
  const Rows3 statistics{a.statistics, a.statistics + a.rows, a.statistics + 2 * a.rows};
  const auto* logits = static_cast<const T*>(a.logits);
  const auto grid = static_cast<unsigned>(a.rows);
  if (aligned({logits}) && wide_rows({a.columns})) {
    statistics_kernel<T, kWide><<<grid, kThreads, 0, stream>>>(logits, a.columns, a.part, a.targets,
                                                               a.continues, statistics, lse, bad);
  } else {
    statistics_kernel<T, 1><<<grid, kThreads, 0, stream>>>(logits, a.columns, a.part, a.targets,
                                                           a.continues, statistics, lse, bad);
  }
}

}  // namespace

void cross_entropy_forward(const CrossEntropyArgs& a, NativeStream stream) {
  CrossEntropyPartArgs whole;
  whole.dtype = a.dtype;
  whole.rows = a.rows;
  whole.columns = a.vocabulary;
  whole.part = VocabularyPart::all(a.vocabulary);
  whole.logits = a.logits;
  whole.targets = a.targets;
  with_type(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (a.rows > 0) run_statistics<T>(whole, a.lse, stream);
    losses_kernel<<<1, kSumThreads, 0, stream>>>(static_cast<const T*>(a.logits), a.rows,
                                                 a.vocabulary, a.targets, a.lse, a.loss);
  });
  check_launch("cross_entropy_forward");
}

void cross_entropy_statistics(const CrossEntropyPartArgs& a, NativeStream stream) {
  if (a.rows == 0) return;
  with_type(a.dtype, [&](auto tag) { run_statistics<decltype(tag)>(a, nullptr, stream); });
  check_launch("cross_entropy_statistics");
}

void cross_entropy_join(const CrossEntropyJoinArgs& a, NativeStream stream) {
  if (a.rows > 0)
    join_kernel<<<static_cast<unsigned>(divided_up(a.rows, kThreads)), kThreads, 0, stream>>>(a);
  join_losses_kernel<<<1, kSumThreads, 0, stream>>>(a);
  check_launch("cross_entropy_join");
}

void cross_entropy_backward(const CrossEntropyGradientArgs& a, NativeStream stream) {
  with_type(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_matrix("cross_entropy_backward", stream, a.rows, a.columns,
               aligned({a.logits}) && wide_rows({a.columns}),
               Gradient<T>{static_cast<T*>(a.logits), a.columns, a.part, a.targets, a.lse, a.loss,
                           a.seed});
  });
}

namespace {

__global__ void mean_loss_kernel(const MeanLossArgs a) {
  const bool counts = a.loss[1] != 0;
  const double mean =
      counts ? static_cast<double>(a.loss[0]) / static_cast<double>(a.loss[1]) : 0.0;
  a.means[0] = a.accumulate ? a.means[0] + mean : mean;
  a.means[1] = (a.accumulate ? a.means[1] : 0.0) + (counts ? 1.0 : 0.0);
}

}  // namespace

void add_mean_loss(const MeanLossArgs& a, NativeStream stream) {
  mean_loss_kernel<<<1, 1, 0, stream>>>(a);
  check_launch("add_mean_loss");
}

}  // namespace zero3d::kernels::cuda
