// A transformer block in double precision, written from the formulas element by element: what the
// block under test is compared with, and what its gradients are differenced from.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "zero3d/models/model_config.h"
#include "zero3d/models/rope.h"

namespace zero3d::test {

using Doubles = std::vector<double>;

class ReferenceBlock {
 public:
  ReferenceBlock(const ModelConfig& config, std::int64_t layer, std::int64_t batch,
                 std::int64_t seq)
      : config_(config),
        gpt2_(config.family == ModelConfig::Family::gpt2),
        layer_(layer),
        batch_(batch),
        seq_(seq) {}

  /// Without the family's prefix: "attn.c_attn.weight".
  std::map<std::string, Doubles> parameters;

  /// x [batch * seq, hidden] -> the block's output.
  Doubles forward(const Doubles& x) const {
    const std::int64_t c = config_.hidden_size, q = config_.heads * config_.head_dim;
    const std::int64_t kv = config_.kv_heads * config_.head_dim;
    const Doubles h = normalised(x, gpt2_ ? "ln_1" : "input_layernorm");
    Doubles queries, keys, values;
    if (gpt2_) {
      const Doubles fused = linear(h, "attn.c_attn", c, 3 * c);
      queries = columns(fused, 3 * c, 0, c);
      keys = columns(fused, 3 * c, c, c);
      values = columns(fused, 3 * c, 2 * c, c);
    } else {
      queries = turned(head_norm(linear(h, "self_attn.q_proj", c, q), "q"), config_.heads);
      keys = turned(head_norm(linear(h, "self_attn.k_proj", c, kv), "k"), config_.kv_heads);
      values = linear(h, "self_attn.v_proj", c, kv);
    }
    const Doubles middle = sum(x, linear(attended(queries, keys, values),
                                         gpt2_ ? "attn.c_proj" : "self_attn.o_proj", q, c));
    return sum(middle, mlp(normalised(middle, gpt2_ ? "ln_2" : "post_attention_layernorm")));
  }

 private:
  std::int64_t rows() const { return batch_ * seq_; }
  static std::size_t at(std::int64_t row, std::int64_t width, std::int64_t column) {
    return static_cast<std::size_t>(row * width + column);
  }
  static Doubles sum(Doubles a, const Doubles& b) {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  }
  Doubles columns(const Doubles& x, std::int64_t width, std::int64_t first,
                  std::int64_t count) const {
    Doubles y;
    for (std::int64_t r = 0; r < rows(); ++r)
      for (std::int64_t i = 0; i < count; ++i) y.push_back(x[at(r, width, first + i)]);
    return y;
  }

  Doubles linear(const Doubles& x, const std::string& name, std::int64_t in,
                 std::int64_t out) const {
    const Doubles& weight = parameters.at(name + ".weight");
    const auto bias = parameters.find(name + ".bias");
    Doubles y(static_cast<std::size_t>(rows() * out));
    for (std::int64_t r = 0; r < rows(); ++r)
      for (std::int64_t o = 0; o < out; ++o) {
        double total = bias == parameters.end() ? 0.0 : bias->second[static_cast<std::size_t>(o)];
        for (std::int64_t i = 0; i < in; ++i)
          total += x[at(r, in, i)] * weight[gpt2_ ? at(i, out, o) : at(o, in, i)];
        y[at(r, out, o)] = total;
      }
    return y;
  }

  Doubles head_norm(const Doubles& x, const std::string& which) const {
    if (!config_.norms_heads()) return x;
    return normalised(x, "self_attn." + which + "_norm", config_.head_dim);
  }

  Doubles normalised(const Doubles& x, const std::string& name) const {
    return normalised(x, name, config_.hidden_size);
  }

  Doubles normalised(const Doubles& x, const std::string& name, std::int64_t c) const {
    const Doubles& weight = parameters.at(name + ".weight");
    const double added = config_.is_gemma() ? 1 : 0;
    Doubles y(x.size());
    for (std::int64_t r = 0; r < static_cast<std::int64_t>(x.size()) / c; ++r) {
      double mean = 0, squares = 0;
      for (std::int64_t i = 0; gpt2_ && i < c; ++i) mean += x[at(r, c, i)] / static_cast<double>(c);
      for (std::int64_t i = 0; i < c; ++i)
        squares += std::pow(x[at(r, c, i)] - mean, 2) / static_cast<double>(c);
      for (std::int64_t i = 0; i < c; ++i) {
        const auto column = static_cast<std::size_t>(i);
        y[at(r, c, i)] = (x[at(r, c, i)] - mean) / std::sqrt(squares + config_.norm_eps) *
                         (added + weight[column]);
        if (gpt2_) y[at(r, c, i)] += parameters.at(name + ".bias")[column];
      }
    }
    return y;
  }

