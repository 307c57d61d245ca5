// Attention against a plain fp64 softmax over the whole row, and its gradients against the closed
// form (itself held to numeric gradients).
#include "zero3d/kernels/attention.h"

#include "zero3d/tests/kernels/kit.h"

namespace zero3d::kernels {
namespace {

using namespace test;

struct Reference {
  Values out, lse, dq, dk, dv;
};

/// Matrices [B*T, heads*D]; the probabilities of one query at a time.
Reference reference(const AttentionShape& s, const Values& q, const Values& k, const Values& v,
                    const Values& dout) {
  const auto at = [&](std::int64_t b, std::int64_t t, std::int64_t heads, std::int64_t h) {
    return static_cast<std::size_t>(((b * s.seq + t) * heads + h) * s.head_dim);
  };
  const auto dims = static_cast<std::size_t>(s.head_dim);
  Reference r{Values(q.size()), Values(static_cast<std::size_t>(s.batch * s.heads * s.seq)),
              Values(q.size()), Values(k.size()), Values(v.size())};
  const auto dropped = [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    if (s.dropout == 0) return 1.0;
    const auto element = static_cast<std::uint64_t>((h * s.seq + i) * s.seq + j);
    const std::uint32_t word = s.key.word(s.key.sample + static_cast<std::uint64_t>(b), element);
    return to_uniform(word) >= s.dropout ? 1.0 / (1.0 - static_cast<double>(s.dropout)) : 0.0;
  };
  const double scale = static_cast<double>(s.scale);
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t i = 0; i < s.seq; ++i) {
        const std::int64_t g = h / (s.heads / s.kv_heads);
        const std::size_t qi = at(b, i, s.heads, h);
        Values p(static_cast<std::size_t>(i + 1)), dp(p.size());
        const auto first = static_cast<std::size_t>(
            s.window == 0 ? 0 : std::max(std::int64_t{0}, i - s.window + 1));
        double max = -1e300, sum = 0;
        for (std::size_t j = first; j < p.size(); ++j) {
          const std::size_t kj = at(b, static_cast<std::int64_t>(j), s.kv_heads, g);
          for (std::size_t d = 0; d < dims; ++d) p[j] += q[qi + d] * k[kj + d] * scale;
          max = std::max(max, p[j]);
        }
        for (std::size_t j = first; j < p.size(); ++j) sum += p[j] = std::exp(p[j] - max);
        r.lse[static_cast<std::size_t>((b * s.heads + h) * s.seq + i)] = max + std::log(sum);
        double delta = 0;
        for (std::size_t j = first; j < p.size(); ++j) {
          p[j] /= sum;
          const std::size_t kj = at(b, static_cast<std::int64_t>(j), s.kv_heads, g);
          const double keep = dropped(b, h, i, static_cast<std::int64_t>(j));
          for (std::size_t d = 0; d < dims; ++d) {
            r.out[qi + d] += p[j] * keep * v[kj + d];
            r.dv[kj + d] += p[j] * keep * dout[qi + d];
            dp[j] += keep * dout[qi + d] * v[kj + d];
          }
          delta += p[j] * dp[j];
        }
        for (std::size_t j = first; j < p.size(); ++j) {
          const std::size_t kj = at(b, static_cast<std::int64_t>(j), s.kv_heads, g);
          const double ds = p[j] * (dp[j] - delta) * scale;
          for (std::size_t d = 0; d < dims; ++d) {
            r.dq[qi + d] += ds * k[kj + d];
            r.dk[kj + d] += ds * q[qi + d];
          }
        }
      }
  return r;
}

AttentionShape shape_of(std::int64_t batch, std::int64_t seq, std::int64_t heads,
                        std::int64_t kv_heads, std::int64_t head_dim, float dropout = 0) {
  AttentionShape s;
  s.batch = batch;
  s.seq = seq;
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_dim = head_dim;
  s.scale = 1 / std::sqrt(static_cast<float>(head_dim));
  s.dropout = dropout;
  s.key = RandomKey{5, 3, 17, 1000};
  return s;
}

/// Queries, keys and values as slices of one fused matrix, as GPT-2 has them.
struct Tensors {
  View q, k, v, dout, fused, out, lse, dfused;
  std::int64_t width = 0, kv_width = 0;
};

Values columns_of(const Values& matrix, std::int64_t stride, std::int64_t begin,
                  std::int64_t count) {
  Values out;
  for (std::size_t row = 0; row < matrix.size(); row += static_cast<std::size_t>(stride))
    for (std::int64_t c = begin; c < begin + count; ++c)
      out.push_back(matrix[row + static_cast<std::size_t>(c)]);
  return out;
}

Tensors run(Kit& kit, DType dtype, const AttentionShape& s) {
  Tensors t;
  t.width = s.heads * s.head_dim;
  t.kv_width = s.kv_heads * s.head_dim;
  const std::int64_t rows = s.batch * s.seq, fused = t.width + 2 * t.kv_width;
  t.fused = kit.random(dtype, {rows, fused}, "qkv");
  t.dfused = kit.output(dtype, {rows, fused});
  t.dout = kit.random(dtype, {rows, t.width}, "dout");
  t.out = kit.output(dtype, {rows, t.width});
  t.lse = kit.output(DType::f32, {s.batch, s.heads, s.seq});
  const View scratch = kit.output(DType::f32, {attention_backward_scratch(s)});
  const ConstColumns q(t.fused, 0, t.width), k(t.fused, t.width, t.kv_width),
      v(t.fused, t.width + t.kv_width, t.kv_width);
  attention_forward(kit.stream(), s, q, k, v, Columns(t.out), t.lse);
  attention_backward(kit.stream(), s, ConstColumns(t.dout), q, k, v, ConstColumns(t.out), t.lse,
                     Columns(t.dfused, 0, t.width), Columns(t.dfused, t.width, t.kv_width),
                     Columns(t.dfused, t.width + t.kv_width, t.kv_width), scratch);
  return t;
}

void check(DType dtype, const AttentionShape& s) {
  Kit kit;
  const Tensors t = run(kit, dtype, s);
  const Values fused = kit.read(t.fused), dfused = kit.read(t.dfused);
  const std::int64_t stride = t.width + 2 * t.kv_width;
  const Reference want = reference(
      s, columns_of(fused, stride, 0, t.width), columns_of(fused, stride, t.width, t.kv_width),
      columns_of(fused, stride, t.width + t.kv_width, t.kv_width), kit.read(t.dout));
  const std::string what = concat("T ", s.seq, " heads ", s.heads, "/", s.kv_heads, " dim ",
                                  s.head_dim, " window ", s.window, " dropout ", s.dropout, " ");
  // In 16 bits `out`, rounded, enters the gradient of the scores.
  const double floor = dtype == DType::f32 ? 1e-5 : 4 * precision_of(dtype);
  expect_close(kit.read(t.lse), want.lse, DType::f32, 8, 2e-6, what + "lse");
  expect_close(kit.read(t.out), want.out, dtype, dtype == DType::f32 ? 32 : 1.1, 2e-6,
               what + "out");
  expect_close(columns_of(dfused, stride, 0, t.width), want.dq, dtype, 1.5, floor, what + "dq");
  expect_close(columns_of(dfused, stride, t.width, t.kv_width), want.dk, dtype, 1.5, floor,
               what + "dk");
  expect_close(columns_of(dfused, stride, t.width + t.kv_width, t.kv_width), want.dv, dtype, 1.5,
               floor, what + "dv");
}

TEST(Attention, TheReferenceHasTheSlopesOfItsOutput) {
  for (const float dropout : {0.0f, 0.3f}) {
    AttentionShape s = shape_of(2, 5, 4, 2, 3, dropout);
    s.window = dropout > 0 ? 3 : 0;
    Kit kit;
    const Values q = kit.read(kit.random(DType::f32, {10, 12}, "q"));
    const Values k = kit.read(kit.random(DType::f32, {10, 6}, "k"));
    const Values v = kit.read(kit.random(DType::f32, {10, 6}, "v"));
    const Values d = kit.read(kit.random(DType::f32, {10, 12}, "d"));
    const Reference r = reference(s, q, k, v, d);
    const auto expect = [](const Values& got, const Values& want) {
      expect_close(got, want, DType::f32, 1, 1e-8, "reference");
    };
    expect(r.dq, numeric_gradient(
                     q, [&](const Values& x) { return dot(reference(s, x, k, v, d).out, d); }));
    expect(r.dk, numeric_gradient(
                     k, [&](const Values& x) { return dot(reference(s, q, x, v, d).out, d); }));
    expect(r.dv, numeric_gradient(
                     v, [&](const Values& x) { return dot(reference(s, q, k, x, d).out, d); }));
  }
}

TEST(Attention, MatchesTheReferenceAtEveryLength) {
  for_each_target([] {
    for (const std::int64_t seq : {1, 2, 3, 15, 17, 63, 64, 65, 127, 200})
      check(DType::f32, shape_of(1, seq, 2, 1, 16));
  });
}

TEST(Attention, MatchesTheReferenceForEveryHeadSize) {
  for_each_target([] {
    for (const std::int64_t dim : {1, 3, 8, 16, 20, 24, 48, 64, 80, 128})
      check(DType::f32, shape_of(2, 67, 3, 3, dim));
  });
}

TEST(Attention, MatchesTheReferenceWithGroupedHeads) {
  for (const std::int64_t kv_heads : {1, 2, 3, 6, 12})
    check(DType::f32, shape_of(1, 70, 12, kv_heads, 8));
  for (const std::int64_t heads : {32, 36}) check(DType::f32, shape_of(2, 9, heads, 4, 4));
}

TEST(Attention, MatchesTheReferenceIn16Bits) {
  for_each_target([] {
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const std::int64_t seq : {1, 33, 130}) check(dtype, shape_of(2, seq, 4, 2, 24));
  });
}

