#include "onednn_rate.h"

#include <omp.h>

#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>
#include <thread>
#include <unordered_map>
#include <vector>

#include "zero3d/core/trace.h"

namespace zero3d::bench {
namespace {

struct Product {
  std::int64_t count, m, n, k;
  bool trans_a, trans_b;
};

std::vector<Product> products(const ModelConfig& model, std::int64_t tokens) {
  const std::int64_t width = model.hidden_size, layers = model.layers;
  struct Linear {
    std::int64_t count, in, out;
    bool output_major;  ///< Stored [out, in].
  };
  const Linear linears[] = {{layers, width, 3 * width, false},
                            {layers, width, width, false},
                            {layers, width, model.intermediate_size, false},
                            {layers, model.intermediate_size, width, false},
                            {1, width, model.vocab_size, true}};
  std::vector<Product> all;
  for (const Linear& l : linears) {
    all.push_back({l.count, tokens, l.out, l.in, false, l.output_major});
    all.push_back({l.count, tokens, l.in, l.out, false, !l.output_major});
    if (l.output_major) {
      all.push_back({l.count, l.out, l.in, tokens, true, false});
    } else {
      all.push_back({l.count, l.in, l.out, tokens, true, false});
    }
  }
  return all;
}

/// The best of several runs, in seconds, by the calling thread alone.
double best_seconds(const Product& p, DType dtype) {
  omp_set_num_threads(1);
  using dnnl::memory;
  const auto type = dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const auto desc = [&](std::int64_t rows, std::int64_t columns, bool trans) {
    return memory::desc({rows, columns}, type,
                        trans ? memory::dims{1, rows} : memory::dims{columns, 1});
  };
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto a = desc(p.m, p.k, p.trans_a), b = desc(p.k, p.n, p.trans_b),
             c = desc(p.m, p.n, false);
  const dnnl::matmul multiply({dnnl::matmul::desc(a, b, c), engine});
  std::vector<std::byte> a_data(a.get_size()), b_data(b.get_size()), c_data(c.get_size());
  const std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC, memory(a, engine, a_data.data())},
      {DNNL_ARG_WEIGHTS, memory(b, engine, b_data.data())},
      {DNNL_ARG_DST, memory(c, engine, c_data.data())}};
  const auto timed = [&] {
    const std::int64_t begin = now_ns();
    if (dtype == DType::f32) {
      dnnl_sgemm(p.trans_a ? 'T' : 'N', p.trans_b ? 'T' : 'N', p.m, p.n, p.k, 1.0f,
                 reinterpret_cast<const float*>(a_data.data()), p.trans_a ? p.m : p.k,
                 reinterpret_cast<const float*>(b_data.data()), p.trans_b ? p.k : p.n, 0.0f,
                 reinterpret_cast<float*>(c_data.data()), p.n);
    } else {
      multiply.execute(stream, arguments);
      stream.wait();
    }
    return static_cast<double>(now_ns() - begin) * 1e-9;
  };
  timed();
  double best = timed();
  for (int run = 0; run < 3; ++run) best = std::min(best, timed());
  return best;
}

}  // namespace

double onednn_rate(const ModelConfig& model, std::int64_t tokens, DType dtype, int threads) {
  double flop = 0, seconds = 0;
  for (const Product& p : products(model, tokens)) {
    std::vector<double> times(static_cast<std::size_t>(threads));
    std::vector<std::thread> workers;
    for (double& time : times) workers.emplace_back([&] { time = best_seconds(p, dtype); });
    for (std::thread& worker : workers) worker.join();
    double rate = 0;  // products a second, of all threads
    for (const double time : times) rate += 1 / time;
    const auto count = static_cast<double>(p.count);
    flop += count * 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) *
            static_cast<double>(p.k);
    seconds += count / rate;
  }
  return flop / seconds * 1e-9;
}

}  // namespace zero3d::bench
