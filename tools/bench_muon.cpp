// Times Muon's orthogonalisation in turn with its matrix products alone: what is left over is spent
// on norms, scalings and polynomials.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "bench.h"
#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/device/device.h"
#include "zero3d/kernels/gemm.h"
#include "zero3d/optim/muon.h"

namespace zero3d::tools {
namespace {

class Subject {
 public:
  Subject(const MuonBenchOptions& options, int threads)
      : gram_(options.method == "gram"),
        rule_({.method = gram_ ? NewtonSchulz::gram : NewtonSchulz::standard}),
        device_(make_cpu_device(device_options(threads))),
        stream_(device_->create_stream("muon")),
        rows_(options.rows),
        columns_(options.columns),
        small_(std::min(rows_, columns_)),
        matrix_(device_->memory(), kNoStream, DType::f32, {rows_, columns_}, Category::other),
        out_(device_->memory(), kNoStream, DType::f32, {rows_, columns_}, Category::other),
        square_(device_->memory(), kNoStream, DType::f32, {small_, small_}, Category::other),
        square_out_(device_->memory(), kNoStream, DType::f32, {small_, small_}, Category::other),
        scratch_(device_->memory(), kNoStream, DType::f32, {rule_.scratch_numel({rows_, columns_})},
                 Category::other) {
    fill(matrix_.view());
    fill(square_.view());
  }

  double time_rule() {
    return time([&] { rule_.orthogonalise(*stream_, matrix_.view(), scratch_.view()); });
  }

  /// The products of either form, by their counts.
  double time_products() {
    const bool gram_form =
        rule_.scratch_numel({rows_, columns_}) == rows_ * columns_ + 4 * small_ * small_;
    return time([&] {
      for (int k = 0; k < (gram_form ? 2 : 5); ++k) form_gram();
      for (int k = 0; k < (gram_form ? 14 : 5); ++k)
        multiply(square_.view(), square_.view(), square_out_.view());
      for (int k = 0; k < (gram_form ? 2 : 5); ++k) apply_factor();
    });
  }

 private:
  static CpuDeviceOptions device_options(int threads) {
    CpuDeviceOptions options;
    options.threads = threads;
    return options;
  }

  void fill(const View& view) {
    stream_->launch("fill", {writes(view)}, [view] {
      for (std::int64_t i = 0; i < view.numel(); ++i)
        view.as<float>()[i] = static_cast<float>((i * 7919) % 1013 - 506) * 1e-3f;
    });
  }

  void multiply(const ConstView& a, const ConstView& b, const View& c,
                kernels::Transpose trans_a = kernels::Transpose::no,
                kernels::Transpose trans_b = kernels::Transpose::no) {
    kernels::Gemm gemm;
    gemm.a = a;
    gemm.trans_a = trans_a;
    gemm.b = b;
    gemm.trans_b = trans_b;
    gemm.c = c;
    kernels::gemm(*stream_, gemm);
  }

  void form_gram() {
    using kernels::Transpose;
    const bool wide = rows_ <= columns_;
    multiply(matrix_.view(), matrix_.view(), square_out_.view(),
             wide ? Transpose::no : Transpose::yes, wide ? Transpose::yes : Transpose::no);
  }

  void apply_factor() {
    if (rows_ <= columns_)
      multiply(square_.view(), matrix_.view(), out_.view());
    else
      multiply(matrix_.view(), square_.view(), out_.view());
  }

  template <typename Work>
  double time(const Work& work) {
    const std::int64_t begin = now_ns();
    work();
    stream_->synchronize();
    return static_cast<double>(now_ns() - begin) * 1e-9;
  }

  bool gram_;
  Muon rule_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::int64_t rows_, columns_, small_;
  Tensor matrix_, out_, square_, square_out_, scratch_;
};

void run_one(const MuonBenchOptions& options, int threads) {
  Subject subject(options, threads);
  subject.time_rule();
  subject.time_products();
  std::vector<double> rule, products;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    rule.push_back(subject.time_rule());
    products.push_back(subject.time_products());
  }
  std::printf("muon %s %lld x %lld threads %d: %.1f ms; its products alone %.1f ms; ratio %.3f\n",
              options.method.c_str(), static_cast<long long>(options.rows),
              static_cast<long long>(options.columns), threads, median(rule) * 1e3,
              median(products) * 1e3, median(rule) / median(products));
}

}  // namespace

void bench_muon(const MuonBenchOptions& options) {
  for (const int threads : options.threads) run_one(options, threads);
}

}  // namespace zero3d::tools
