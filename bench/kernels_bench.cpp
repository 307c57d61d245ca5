// Times the kernels between the matrix products at the sizes of GPT-2 124M and prints, for each,
// GB/s against memcpy or GFLOP/s against the multiply-add peak, both measured in the same run, and
// what a training step of four samples of 64 tokens spends on it.
//   kernels_bench [threads] [fp32|bf16|fp16] [AVX3|AVX2|SCALAR]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/kernels/activation.h"
#include "zero3d/kernels/attention.h"
#include "zero3d/kernels/embedding.h"
#include "zero3d/kernels/loss.h"
#include "zero3d/kernels/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero3d/bench/kernels_bench.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace zero3d::bench::HWY_NAMESPACE {

/// Independent multiply-adds; returns how many floating-point operations that was.
double multiply_adds(std::int64_t rounds, float* sink) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  const auto a = hn::Set(d, 0.999f), b = hn::Set(d, 1e-3f);
  auto s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a, s8 = a, s9 = a;
  for (std::int64_t i = 0; i < rounds; ++i) {
    s0 = hn::MulAdd(s0, a, b), s1 = hn::MulAdd(s1, a, b), s2 = hn::MulAdd(s2, a, b);
    s3 = hn::MulAdd(s3, a, b), s4 = hn::MulAdd(s4, a, b), s5 = hn::MulAdd(s5, a, b);
    s6 = hn::MulAdd(s6, a, b), s7 = hn::MulAdd(s7, a, b), s8 = hn::MulAdd(s8, a, b);
    s9 = hn::MulAdd(s9, a, b);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)),
                           hn::Add(hn::Add(s4, s5), hn::Add(hn::Add(s6, s7), hn::Add(s8, s9))));
  *sink = hn::GetLane(hn::SumOfLanes(d, sum));
  return 20.0 * static_cast<double>(rounds) * static_cast<double>(hn::Lanes(d));
}

}  // namespace zero3d::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zero3d::bench {
namespace {

HWY_EXPORT(multiply_adds);

using namespace kernels;

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Seconds of the fastest of several runs. `clock`: the processor's for one thread, so that a busy
/// machine matters less, else the wall's.
double fastest(clockid_t clock, const std::function<void()>& body) {
  double best = 1e9;
  const double start = seconds_of(CLOCK_MONOTONIC);
  for (int i = 0; i < 1000 && (i < 5 || seconds_of(CLOCK_MONOTONIC) - start < 0.3); ++i) {
    const double begin = seconds_of(clock);
    body();
    best = std::min(best, seconds_of(clock) - begin);
  }
  return best;
}

class Bench {
 public:
  Bench(int threads, DType dtype)
      : dtype_(dtype), clock_(threads > 1 ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID) {
    CpuDeviceOptions options;
    options.threads = threads;
    options.inline_streams = true;  // the kernels' time, not the queue's
    device_ = make_cpu_device(options);
    stream_ = device_->create_stream("compute");
  }

  View make(const Shape& shape, DType dtype, int low = 0, int range = 0) {
    tensors_.emplace_back(device_->memory(), kNoStream, dtype, shape, Category::other);
    const View view = tensors_.back();
    for (std::int64_t i = 0; i < view.numel(); ++i) {
      const std::uint32_t word = RandomKey{}.word(0, static_cast<std::uint64_t>(i));
      const float value = 4 * to_uniform(word) - 2;
      if (dtype == DType::i32)
        view.as<std::int32_t>()[i] = low + static_cast<int>(word % static_cast<unsigned>(range));
      else if (dtype == DType::f32)
        view.as<float>()[i] = value;
      else if (dtype == DType::bf16)
        view.as<bf16>()[i] = to_bf16(value);
      else
        view.as<f16>()[i] = to_f16(value);
    }
    return view;
  }
  View make(const Shape& shape) { return make(shape, dtype_); }
  Stream& stream() { return *stream_; }

  /// `bytes` is what must cross memory once; `calls` how often a step makes the call.
  void bandwidth(const char* name, double bytes, int calls, const std::function<void()>& enqueue) {
    const double seconds = time(enqueue);
    step_ms_ += seconds * 1e3 * calls;
    std::printf("%-30s %8.1f GB/s  %4.0f %% of memcpy  %8.3f ms x %2d\n", name,
                bytes / seconds / 1e9, bytes / seconds / copy_rate_ * 100, seconds * 1e3, calls);
  }
  void arithmetic(const char* name, double flops, int calls, const std::function<void()>& enqueue) {
    const double seconds = time(enqueue);
    step_ms_ += seconds * 1e3 * calls;
    std::printf("%-30s %8.1f GFLOP/s %3.0f %% of peak    %8.3f ms x %2d\n", name,
                flops / seconds / 1e9, flops / seconds / peak_ * 100, seconds * 1e3, calls);
  }

