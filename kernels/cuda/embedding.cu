// Embeddings on the GPU. The gradient of a table row is summed over the rows of dout that belong to
// it in their order, as the CPU does: tokens are sorted with their rows, and each run of one token
// is summed by itself.
#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/kernels/cuda/launch.cuh"
#include "zero3d/kernels/cuda/stream_state.h"

namespace zero3d::kernels::cuda {
namespace {

/// Orders by token, then by row; tokens outside the vocabulary have none.
using SortKey = unsigned long long;
constexpr SortKey kNoToken = ~SortKey{0};

__device__ bool checked(std::int32_t token, std::int64_t row, std::int64_t total,
                        std::uint64_t* bad) {
  if (token >= 0 && token < total) return true;
  atomicMin(reinterpret_cast<unsigned long long*>(bad),
            static_cast<unsigned long long>(row) << 32 | static_cast<std::uint32_t>(token));
  return false;
}

template <typename T>
struct Forward {
  EmbeddingArgs a;
  std::uint64_t* bad;

  template <int n>
  __device__ void at(std::int64_t row, std::int64_t i) const {
    const std::int32_t token = a.tokens[row];
    T* out = static_cast<T*>(a.out) + row * a.width + i;
    const bool valid = token >= 0 && token < a.part.total;
    if (!valid && i == 0) checked(token, row, a.part.total, bad);
    if (!valid || token < a.part.first || token >= a.part.first + a.part.count) {
      if (a.others == OtherTokens::zero) store(Floats<n>{}, out);
      return;
    }
    Floats<n> value =
        load<n>(static_cast<const T*>(a.table) + (token - a.part.first) * a.width + i);
    if (a.positions != nullptr) {
      const Floats<n> position =
          load<n>(static_cast<const T*>(a.positions) + row % a.seq * a.width + i);
#pragma unroll
      for (int k = 0; k < n; ++k) value.v[k] = __fadd_rn(value.v[k], position.v[k]);
    }
    store(value, out);
  }
};

__global__ void __launch_bounds__(kThreads)
    keys_kernel(const std::int32_t* tokens, std::int64_t rows, std::int64_t padded,
                std::int64_t total, SortKey* keys, std::uint64_t* bad) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= padded) return;
  const bool valid = row < rows && checked(tokens[row], row, total, bad);
  keys[row] =
      valid ? static_cast<SortKey>(tokens[row]) << 32 | static_cast<std::uint32_t>(row) : kNoToken;
}

// A bitonic sort: `size` is the length of the runs that are merged, `distance` that of elements
// compared. Distances below kSorted stay in shared memory.
constexpr int kSorted = 2 * kThreads;

__device__ void compare(SortKey& low, SortKey& high, bool ascending) {
  if ((low > high) != ascending) return;
  const SortKey swapped = low;
  low = high;
  high = swapped;
}

__global__ void __launch_bounds__(kThreads)
    merge_far_kernel(SortKey* keys, std::int64_t pairs, std::int64_t size, std::int64_t distance) {
  const std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (pair >= pairs) return;
  const std::int64_t i = pair / distance * 2 * distance + pair % distance;
  compare(keys[i], keys[i + distance], (i & size) == 0);
}

/// Sizes from `first` to `last`, of which only distances within a block's keys are compared.
__global__ void __launch_bounds__(kThreads)
    merge_near_kernel(SortKey* keys, std::int64_t first, std::int64_t last) {
  __shared__ SortKey shared[kSorted];
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kSorted;
  const int thread = static_cast<int>(threadIdx.x);
  shared[thread] = keys[begin + thread];
  shared[thread + kThreads] = keys[begin + thread + kThreads];
  for (std::int64_t size = first; size <= last; size *= 2)
    for (int distance = static_cast<int>(min(size / 2, std::int64_t{kThreads})); distance > 0;
         distance /= 2) {
      __syncthreads();
      const int i = thread / distance * 2 * distance + thread % distance;
      compare(shared[i], shared[i + distance], ((begin + i) & size) == 0);
    }
  __syncthreads();
  keys[begin + thread] = shared[thread];
  keys[begin + thread + kThreads] = shared[thread + kThreads];
}

/// `count` keys, a power of two and at least kSorted.
void sort(SortKey* keys, std::int64_t count, NativeStream stream) {
  const auto blocks = static_cast<unsigned>(count / kSorted);
  merge_near_kernel<<<blocks, kThreads, 0, stream>>>(keys, 2, kSorted);
  for (std::int64_t size = 2 * kSorted; size <= count; size *= 2) {
    for (std::int64_t distance = size / 2; distance >= kSorted; distance /= 2)
      merge_far_kernel<<<blocks, kThreads, 0, stream>>>(keys, count / 2, size, distance);
    merge_near_kernel<<<blocks, kThreads, 0, stream>>>(keys, size, size);
  }
}

/// The sum of rows row_at(0), ..., row_at(count - 1) of dout, added or written to an entry.
template <int n, typename T, typename Table, typename RowAt>
__device__ void sum_rows(const T* dout, std::int64_t width, std::int64_t count, const RowAt& row_at,
                         Table* entry, bool accumulate) {
  Floats<n> sum = load<n>(dout + row_at(0) * width);
#pragma unroll 4
  for (std::int64_t k = 1; k < count; ++k) {
    const Floats<n> more = load<n>(dout + row_at(k) * width);
#pragma unroll
    for (int j = 0; j < n; ++j) sum.v[j] = __fadd_rn(sum.v[j], more.v[j]);
  }
  if (accumulate) {
    const Floats<n> before = load<n>(entry);
#pragma unroll
    for (int j = 0; j < n; ++j) sum.v[j] = __fadd_rn(before.v[j], sum.v[j]);
  }
  store(sum, entry);
}

