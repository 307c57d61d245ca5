// Matrix products by cuBLASLt, in fp32 sums; what its epilogue cannot add or round is added to an
// fp32 product by a kernel. Column sums are in the CPU's order.
//
// A row-major matrix is the transpose of a column-major one, so C' = op(B)' op(A)' is what the
// library is asked for: its A is our B. Reductions of products that are split along k stay in fp32
// and in its workspace, which belongs to the stream.
#include <cublasLt.h>

#include <array>
#include <map>

#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/kernels/cuda/column_blocks.cuh"
#include "zero3d/kernels/cuda/launch.cuh"
#include "zero3d/kernels/cuda/stream_state.h"

namespace zero3d::kernels::cuda {
namespace {

constexpr std::size_t kWorkspace = std::size_t{32} << 20;

void check_blas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(ErrorKind::kInternal,
                concat("gemm: ", call, " reports ", cublasLtGetStatusName(status)));
}

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

/// A handle of the library, and a function that gives it back.
template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) kDestroy(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Handle* out() { return &handle_; }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// What the choice of an algorithm depends on.
using Key = std::array<std::int64_t, 16>;

/// The handle, workspace and algorithms of one stream.
struct Products {
  Products() {
    check_blas(cublasLtCreate(&handle), "cublasLtCreate");
    check_cuda(cudaMalloc(&workspace, kWorkspace), "memory of matrix products");
  }
  ~Products() {
    cublasLtDestroy(handle);
    cudaFree(workspace);
  }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  cublasLtHandle_t handle = nullptr;
  std::byte* workspace = nullptr;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms;
};

Products& products_of(NativeStream stream) {
  return *static_cast<Products*>(state_of(stream).products(
      [] { return std::shared_ptr<void>(std::make_shared<Products>()); }));
}

/// What the library is asked for: c = product (+ bias) (+ added, which has c's dtype).
struct Plan {
  ConstMatrix bias, added;
  Matrix c;
};

template <typename Byte>
std::int64_t alignment_of(const BasicMatrix<Byte>& matrix) {
  const auto bits = reinterpret_cast<std::uintptr_t>(matrix.data) |
                    static_cast<std::uintptr_t>(matrix.columns) * size_of(matrix.dtype) | 256;
  return static_cast<std::int64_t>(bits & ~(bits - 1));
}

Key key_of(const GemmArgs& g, const Plan& plan) {
  return {g.m,
          g.n,
          g.k,
          g.trans_a,
          g.trans_b,
          g.a.columns,
          g.b.columns,
          plan.c.columns,
          plan.added.data == nullptr ? 0 : plan.added.columns,
          static_cast<std::int64_t>(g.a.dtype),
          static_cast<std::int64_t>(plan.c.dtype),
          plan.bias.data != nullptr,
          alignment_of(g.a),
          alignment_of(g.b),
          alignment_of(plan.c),
          plan.added.data == nullptr ? 0 : alignment_of(plan.added)};
}

template <typename T>
void prefer(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check_blas(
      cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
      "cublasLtMatmulPreferenceSetAttribute");
}

template <typename T>
void describe(const Description& description, cublasLtMatmulDescAttributes_t attribute, T value) {
  check_blas(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof(value)),
             "cublasLtMatmulDescSetAttribute");
}

/// Row-major [rows, columns] with the matrix's elements a row, as the library sees it.
void lay_out(Layout& layout, DType dtype, std::int64_t rows, std::int64_t columns,
             std::int64_t stride) {
  check_blas(
      cublasLtMatrixLayoutCreate(layout.out(), type_of(dtype), static_cast<std::uint64_t>(columns),
                                 static_cast<std::uint64_t>(rows), stride),
      "cublasLtMatrixLayoutCreate");
}

cublasLtMatmulAlgo_t choose(const Products& products, const Key& key, const GemmArgs& g,
                            const Description& description, const Layout& a, const Layout& b,
                            const Layout& added, const Layout& c) {
  Preference preference;
  check_blas(cublasLtMatmulPreferenceCreate(preference.out()), "cublasLtMatmulPreferenceCreate");
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspace});
  prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
         static_cast<std::uint32_t>(key[13]));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
         static_cast<std::uint32_t>(key[12]));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
         static_cast<std::uint32_t>(key[15] == 0 ? key[14] : key[15]));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
         static_cast<std::uint32_t>(key[14]));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(products.handle, description.get(), a.get(), b.get(),
                                     added.get(), c.get(), preference.get(), 1, &found, &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0)
    throw Error(ErrorKind::kInternal,
                concat("gemm: cuBLASLt has no algorithm for ", g.m, " x ", g.n, " x ", g.k, " of ",
                       name_of(g.a.dtype), " (", cublasLtGetStatusName(status), ")"));
  return found.algo;
}