  void measure_machine(std::size_t bytes) {
    const View from = make({static_cast<std::int64_t>(bytes / 4)}, DType::f32);
    const View to = make({static_cast<std::int64_t>(bytes / 4)}, DType::f32);
    const double seconds = fastest(clock_, [&] { std::memcpy(to.data(), from.data(), bytes); });
    copy_rate_ = 2 * static_cast<double>(bytes) / seconds;
    float sink = 0;
    double flops = 0;
    const double peak_seconds =
        fastest(clock_, [&] { flops = HWY_DYNAMIC_DISPATCH(multiply_adds)(1000000, &sink); });
    peak_ = flops / peak_seconds;
    std::printf("one thread: memcpy of %.1f MB %.1f GB/s (read and written), peak %.1f GFLOP/s\n",
                static_cast<double>(bytes) / 1e6, copy_rate_ / 1e9, peak_ / 1e9);
  }
  double step_ms() const { return step_ms_; }

  double time(const std::function<void()>& enqueue) {
    return fastest(clock_, [&] {
      enqueue();
      stream_->synchronize();
    });
  }

 private:
  DType dtype_;
  clockid_t clock_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Tensor> tensors_;
  double copy_rate_ = 1;
  double peak_ = 1;
  double step_ms_ = 0;
};

/// What a sliding window saves: blocks of keys before it are skipped, so that the ratio follows the
/// share of the blocks that are left.
void compare_windows(Bench& b) {
  AttentionShape shape;
  shape.batch = 1;
  shape.seq = 4096;
  shape.heads = shape.kv_heads = 2;
  shape.head_dim = 64;
  shape.scale = 0.125f;
  const Shape rows{shape.seq, shape.heads * shape.head_dim};
  const View q = b.make(rows), k = b.make(rows), v = b.make(rows), out = b.make(rows);
  const View dq = b.make(rows), dk = b.make(rows), dv = b.make(rows), dout = b.make(rows);
  const View lse = b.make({1, shape.heads, shape.seq}, DType::f32);
  const View scratch = b.make({attention_backward_scratch(shape)}, DType::f32);
  double whole[2] = {};
  for (const std::int64_t window : {0, 2048, 1024, 256}) {
    shape.window = window;
    const double forward = b.time([&] {
      attention_forward(b.stream(), shape, Columns(q), Columns(k), Columns(v), Columns(out), lse);
    });
    const double backward = b.time([&] {
      attention_backward(b.stream(), shape, Columns(dout), Columns(q), Columns(k), Columns(v),
                         Columns(out), lse, Columns(dq), Columns(dk), Columns(dv), scratch);
    });
    if (window == 0) whole[0] = forward, whole[1] = backward;
    std::printf(
        "attention of %lld tokens, window %4lld: forward %.2f, backward %.2f of the whole's time\n",
        static_cast<long long>(shape.seq), static_cast<long long>(window), forward / whole[0],
        backward / whole[1]);
  }
}

void run(int threads, DType dtype) {
  constexpr std::int64_t kBatch = 4, kSeq = 64, kWidth = 768, kVocabulary = 50257, kLayers = 12;
  constexpr std::int64_t kRows = kBatch * kSeq;
  constexpr int kNorms = 2 * kLayers + 1;
  Bench b(threads, dtype);
  Stream& s = b.stream();
  b.measure_machine(kRows * kWidth * 4);
  const double unit = static_cast<double>(kRows * kWidth) * static_cast<double>(size_of(dtype));

  const View x = b.make({kRows, kWidth}), y = b.make({kRows, kWidth}), z = b.make({kRows, kWidth});
  const View weight = b.make({kWidth}), bias = b.make({kWidth});
  const View mean = b.make({kRows}, DType::f32), rstd = b.make({kRows}, DType::f32);
  b.bandwidth("layer_norm_forward", 2 * unit, kNorms,
              [&] { layer_norm_forward(s, x, weight, bias, 1e-5f, y, mean, rstd); });
  b.bandwidth("layer_norm_backward_input", 4 * unit, kNorms,
              [&] { layer_norm_backward_input(s, y, x, weight, mean, rstd, z, z); });
  b.bandwidth("layer_norm_backward_weight", 2 * unit, kNorms,
              [&] { layer_norm_backward_weight(s, y, x, mean, rstd, weight, bias); });
  b.bandwidth("rms_norm_forward", 2 * unit, 0,
              [&] { rms_norm_forward(s, x, weight, 1e-5f, y, rstd); });

  const View wide = b.make({kRows, 4 * kWidth}), wide_out = b.make({kRows, 4 * kWidth});
  b.bandwidth("gelu_forward", 8 * unit, kLayers, [&] { gelu_forward(s, wide, wide_out); });
  b.bandwidth("gelu_backward", 12 * unit, kLayers,
              [&] { gelu_backward(s, wide_out, wide, wide_out); });
  b.bandwidth("swiglu_forward", 6 * unit, 0, [&] {
    swiglu_forward(s, ConstColumns(wide, 0, 2 * kWidth), ConstColumns(wide, 2 * kWidth, 2 * kWidth),
                   wide_out.flat(0, kRows * 2 * kWidth).reshaped({kRows, 2 * kWidth}));
  });
  b.bandwidth("geglu_forward", 6 * unit, 0, [&] {
    geglu_forward(s, ConstColumns(wide, 0, 2 * kWidth), ConstColumns(wide, 2 * kWidth, 2 * kWidth),
                  wide_out.flat(0, kRows * 2 * kWidth).reshaped({kRows, 2 * kWidth}));
  });
  b.bandwidth("dropout with residual", 3 * unit, 4 * kLayers + 2,
              [&] { dropout(s, x, 0.1f, RandomKey{}, kSeq, z, y); });

  const View tokens = b.make({kBatch, kSeq}, DType::i32, 0, kVocabulary);
  const View table = b.make({kVocabulary, kWidth});
  b.bandwidth("embedding_forward", 2 * unit, 1,
              [&] { embedding_forward(s, tokens, table, {}, y); });
  b.bandwidth("embedding_backward", 3 * unit, 1,
              [&] { embedding_backward(s, tokens, y, table, true); });
  b.bandwidth("position_backward", 1.25 * unit, 1, [&] {
    position_backward(s, y, kSeq, x.flat(0, kSeq * kWidth).reshaped({kSeq, kWidth}), false);
  });

  const View logits = b.make({kRows, kVocabulary});
  const View lse = b.make({kRows}, DType::f32), loss = b.make({2}, DType::f32);
  const View seed = b.make({1}, DType::f32);
  const double logit_bytes =
      static_cast<double>(kRows * kVocabulary) * static_cast<double>(size_of(dtype));
  b.bandwidth("cross_entropy_forward", logit_bytes, 1,
              [&] { cross_entropy_forward(s, logits, tokens, lse, loss); });
  b.bandwidth("cross_entropy_backward", 2 * logit_bytes, 1,
              [&] { cross_entropy_backward(s, logits, tokens, lse, loss, seed); });

  for (const std::int64_t seq : {kSeq, std::int64_t{1024}})
    for (const float p : {0.0f, 0.1f}) {
      AttentionShape shape;
      shape.batch = seq == kSeq ? kBatch : 1;
      shape.seq = seq;
      shape.heads = shape.kv_heads = 12;
      shape.head_dim = 64;
      shape.scale = 0.125f;
      shape.dropout = p;
      const std::int64_t rows = shape.batch * seq;
      const View qkv = b.make({rows, 3 * kWidth}), dqkv = b.make({rows, 3 * kWidth});
      const View out = b.make({rows, kWidth}), dout = b.make({rows, kWidth});
      const View softmax = b.make({shape.batch, 12, seq}, DType::f32);
      const View scratch = b.make({attention_backward_scratch(shape)}, DType::f32);
      const auto part = [&](const View& view, int i) { return Columns(view, i * kWidth, kWidth); };
      const double product = static_cast<double>(shape.batch * 12 * 64) *
                             static_cast<double>(seq * (seq + 1));  // of the lower triangle
      const int calls = seq == kSeq && p == 0.0f ? kLayers : 0;
      std::printf("attention of %lld x %lld tokens, dropout %.1f\n",
                  static_cast<long long>(shape.batch), static_cast<long long>(seq),
                  static_cast<double>(p));
      b.arithmetic("attention_forward", 2 * product, calls, [&] {
        attention_forward(s, shape, part(qkv, 0), part(qkv, 1), part(qkv, 2), Columns(out),
                          softmax);
      });
      b.arithmetic("attention_backward", 5 * product, calls, [&] {
        attention_backward(s, shape, Columns(dout), part(qkv, 0), part(qkv, 1), part(qkv, 2),
                           Columns(out), softmax, part(dqkv, 0), part(dqkv, 1), part(dqkv, 2),
                           scratch);
      });
    }
  std::printf("a step of GPT-2 124M over %lld tokens: %.1f ms outside the matrix products\n",
              static_cast<long long>(kRows), b.step_ms());
  compare_windows(b);
}

}  // namespace
}  // namespace zero3d::bench

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::string dtype = argc > 2 ? argv[2] : "fp32";
  for (const std::int64_t target : {HWY_AVX3, HWY_AVX2, HWY_SCALAR})
    if (argc > 3 && std::string(argv[3]) == hwy::TargetName(target)) {
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    }
  zero3d::bench::run(threads, dtype == "bf16"   ? zero3d::DType::bf16
                              : dtype == "fp16" ? zero3d::DType::f16
                                                : zero3d::DType::f32);
}
#endif  // HWY_ONCE
