// The rate of kernels::gemm on the products of one training step of GPT-2 124M, beside what oneDNN
// alone reaches with a whole private copy of the product on each core, and beside the machine's
// multiply-add peak. Both are timed in turns, and the best run of each counts.
//   gemm_bench [--tokens N] [--threads N]... [--dtype fp32|bf16|fp16]... [--seconds S]
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "fma_peak.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/device/device.h"
#include "zero3d/kernels/gemm.h"

namespace zero3d::bench {
namespace {

using kernels::Transpose;

struct Product {
  const char* name;
  std::int64_t m, n, k;
  bool trans_a, trans_b;

  double flop() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
  Shape a() const { return trans_a ? Shape{k, m} : Shape{m, k}; }
  Shape b() const { return trans_b ? Shape{n, k} : Shape{k, n}; }
};

/// Weights are stored [in, out], the head's [vocabulary, width], as in a GPT-2 model folder.
std::vector<Product> gpt2_products(std::int64_t tokens) {
  constexpr std::int64_t kWidth = 768, kVocabulary = 50257;
  struct Linear {
    const char* names[3];
    std::int64_t in, out;
  };
  const Linear linears[] = {
      {{"attention qkv  forward", "attention qkv  dgrad", "attention qkv  wgrad"},
       kWidth,
       3 * kWidth},
      {{"attention out  forward", "attention out  dgrad", "attention out  wgrad"}, kWidth, kWidth},
      {{"mlp up         forward", "mlp up         dgrad", "mlp up         wgrad"},
       kWidth,
       4 * kWidth},
      {{"mlp down       forward", "mlp down       dgrad", "mlp down       wgrad"},
       4 * kWidth,
       kWidth}};
  std::vector<Product> products;
  for (const Linear& l : linears) {
    products.push_back({l.names[0], tokens, l.out, l.in, false, false});
    products.push_back({l.names[1], tokens, l.in, l.out, false, true});
    products.push_back({l.names[2], l.in, l.out, tokens, true, false});
  }
  products.push_back({"head           forward", tokens, kVocabulary, kWidth, false, true});
  products.push_back({"head           dgrad", tokens, kWidth, kVocabulary, false, false});
  products.push_back({"head           wgrad", kVocabulary, kWidth, tokens, true, false});
  return products;
}

void fill(const View& view) {
  std::uint32_t state = 1;
  for (std::int64_t i = 0; i < view.numel(); ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(state >> 8) * (1.0f / 16777216.0f) - 0.5f;
    if (view.dtype() == DType::f32) view.as<float>()[i] = value;
    if (view.dtype() == DType::bf16) view.as<bf16>()[i] = to_bf16(value);
    if (view.dtype() == DType::f16) view.as<f16>()[i] = to_f16(value);
  }
}

/// The best of the runs of `body` within `seconds`, three at least, in nanoseconds.
template <typename Body>
double best_time(double seconds, const Body& body) {
  body();
  double best = 1e300;
  const auto end = now_ns() + static_cast<std::int64_t>(seconds * 1e9);
  for (int run = 0; run < 3 || now_ns() < end; ++run) {
    const auto begin = now_ns();
    body();
    best = std::min(best, static_cast<double>(now_ns() - begin));
  }
  return best;
}

/// kernels::gemm on a device of its own.
class Ours {
 public:
  Ours(const Product& product, DType dtype, int threads) {
    CpuDeviceOptions options;
    options.threads = threads;
    options.check_hazards = false;
    device_ = make_cpu_device(options);
    stream_ = device_->create_stream("compute");
    a_ = Tensor(device_->memory(), kNoStream, dtype, product.a(), Category::other);
    b_ = Tensor(device_->memory(), kNoStream, dtype, product.b(), Category::other);
    c_ = Tensor(device_->memory(), kNoStream, dtype, {product.m, product.n}, Category::other);
    fill(a_.view());
    fill(b_.view());
    args_.a = a_;
    args_.b = b_;
    args_.c = c_;
    args_.trans_a = product.trans_a ? Transpose::yes : Transpose::no;
    args_.trans_b = product.trans_b ? Transpose::yes : Transpose::no;
  }
  double nanoseconds(double seconds) {
    return best_time(seconds, [&] {
      kernels::gemm(*stream_, args_);
      stream_->synchronize();
    });
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Tensor a_, b_, c_;
  kernels::Gemm args_;
};

/// oneDNN on one whole product, by the calling thread: the faster of its two interfaces. fp16,
/// which it does not multiply, is measured as fp32.
class Raw {
 public:
  Raw(const Product& product, DType dtype) : p_(product), bf16_(dtype == DType::bf16) {
    const DType stored = bf16_ ? DType::bf16 : DType::f32;
    device_ = make_cpu_device({});
    a_ = Tensor(device_->memory(), kNoStream, stored, product.a(), Category::other);
    b_ = Tensor(device_->memory(), kNoStream, stored, product.b(), Category::other);
    c_ = Tensor(device_->memory(), kNoStream, stored, {product.m, product.n}, Category::other);
    fill(a_.view());
    fill(b_.view());
  }
  double nanoseconds(double seconds) {
    omp_set_num_threads(1);
    const double matmul = time_matmul(bf16_ ? seconds : seconds / 2);
    return bf16_ ? matmul : std::min(matmul, time_sgemm(seconds / 2));
  }