/// Block b sums the run that begins at sorted key b, if one does.
template <typename T, typename Table, int n>
__global__ void __launch_bounds__(128)
    table_gradient_kernel(const EmbeddingGradientArgs a, const SortKey* keys) {
  for (std::int64_t begin = blockIdx.x; begin < a.rows; begin += gridDim.x) {
    const SortKey key = keys[begin];
    const SortKey token = key >> 32;
    if (key == kNoToken) return;
    if (begin > 0 && keys[begin - 1] >> 32 == token) continue;
    const auto entry = static_cast<std::int64_t>(token);
    if (entry == a.padding || entry < a.part.first || entry >= a.part.first + a.part.count)
      continue;
    std::int64_t end = begin + 1;
    while (end < a.rows && keys[end] >> 32 == token) ++end;
    for (std::int64_t i = static_cast<std::int64_t>(threadIdx.x) * n; i < a.width;
         i += static_cast<std::int64_t>(blockDim.x) * n)
      sum_rows<n>(
          static_cast<const T*>(a.dout) + i, a.width, end - begin,
          [&](std::int64_t k) { return static_cast<std::int64_t>(keys[begin + k] & 0xffffffffu); },
          static_cast<Table*>(a.dtable) + (entry - a.part.first) * a.width + i, a.accumulate);
  }
}

template <typename T, typename Table>
struct Positions {
  EmbeddingGradientArgs a;
  template <int n>
  __device__ void at(std::int64_t t, std::int64_t i) const {
    sum_rows<n>(
        static_cast<const T*>(a.dout) + i, a.width, a.rows / a.seq,
        [&](std::int64_t b) { return b * a.seq + t; },
        static_cast<Table*>(a.dtable) + t * a.width + i, a.accumulate);
  }
};

void zero_rows(const EmbeddingGradientArgs& a, std::int64_t first, std::int64_t count,
               NativeStream stream) {
  const std::size_t bytes = static_cast<std::size_t>(a.width) * size_of(a.table_dtype);
  check_cuda(
      cudaMemsetAsync(static_cast<std::byte*>(a.dtable) + static_cast<std::size_t>(first) * bytes,
                      0, static_cast<std::size_t>(count) * bytes, stream),
      "zero an embedding's gradient");
}

template <typename Body>
void with_types(const EmbeddingGradientArgs& a, const Body& body) {
  with_type(a.dtype, [&](auto tag) {
    with_type(a.table_dtype, [&](auto table_tag) { body(tag, table_tag); });
  });
}

}  // namespace

void embedding_forward(const EmbeddingArgs& a, NativeStream stream) {
  const bool wide = aligned({a.table, a.positions, a.out}) && wide_rows({a.width});
  std::uint64_t* bad = state_of(stream).bad_word();
  with_type(a.dtype, [&](auto tag) {
    for_matrix("embedding_forward", stream, a.rows, a.width, wide, Forward<decltype(tag)>{a, bad});
  });
}

void embedding_backward(const EmbeddingGradientArgs& a, NativeStream stream) {
  if (!a.accumulate) zero_rows(a, 0, a.table_rows, stream);
  if (a.rows == 0 || a.width == 0) return;
  std::int64_t padded = kSorted;
  while (padded < a.rows) padded *= 2;
  auto* keys = reinterpret_cast<SortKey*>(
      state_of(stream).scratch(static_cast<std::size_t>(padded) * sizeof(SortKey)));
  keys_kernel<<<static_cast<unsigned>(padded / kThreads), kThreads, 0, stream>>>(
      a.tokens, a.rows, padded, a.part.total, keys, state_of(stream).bad_word());
  sort(keys, padded, stream);
  const bool wide = aligned({a.dout, a.dtable}) && wide_rows({a.width});
  const auto grid = static_cast<unsigned>(std::min<std::int64_t>(a.rows, 65535));
  with_types(a, [&](auto tag, auto table_tag) {
    using T = decltype(tag);
    using Table = decltype(table_tag);
    if (wide) {
      table_gradient_kernel<T, Table, kWide><<<grid, 128, 0, stream>>>(a, keys);
    } else {
      table_gradient_kernel<T, Table, 1><<<grid, 128, 0, stream>>>(a, keys);
    }
  });
  check_launch("embedding_backward");
}

void position_backward(const EmbeddingGradientArgs& a, NativeStream stream) {
  if (!a.accumulate) {
    const std::int64_t written = a.rows == 0 ? 0 : a.seq;
    if (written < a.table_rows) zero_rows(a, written, a.table_rows - written, stream);
  }
  if (a.rows == 0) return;
  const bool wide = aligned({a.dout, a.dtable}) && wide_rows({a.width});
  with_types(a, [&](auto tag, auto table_tag) {
    for_matrix("position_backward", stream, a.seq, a.width, wide,
               Positions<decltype(tag), decltype(table_tag)>{a});
  });
}

}  // namespace zero3d::kernels::cuda
