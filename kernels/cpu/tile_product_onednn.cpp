// Tile products by oneDNN: its sgemm for fp32, its bf16 matmul where the CPU multiplies bf16, and
// operands converted to fp32 by pieces of k otherwise (its own bf16 without such instructions is
// several times slower, and it has no fp16).
#include <omp.h>

#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/kernels/cpu/convert_rows.h"
#include "zero3d/kernels/cpu/scratch.h"
#include "zero3d/kernels/cpu/tile_product.h"

namespace zero3d::kernels::cpu {
namespace {

constexpr std::int64_t kConvertedK = 512;  // two converted operands of a tile fit in L2

bool has_isa(dnnl::cpu_isa wanted) {
  const auto bits = static_cast<unsigned>(wanted);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

bool multiplies_bf16() {
  static const bool native = has_isa(dnnl::cpu_isa::avx512_core_bf16);
  return native;
}

bool has_amx() {
  static const bool has = has_isa(dnnl::cpu_isa::avx512_core_amx);
  return has;
}

/// oneDNN plans its sums for as many threads as OpenMP would give it: for the calling thread that
/// is one, here, and the caller's own setting is back afterwards.
class OneOmpThread {
 public:
  OneOmpThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneOmpThread() { omp_set_num_threads(before_); }
  OneOmpThread(const OneOmpThread&) = delete;
  OneOmpThread& operator=(const OneOmpThread&) = delete;

 private:
  int before_;
};

void multiply_fp32(const TileProduct& t, float beta) {
  const dnnl_status_t status =
      dnnl_sgemm(t.trans_a ? 'T' : 'N', t.trans_b ? 'T' : 'N', t.m, t.n, t.k, 1.0f,
                 static_cast<const float*>(t.a), t.lda, static_cast<const float*>(t.b), t.ldb, beta,
                 static_cast<float*>(t.c), t.ldc);
  if (status != dnnl_success)
    throw Error(ErrorKind::kInternal, concat("oneDNN sgemm of a ", t.m, "x", t.n, "x", t.k,
                                             " tile: status ", static_cast<int>(status)));
}

dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, dnnl::memory::data_type dtype,
                          std::int64_t ld, bool trans) {
  return {{rows, columns}, dtype, trans ? dnnl::memory::dims{1, ld} : dnnl::memory::dims{ld, 1}};
}

dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::matmul::primitive_desc plan_bf16(const TileProduct& t, const dnnl::engine& engine) {
  const auto a = matrix(t.m, t.k, type_of(t.dtype), t.lda, t.trans_a);
  const auto b = matrix(t.k, t.n, type_of(t.dtype), t.ldb, t.trans_b);
  const auto c = matrix(t.m, t.n, type_of(t.c_dtype), t.ldc, false);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (t.bias == nullptr) return {dnnl::matmul::desc(a, b, c), attributes, engine};
  const auto bias = matrix(1, t.n, type_of(t.bias_dtype), t.n, false);
  return {dnnl::matmul::desc(a, b, bias, c), attributes, engine};
}

/// Making the primitive again for each tile costs about 2 microseconds: oneDNN keeps the compiled
/// code in a cache of its own, bounded and shared by all threads.
void multiply_bf16_at_once(const TileProduct& t) {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto plan = plan_bf16(t, engine);
  const dnnl::matmul multiply(plan);
  thread_local Scratch memory;
  void* scratchpad = memory.get<std::byte>(plan.scratchpad_desc().get_size());
  const auto view = [](const dnnl::memory::desc& desc, const void* data) {
    return dnnl::memory(desc, engine, const_cast<void*>(data));
  };
  std::unordered_map<int, dnnl::memory> arguments = {
      {DNNL_ARG_SRC, view(plan.src_desc(), t.a)},
      {DNNL_ARG_WEIGHTS, view(plan.weights_desc(), t.b)},
      {DNNL_ARG_DST, view(plan.dst_desc(), t.c)},
      {DNNL_ARG_SCRATCHPAD, view(plan.scratchpad_desc(), scratchpad)}};
  if (t.bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, view(plan.bias_desc(), t.bias));
  dnnl::stream stream(engine);
  multiply.execute(stream, arguments);
  stream.wait();
}

/// oneDNN 2.6 takes k in pieces of a multiple of 32. Where the last one has one element less than
/// the others, it leaves out to configure the AMX tiles anew for the rows that remain of m: an
/// illegal instruction, in a product of 65 x 36 x 63 for one. It cuts no m of 32 into parts.
void multiply_bf16(const TileProduct& t) {
  constexpr std::int64_t kUncutRows = 32;
  const std::int64_t rows = has_amx() && t.k % 32 == 31 ? kUncutRows : t.m;
  for (std::int64_t first = 0; first < t.m; first += rows) {
    TileProduct part = t;
    part.m = std::min(rows, t.m - first);
    part.a = static_cast<const std::byte*>(t.a) +
             static_cast<std::size_t>(t.trans_a ? first : first * t.lda) * size_of(t.dtype);
    part.c =
        static_cast<std::byte*>(t.c) + static_cast<std::size_t>(first * t.ldc) * size_of(t.c_dtype);
    multiply_bf16_at_once(part);
  }
}

/// Columns [first, first + count) of op's k dimension as fp32, stored as X is; `k_major` when the
/// stored rows run along k.
const float* convert_piece(Scratch& memory, const void* x, DType dtype, std::int64_t ld,
                           bool k_major, std::int64_t extent, std::int64_t first,
                           std::int64_t count) {
  const std::int64_t rows = k_major ? count : extent;
  const std::int64_t columns = k_major ? extent : count;
  const std::int64_t offset = k_major ? first * ld : first;
  float* out = memory.get<float>(static_cast<std::size_t>(rows * columns));
  for (std::int64_t r = 0; r < rows; ++r)
    load_row(static_cast<const std::byte*>(x) +
                 static_cast<std::size_t>(offset + r * ld) * size_of(dtype),
             dtype, columns, out + r * columns);
  return out;
}

void multiply_converted(const TileProduct& t) {
  thread_local Scratch a_memory, b_memory;
  for (std::int64_t first = 0; first < t.k; first += kConvertedK) {
    TileProduct piece = t;
    piece.k = std::min(kConvertedK, t.k - first);
    piece.dtype = DType::f32;
    piece.a = convert_piece(a_memory, t.a, t.dtype, t.lda, t.trans_a, t.m, first, piece.k);
    piece.lda = t.trans_a ? t.m : piece.k;
    piece.b = convert_piece(b_memory, t.b, t.dtype, t.ldb, !t.trans_b, t.n, first, piece.k);
    piece.ldb = t.trans_b ? piece.k : t.n;
    multiply_fp32(piece, first == 0 ? 0.0f : 1.0f);
  }
}

}  // namespace

bool stores_bf16() { return multiplies_bf16(); }

void multiply_tile(const TileProduct& tile) {
  if (tile.k == 0) {
    float* c = static_cast<float*>(tile.c);
    for (std::int64_t i = 0; i < tile.m; ++i) std::fill_n(c + i * tile.ldc, tile.n, 0.0f);
    return;
  }
  const OneOmpThread one_thread;
  try {
    if (tile.dtype == DType::f32) {
      multiply_fp32(tile, 0.0f);
    } else if (tile.dtype == DType::bf16 && multiplies_bf16()) {
      multiply_bf16(tile);
    } else {
      multiply_converted(tile);
    }
  } catch (const dnnl::error& error) {
    throw Error(ErrorKind::kInternal, concat("oneDNN matmul of a ", tile.m, "x", tile.n, "x",
                                             tile.k, " tile: ", error.what()));
  }
}

const char* bf16_path() {
  if (!multiplies_bf16()) return "fp32";
  return has_amx() ? "amx" : "avx512_bf16";
}

}  // namespace zero3d::kernels::cpu
