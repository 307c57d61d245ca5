// Embeddings, matrix products and column sums on a GPU against the CPU's, over odd sizes. Gradients
// of tables and column sums are the CPU's to the bit; products are within the rounding of fp32
// sums.
#include "zero3d/kernels/cpu/embedding.h"
#include "zero3d/kernels/cpu/gemm.h"
#include "zero3d/tests/kernels/cuda_kit.h"

namespace zero3d::kernels::test {
namespace {

struct EmbeddingCase {
  std::int64_t batch, seq, width, vocabulary;
};

TEST(CudaEmbedding, ForwardAndGradientsHaveTheCpusBits) {
  for_dtypes([](DType dtype, std::int64_t offset) {
    for (const EmbeddingCase& c : {EmbeddingCase{1, 1, 1, 1}, {2, 7, 24, 11}, {3, 300, 13, 40}}) {
      CudaKit kit(offset);
      const std::int64_t rows = c.batch * c.seq;
      const Tensor tokens = kit.filled(DType::i32, rows, [&](std::int64_t i) {
        return static_cast<double>((i * i + 3 * i) % c.vocabulary);
      });
      const Tensor table = kit.random(dtype, c.vocabulary * c.width, "table");
      const Tensor positions = kit.random(dtype, (c.seq + 2) * c.width, "positions");
      const Tensor out = kit.output(dtype, rows * c.width),
                   dout = kit.random(dtype, out.count, "d");
      const Tensor part_out = kit.output(dtype, rows * c.width);
      const Tensor plain = kit.output(dtype, table.count);
      const Tensor wide = kit.random(DType::f32, table.count, "wide");
      const Tensor dpositions = kit.output(DType::f32, positions.count);
      const VocabularyPart part{c.vocabulary / 3, c.vocabulary - c.vocabulary / 3, c.vocabulary};
      for (const bool gpu : {false, true}) {
        EmbeddingArgs f;
        f.dtype = dtype;
        f.rows = rows;
        f.seq = c.seq;
        f.width = c.width;
        f.part = VocabularyPart::all(c.vocabulary);
        f.tokens = tokens.on<std::int32_t>(gpu);
        f.table = table.on<void>(gpu);
        f.positions = positions.on<void>(gpu);
        f.out = out.on<void>(gpu);
        EmbeddingArgs keeps = f;
        keeps.part = part;
        keeps.others = OtherTokens::keep;
        keeps.positions = nullptr;
        keeps.out = part_out.on<void>(gpu);
        EmbeddingGradientArgs b;
        b.dtype = dtype;
        b.rows = rows;
        b.seq = c.seq;
        b.width = c.width;
        b.table_rows = c.vocabulary;
        b.part = VocabularyPart::all(c.vocabulary);
        b.tokens = f.tokens;
        b.dout = dout.on<void>(gpu);
        b.table_dtype = dtype;
        b.dtable = plain.on<void>(gpu);
        EmbeddingGradientArgs adds = b, of_positions = b;
        adds.part = part;
        adds.padding = 4;
        adds.table_dtype = of_positions.table_dtype = DType::f32;
        adds.dtable = wide.on<void>(gpu);
        adds.accumulate = true;
        of_positions.tokens = nullptr;
        of_positions.table_rows = c.seq + 2;
        of_positions.dtable = dpositions.on<void>(gpu);
        for (const EmbeddingArgs& args : {f, keeps})
          gpu ? cuda::embedding_forward(args, kit.stream()) : cpu::embedding_forward(args);
        for (const EmbeddingGradientArgs& args : {b, adds})
          gpu ? cuda::embedding_backward(args, kit.stream()) : cpu::embedding_backward(args);
        gpu ? cuda::position_backward(of_positions, kit.stream())
            : cpu::position_backward(of_positions);
      }
      kit.expect_same(out, "forward");
      kit.expect_same(part_out, "forward of a part");
      kit.expect_same(plain, "gradient");
      kit.expect_same(wide, "accumulated gradient of a part");
      kit.expect_same(dpositions, "gradient of positions");
    }
  });
}

TEST(CudaEmbedding, ATokenOutsideTheVocabularyIsReported) {
  CudaKit kit;
  const Tensor tokens = kit.filled(DType::i32, 3, [](std::int64_t i) { return i == 0 ? 1 : -i; });
  const Tensor table = kit.random(DType::f32, 5 * 4, "t"), out = kit.output(DType::f32, 3 * 4);
  EmbeddingArgs f;
  f.rows = f.seq = 3;
  f.width = 4;
  f.part = VocabularyPart::all(5);
  f.tokens = tokens.on<std::int32_t>(true);
  f.table = table.on<void>(true);
  f.out = out.on<void>(true);
  const auto word = cuda::state_of(kit.stream()).begin_check();
  cuda::embedding_forward(f, kit.stream());
  cuda::state_of(kit.stream()).end_check();
  kit.sync();
  const cuda::BadElement bad = cuda::bad_element(*word);
  EXPECT_EQ(bad.row, 1);
  EXPECT_EQ(bad.value, -1);
}

struct GemmCase {
  std::int64_t m, n, k;
  bool trans_a, trans_b, bias, residual, accumulate;
};

TEST(CudaGemm, MatchesTheCpu) {
  for_dtypes([](DType dtype, std::int64_t offset) {
    for (const DType c_dtype : {DType::f32, DType::bf16})
      for (const GemmCase& g : {GemmCase{1, 1, 1, false, false, false, false, false},
                                {17, 24, 33, false, true, true, false, false},
                                {64, 40, 72, true, false, false, false, true},
                                {13, 31, 5, false, false, true, true, false},
                                {8, 16, 24, true, true, true, true, true},
                                {5, 7, 0, false, false, true, false, false}}) {
        SCOPED_TRACE(concat(g.m, " x ", g.n, " x ", g.k, " to ", name_of(c_dtype)));
        CudaKit kit(offset);
        // Of wider matrices, columns from the third on.
        const std::int64_t a_rows = g.trans_a ? g.k : g.m, a_columns = (g.trans_a ? g.m : g.k) + 5;
        const std::int64_t b_rows = g.trans_b ? g.n : g.k, b_columns = (g.trans_b ? g.k : g.n) + 5;
        const std::int64_t columns = g.n + 5;
        const Tensor a = kit.random(dtype, a_rows * a_columns, "a");
        const Tensor b = kit.random(dtype, b_rows * b_columns, "b");
        const Tensor bias = kit.random(dtype, g.n, "bias");
        const Tensor residual = kit.random(c_dtype, g.m * columns, "residual");
        const Tensor c = kit.random(c_dtype, g.m * columns, "c");
        const auto args = [&](bool gpu) {
          GemmArgs x;
          x.m = g.m;
          x.n = g.n;
          x.k = g.k;
          x.trans_a = g.trans_a;
          x.trans_b = g.trans_b;
          x.a = {a.on<std::byte>(gpu), dtype, a_columns};
          x.b = {b.on<std::byte>(gpu), dtype, b_columns};
          x.c = {c.on<std::byte>(gpu), c_dtype, columns};
          x.a.data = x.a.at(0, 3);
          x.b.data = x.b.at(0, 3);
          x.c.data = x.c.at(0, 3);
          if (g.bias) x.bias = {bias.on<std::byte>(gpu), dtype, g.n};
          if (g.residual) {
            x.residual = {residual.on<std::byte>(gpu), c_dtype, columns};
            x.residual.data = x.residual.at(0, 3);
          }
          x.accumulate = g.accumulate;
          return x;
        };
        cpu::gemm(args(false));
        cuda::gemm(args(true), kit.stream());
        kit.expect_close(c, c_dtype == DType::f32 ? 16 : 2, 1e-5, "gemm");
      }
  });
}

TEST(CudaGemm, ColumnSumsHaveTheCpusBits) {
  for_dtypes([](DType dtype, std::int64_t offset) {
    for (const DType out_dtype : {DType::f32, DType::bf16})
      for (const auto& [rows, columns] :
           {std::pair<std::int64_t, std::int64_t>{0, 5}, {1, 1}, {127, 24}, {129, 37}, {400, 600}})
        for (const bool accumulate : {false, true}) {
          CudaKit kit(offset);
          const Tensor x = kit.random(dtype, rows * (columns + 8), "x");
          const Tensor out = kit.random(out_dtype, columns, "out");
          const auto args = [&, n = columns, m = rows](bool gpu) {
            return ColumnSumsArgs{{x.on<std::byte>(gpu), dtype, n + 8},
                                  m,
                                  {out.on<std::byte>(gpu), out_dtype, n},
                                  accumulate};
          };
          cpu::column_sums(args(false));
          cuda::column_sums(args(true), kit.stream());
          kit.expect_same(out, "column_sums");
        }
  });
}

}  // namespace
}  // namespace zero3d::kernels::test