void multiply(const GemmArgs& g, const Plan& plan, NativeStream stream) {
  Products& products = products_of(stream);
  const bool adds = plan.added.data != nullptr;
  Description description;
  check_blas(cublasLtMatmulDescCreate(description.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F),
             "cublasLtMatmulDescCreate");
  describe(description, CUBLASLT_MATMUL_DESC_TRANSA, g.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  describe(description, CUBLASLT_MATMUL_DESC_TRANSB, g.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (plan.bias.data != nullptr) {
    describe(description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    describe(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
             static_cast<const void*>(plan.bias.data));
  }
  Layout a, b, added, c;
  lay_out(a, g.b.dtype, g.trans_b ? g.n : g.k, g.trans_b ? g.k : g.n, g.b.columns);
  lay_out(b, g.a.dtype, g.trans_a ? g.k : g.m, g.trans_a ? g.m : g.k, g.a.columns);
  lay_out(added, plan.c.dtype, g.m, g.n, adds ? plan.added.columns : plan.c.columns);
  lay_out(c, plan.c.dtype, g.m, g.n, plan.c.columns);
  const Key key = key_of(g, plan);
  auto algorithm = products.algorithms.find(key);
  if (algorithm == products.algorithms.end())
    algorithm =
        products.algorithms.emplace(key, choose(products, key, g, description, a, b, added, c))
            .first;
  const float alpha = 1, beta = adds ? 1 : 0;
  check_blas(
      cublasLtMatmul(products.handle, description.get(), &alpha, g.b.data, a.get(), g.a.data,
                     b.get(), &beta, adds ? plan.added.data : plan.c.data, added.get(), plan.c.data,
                     c.get(), &algorithm->second, products.workspace, kWorkspace, stream),
      "cublasLtMatmul");
}

/// c = product + bias + residual (+ c), each added in fp32 in this order; product: fp32, n a row.
template <typename C>
struct Finish {
  const float* product;
  ConstMatrix bias, residual;
  Matrix c;
  std::int64_t n;
  bool accumulate;

  static __device__ float element(const std::byte* data, DType dtype, std::int64_t i) {
    if (dtype == DType::f32) return reinterpret_cast<const float*>(data)[i];
    if (dtype == DType::bf16) return widen(reinterpret_cast<const bf16*>(data)[i]);
    return widen(reinterpret_cast<const f16*>(data)[i]);
  }
  template <int kCount>
  __device__ void at(std::int64_t row, std::int64_t column) const {
    static_assert(kCount == 1 || kCount == kWide);
    C* to = reinterpret_cast<C*>(c.data) + row * c.columns + column;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      float value = product[row * n + column + k];
      if (bias.data != nullptr) value += element(bias.data, bias.dtype, column + k);
      if (residual.data != nullptr)
        value += element(residual.data, residual.dtype, row * residual.columns + column + k);
      if (accumulate) value += widen(to[k]);
      to[k] = narrow_to<C>(value);
    }
  }
};

void finish(const GemmArgs& g, const float* product, NativeStream stream) {
  with_type(g.c.dtype, [&](auto tag) {
    for_matrix("gemm", stream, g.m, g.n, false,
               Finish<decltype(tag)>{product, g.bias, g.residual, g.c, g.n, g.accumulate});
  });
}

struct Columns {
  template <typename T>
  struct Term {
    const T* x;
    std::int64_t stride;
    template <int n>
    __device__ void add(std::int64_t row, std::int64_t column, Floats<n>* sums) const {
      const Floats<n> value = load<n>(x + row * stride + column);
#pragma unroll
      for (int k = 0; k < n; ++k) sums[0].v[k] = __fadd_rn(sums[0].v[k], value.v[k]);
    }
  };
};

}  // namespace

void gemm(const GemmArgs& g, NativeStream stream) {
  if (g.m == 0 || g.n == 0) return;
  // The library rounds once, and adds what has C's dtype; a bias must have it too.
  const bool stores = g.c.dtype == g.a.dtype || g.c.dtype == DType::f32;
  const bool biased = g.bias.data == nullptr || g.bias.dtype == g.c.dtype;
  const bool one_added = !(g.accumulate && g.residual.data != nullptr) &&
                         (g.residual.data == nullptr || g.residual.dtype == g.c.dtype);
  if (g.k > 0 && stores && biased && one_added) {
    Plan plan{g.bias, g.residual, g.c};
    if (g.accumulate) plan.added = {g.c.data, g.c.dtype, g.c.columns};
    multiply(g, plan, stream);
    return;
  }
  const auto bytes = static_cast<std::size_t>(g.m * g.n) * sizeof(float);
  std::byte* product = state_of(stream).scratch(bytes);
  if (g.k > 0) {
    multiply(g, {{}, {}, {product, DType::f32, g.n}}, stream);
  } else {
    check_cuda(cudaMemsetAsync(product, 0, bytes, stream), "gemm");
  }
  finish(g, reinterpret_cast<const float*>(product), stream);
}

void column_sums(const ColumnSumsArgs& a, NativeStream stream) {
  with_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Columns::Term<T> term{reinterpret_cast<const T*>(a.x.data), a.x.columns};
    sum_columns("column_sums", stream, a.rows, a.out.columns,
                aligned({a.x.data}) && wide_rows({a.x.columns}), term, {a.out.data}, a.out.dtype,
                a.accumulate);
  });
}

}  // namespace zero3d::kernels::cuda