TEST(Attention, MatchesTheReferenceWithDropout) {
  for_each_target([] {
    for (const std::int64_t seq : {1, 7, 65, 130})
      check(DType::f32, shape_of(2, seq, 2, 1, 12, 0.2f));
  });
}

AttentionShape windowed(AttentionShape s, std::int64_t window) {
  s.window = window;
  return s;
}

TEST(Attention, MatchesTheReferenceWithEveryWindow) {
  for_each_target([] {
    for (const std::int64_t seq : {1, 5, 64, 65, 200})
      for (const std::int64_t window : {1, 2, 8, 17, 63, 64, 65, 100, 128, 200, 5000})
        check(DType::f32, windowed(shape_of(1, seq, 2, 1, 12), window));
  });
  for (const std::int64_t window : {3, 70}) {
    check(DType::bf16, windowed(shape_of(2, 150, 4, 2, 24), window));
    check(DType::f32, windowed(shape_of(2, 150, 4, 2, 8, 0.2f), window));
  }
}

TEST(Attention, AWindowOfTheWholeSequenceChangesNoBit) {
  const auto bits = [](std::int64_t window) {
    Kit kit;
    const Tensors t = run(kit, DType::f32, windowed(shape_of(1, 200, 2, 1, 16), window));
    return kit.bits(t.out) + kit.bits(t.lse) + kit.bits(t.dfused);
  };
  EXPECT_EQ(bits(200), bits(0));
  EXPECT_NE(bits(199), bits(0));
}