  Doubles turned(Doubles x, std::int64_t heads) const {
    const std::int64_t half = config_.head_dim / 2, width = heads * config_.head_dim;
    const double factor = static_cast<double>(rope_attention_factor(config_.rope));
    const auto frequencies =
        rope_inverse_frequencies(config_.rope, config_.head_dim, config_.max_positions, seq_);
    for (std::int64_t r = 0; r < rows(); ++r)
      for (std::int64_t head = 0; head < heads; ++head)
        for (std::int64_t i = 0; i < half; ++i) {
          const double angle =
              static_cast<double>(r % seq_) * frequencies[static_cast<std::size_t>(i)];
          double& a = x[at(r, width, head * config_.head_dim + i)];
          double& b = x[at(r, width, head * config_.head_dim + i + half)];
          const double first = a * std::cos(angle) - b * std::sin(angle);
          b = factor * (b * std::cos(angle) + a * std::sin(angle));
          a = factor * first;
        }
    return x;
  }

  Doubles attended(const Doubles& q, const Doubles& k, const Doubles& v) const {
    const std::int64_t dim = config_.head_dim, group = config_.heads / config_.kv_heads;
    const std::int64_t q_width = config_.heads * dim, kv_width = config_.kv_heads * dim;
    double scale = 1.0 / std::sqrt(static_cast<double>(dim));
    if (gpt2_ && !config_.scale_attention) scale = 1.0;
    if (gpt2_ && config_.scale_by_inverse_layer) scale /= static_cast<double>(layer_ + 1);
    Doubles out(static_cast<std::size_t>(rows() * q_width), 0.0);
    for (std::int64_t row = 0; row < rows(); ++row)
      for (std::int64_t head = 0; head < config_.heads; ++head) {
        const std::int64_t window = config_.window_of(layer_), kv_at = head / group * dim;
        const std::int64_t first =
            std::max(row - row % seq_, window == 0 ? std::int64_t{0} : row - window + 1);
        double total = 0;
        Doubles weights;
        for (std::int64_t other = first; other <= row; ++other) {
          double score = 0;
          for (std::int64_t i = 0; i < dim; ++i)
            score += q[at(row, q_width, head * dim + i)] * k[at(other, kv_width, kv_at + i)];
          weights.push_back(std::exp(score * scale));
          total += weights.back();
        }
        for (std::int64_t other = first; other <= row; ++other)
          for (std::int64_t i = 0; i < dim; ++i)
            out[at(row, q_width, head * dim + i)] +=
                weights[static_cast<std::size_t>(other - first)] / total *
                v[at(other, kv_width, kv_at + i)];
      }
    return out;
  }

  static double gelu(double x) {
    return 0.5 * x *
           (1 + std::tanh(std::sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
  }

  Doubles mlp(const Doubles& h) const {
    const std::int64_t c = config_.hidden_size, wide = config_.intermediate_size;
    if (gpt2_) {
      Doubles up = linear(h, "mlp.c_fc", c, wide);
      for (double& u : up) u = gelu(u);
      return linear(up, "mlp.c_proj", wide, c);
    }
    Doubles gate = linear(h, "mlp.gate_proj", c, wide);
    const Doubles up = linear(h, "mlp.up_proj", c, wide);
    const bool silu = config_.activation == ModelConfig::Activation::silu;
    for (std::size_t i = 0; i < gate.size(); ++i)
      gate[i] = (silu ? gate[i] / (1 + std::exp(-gate[i])) : gelu(gate[i])) * up[i];
    return linear(gate, "mlp.down_proj", wide, c);
  }

  ModelConfig config_;
  bool gpt2_;
  std::int64_t layer_, batch_, seq_;
};

}  // namespace zero3d::test