 private:
  double time_sgemm(double seconds) {
    return best_time(seconds, [&] {
      dnnl_sgemm(p_.trans_a ? 'T' : 'N', p_.trans_b ? 'T' : 'N', p_.m, p_.n, p_.k, 1.0f,
                 a_.view().as<float>(), p_.a().last(), b_.view().as<float>(), p_.b().last(), 0.0f,
                 c_.view().as<float>(), p_.n);
    });
  }
  double time_matmul(double seconds) {
    using dnnl::memory;
    const auto type = bf16_ ? memory::data_type::bf16 : memory::data_type::f32;
    const auto desc = [&](std::int64_t rows, std::int64_t columns, std::int64_t ld, bool trans) {
      return memory::desc({rows, columns}, type, trans ? memory::dims{1, ld} : memory::dims{ld, 1});
    };
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    const auto a = desc(p_.m, p_.k, p_.a().last(), p_.trans_a);
    const auto b = desc(p_.k, p_.n, p_.b().last(), p_.trans_b);
    const auto c = desc(p_.m, p_.n, p_.n, false);
    const dnnl::matmul multiply({dnnl::matmul::desc(a, b, c), engine});
    const std::unordered_map<int, memory> arguments = {
        {DNNL_ARG_SRC, memory(a, engine, a_.view().data())},
        {DNNL_ARG_WEIGHTS, memory(b, engine, b_.view().data())},
        {DNNL_ARG_DST, memory(c, engine, c_.view().data())}};
    return best_time(seconds, [&] {
      multiply.execute(stream, arguments);
      stream.wait();
    });
  }

  Product p_;
  bool bf16_;
  std::unique_ptr<Device> device_;
  Tensor a_, b_, c_;
};

/// GFLOP/s of all threads together, each on its own copy at the same time.
double raw_rate(const Product& product, std::vector<std::unique_ptr<Raw>>& copies, double seconds) {
  std::vector<double> rates(copies.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < copies.size(); ++i)
    threads.emplace_back([&, i] { rates[i] = product.flop() / copies[i]->nanoseconds(seconds); });
  double sum = 0;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    threads[i].join();
    sum += rates[i];
  }
  return sum;
}

struct Options {
  std::int64_t tokens = 256;
  std::vector<int> threads = {1, 2};
  std::vector<std::string> dtypes = {"fp32", "bf16"};
  double seconds = 0.3;
};

void print_table(const Options& options, DType dtype, int threads) {
  const double peak = fma_peak() * threads;
  std::printf("\n%s, %lld tokens, %d thread%s; fp32 multiply-add peak %.0f GFLOP/s\n",
              std::string(name_of(dtype)).c_str(), static_cast<long long>(options.tokens), threads,
              threads == 1 ? "" : "s", peak);
  std::printf("%-24s %18s %9s %9s %7s %7s\n", "product", "m x n x k", "zero3d", "oneDNN", "ratio",
              "of peak");
  double flop = 0, ours_ns = 0, raw_ns = 0;
  for (const Product& product : gpt2_products(options.tokens)) {
    Ours ours(product, dtype, threads);
    std::vector<std::unique_ptr<Raw>> copies;
    for (int i = 0; i < threads; ++i) copies.push_back(std::make_unique<Raw>(product, dtype));
    double rate = 0, raw = 0;
    for (int turn = 0; turn < 3; ++turn) {
      rate = std::max(rate, product.flop() / ours.nanoseconds(options.seconds / 3));
      raw = std::max(raw, raw_rate(product, copies, options.seconds / 3));
    }
    flop += product.flop();
    ours_ns += product.flop() / rate;
    raw_ns += product.flop() / raw;
    std::printf("%-24s %18s %9.1f %9.1f %7.3f %7.3f\n", product.name,
                concat(product.m, "x", product.n, "x", product.k).c_str(), rate, raw, rate / raw,
                rate / peak);
    std::fflush(stdout);
  }
  std::printf("%-24s %18s %9.1f %9.1f %7.3f %7.3f\n", "all, one of each", "", flop / ours_ns,
              flop / raw_ns, raw_ns / ours_ns, flop / ours_ns / peak);
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Rates of GPT-2 124M's matrix products, in GFLOP/s");
  app.add_option("--tokens", options.tokens, "Rows of the activations (batch x sequence)");
  app.add_option("--threads", options.threads, "Threads of the device");
  app.add_option("--dtype", options.dtypes, "fp32, bf16 or fp16");
  app.add_option("--seconds", options.seconds, "Time for each product and side");
  CLI11_PARSE(app, argc, argv);
  std::printf("16-bit products: %s\n", kernels::gemm_bf16_path());
  for (const std::string& name : options.dtypes) {
    for (const int threads : options.threads) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
        if (name == name_of(dtype)) print_table(options, dtype, threads);
    }
  }
  return 0;
}

}  // namespace
}  // namespace zero3d::bench

int main(int argc, char** argv) { return zero3d::bench::run(argc, argv); }