/// What lies in skipped blocks is not even read: a NaN there reaches nobody.
TEST(Attention, BlocksBeforeTheWindowAreSkipped) {
  for_each_target([] {
    Kit kit;
    const AttentionShape s = windowed(shape_of(1, 300, 1, 1, 4), 20);
    const auto with_nan = [&](const char* name) {
      const View x = kit.random(DType::f32, {300, 4}, name);
      x.as<float>()[2] = std::nanf("");  // of the first key
      return x;
    };
    const View q = kit.random(DType::f32, {300, 4}, "q"),
               dout = kit.random(DType::f32, {300, 4}, "d");
    const View k = with_nan("k"), v = with_nan("v");
    const View out = kit.output(DType::f32, {300, 4}), lse = kit.output(DType::f32, {300});
    const View dq = kit.output(DType::f32, {300, 4}), dk = kit.output(DType::f32, {300, 4}),
               dv = kit.output(DType::f32, {300, 4});
    const View scratch = kit.output(DType::f32, {attention_backward_scratch(s)});
    attention_forward(kit.stream(), s, ConstColumns(q), ConstColumns(k), ConstColumns(v),
                      Columns(out), lse);
    attention_backward(kit.stream(), s, ConstColumns(dout), ConstColumns(q), ConstColumns(k),
                       ConstColumns(v), ConstColumns(out), lse, Columns(dq), Columns(dk),
                       Columns(dv), scratch);
    const Values got = kit.read(out), slopes = kit.read(dq);
    EXPECT_TRUE(std::isnan(got[2]));
    for (std::size_t i = 128 * 4; i < got.size(); ++i)  // blocks of 64: from the third on
      EXPECT_TRUE(std::isfinite(got[i]) && std::isfinite(slopes[i])) << i;
  });
}

TEST(Attention, BitsDependNeitherOnThreadsNorOnAlignment) {
  for (const DType dtype : float_dtypes())
    expect_same_bits(
        [&](Kit& kit) {
          const Tensors t = run(kit, dtype, shape_of(2, 131, 6, 2, 20, 0.1f));
          const Tensors w = run(kit, dtype, windowed(shape_of(2, 131, 6, 2, 20), 50));
          return kit.bits(t.out) + kit.bits(t.lse) + kit.bits(t.dfused) + kit.bits(w.out) +
                 kit.bits(w.dfused);
        },
        "attention");
}

TEST(Attention, DropoutDoesNotDependOnHowTheBatchIsSplit) {
  Kit kit;
  const AttentionShape whole = shape_of(4, 21, 2, 2, 16, 0.3f);
  const Tensors all = run(kit, DType::f32, whole);
  const std::int64_t half_rows = 2 * 21;
  const View out = kit.output(DType::f32, {4 * 21, all.width});
  const View lse = kit.output(DType::f32, {4, 2, 21});
  for (const std::int64_t half : {0, 1}) {
    AttentionShape s = whole;
    s.batch = 2;
    s.key.sample += static_cast<std::uint64_t>(2 * half);
    const std::int64_t stride = 3 * all.width;
    const View fused =
        all.fused.flat(half * half_rows * stride, half_rows * stride).reshaped({half_rows, stride});
    attention_forward(kit.stream(), s, ConstColumns(fused, 0, all.width),
                      ConstColumns(fused, all.width, all.width),
                      ConstColumns(fused, 2 * all.width, all.width),
                      Columns(out.flat(half * half_rows * all.width, half_rows * all.width)
                                  .reshaped({half_rows, all.width})),
                      lse.flat(half * 84, 84));
  }
  EXPECT_EQ(kit.bits(out), kit.bits(all.out));
}

/// Half of the heads, told which they are, draw and compute what they do among all.
TEST(Attention, DropoutDoesNotDependOnHowTheHeadsAreSplit) {
  Kit kit;
  const AttentionShape whole = shape_of(2, 70, 4, 2, 16, 0.3f);
  const Tensors all = run(kit, DType::f32, whole);
  const std::int64_t width = all.width / 2, kv_width = all.kv_width / 2;
  const View out = kit.output(DType::f32, all.out.shape());
  const View dfused = kit.output(DType::f32, all.dfused.shape());
  for (const std::int64_t half : {0, 1}) {
    AttentionShape s = whole;
    s.heads = 2;
    s.kv_heads = 1;
    s.head_offset = 2 * half;
    const std::int64_t q_at = half * width, k_at = all.width + half * kv_width;
    const std::int64_t v_at = k_at + all.kv_width;
    const View lse = kit.output(DType::f32, {2, 2, 70});
    const View scratch = kit.output(DType::f32, {attention_backward_scratch(s)});
    const ConstColumns q(all.fused, q_at, width), k(all.fused, k_at, kv_width),
        v(all.fused, v_at, kv_width);
    attention_forward(kit.stream(), s, q, k, v, Columns(out, q_at, width), lse);
    attention_backward(kit.stream(), s, ConstColumns(all.dout, q_at, width), q, k, v,
                       ConstColumns(out, q_at, width), lse, Columns(dfused, q_at, width),
                       Columns(dfused, k_at, kv_width), Columns(dfused, v_at, kv_width), scratch);
  }
  EXPECT_EQ(kit.bits(out), kit.bits(all.out));
  EXPECT_EQ(kit.bits(dfused), kit.bits(all.dfused));
}

TEST(Attention, LargeScoresStayFiniteAndNanSpreadsToLaterQueriesOnly) {
  for_each_target([] {
    Kit kit;
    const AttentionShape s = shape_of(1, 70, 1, 1, 4);
    const View q = kit.random(DType::f32, {70, 4}, "q", 300);
    const View k = kit.random(DType::f32, {70, 4}, "k", 300);
    const View v = kit.filled(DType::f32, {70, 4},
                              [](std::int64_t i) { return i == 66 * 4 ? std::nan("") : 1.0; });
    const View out = kit.output(DType::f32, {70, 4});
    const View lse = kit.output(DType::f32, {70});
    attention_forward(kit.stream(), s, ConstColumns(q), ConstColumns(k), ConstColumns(v),
                      Columns(out), lse);
    const Values got = kit.read(out);
    for (std::size_t t = 0; t < 64; ++t)
      for (std::size_t d = 0; d < 4; ++d) EXPECT_NEAR(got[t * 4 + d], 1, 1e-5);
    for (std::size_t t = 66; t < 70; ++t) EXPECT_TRUE(std::isnan(got[t * 4]));
  });
}

TEST(Attention, NamesWhatDoesNotFit) {
  Kit kit;
  const View x = kit.random(DType::f32, {6, 8}, "x");
  const View lse = kit.output(DType::f32, {12});
  const auto message = [&](const AttentionShape& s, const ConstColumns& k) -> std::string {
    try {
      attention_forward(kit.stream(), s, ConstColumns(x), k, ConstColumns(x), Columns(x), lse);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message(shape_of(2, 3, 3, 2, 4), ConstColumns(x)).find("multiple of kv_heads"),
            std::string::npos);
  EXPECT_NE(message(shape_of(2, 3, 2, 2, 4), ConstColumns(x, 4, 8)).find("expected k to be 8"),
            std::string::npos);
  EXPECT_NE(message(windowed(shape_of(2, 3, 2, 2, 4), -1), ConstColumns(x)).find("window"),
            std::string::npos);
}

}  // namespace
}  // namespace zero3d::kernels
