// Norms, differences and reproducible numbers for tests of models.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "zero3d/core/random.h"
#include "zero3d/models/model_config.h"

namespace zero3d::test {

inline double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(sum);
}

inline std::vector<float> normals(std::int64_t count, std::uint64_t stream, float stddev = 1.0f) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = stddev * random_normal(7, stream, i);
  return values;
}

inline std::vector<std::int32_t> token_ids(std::int64_t count, std::int64_t vocab,
                                           std::uint64_t stream) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto word = philox4x32({static_cast<std::uint32_t>(i), 0, 0, 0},
                                 {static_cast<std::uint32_t>(stream), 1})[0];
    ids[i] = static_cast<std::int32_t>(word % static_cast<std::uint64_t>(vocab));
  }
  return ids;
}

/// GPT-2 without dropout; hidden = heads * head_dim.
inline ModelConfig small_gpt2(std::int64_t heads = 3, std::int64_t head_dim = 4,
                              std::int64_t intermediate = 20, std::int64_t layers = 2) {
  ModelConfig config;
  config.family = ModelConfig::Family::gpt2;
  config.vocab_size = 61;
  config.heads = config.kv_heads = heads;
  config.head_dim = head_dim;
  config.hidden_size = heads * head_dim;
  config.intermediate_size = intermediate;
  config.layers = layers;
  config.max_positions = 32;
  config.tied = true;
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  return config;
}

/// Grouped-query attention whose width is not the hidden size, and all biases.
inline ModelConfig small_llama(std::int64_t heads = 4, std::int64_t kv_heads = 2,
                               std::int64_t head_dim = 6, std::int64_t hidden = 10,
                               std::int64_t intermediate = 14, std::int64_t layers = 2) {
  ModelConfig config;
  config.family = ModelConfig::Family::llama;
  config.vocab_size = 53;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_dim = head_dim;
  config.hidden_size = hidden;
  config.intermediate_size = intermediate;
  config.layers = layers;
  config.max_positions = 32;
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  return config;
}

/// small_llama with norms of q and k, without biases.
inline ModelConfig small_qwen3() {
  ModelConfig config = small_llama();
  config.family = ModelConfig::Family::qwen3;
  config.qkv_bias = config.output_bias = config.mlp_bias = false;
  return config;
}

/// small_llama with scaled embeddings, norms of 1 + w, GEGLU, a tied head and a padding token.
inline ModelConfig small_gemma() {
  ModelConfig config = small_llama();
  config.family = ModelConfig::Family::gemma;
  config.qkv_bias = config.output_bias = config.mlp_bias = false;
  config.activation = ModelConfig::Activation::gelu;
  config.tied = true;
  config.padding_token = 3;
  return config;
}

/// small_llama whose second layer sees `window` keys.
inline ModelConfig small_windowed(std::int64_t window) {
  ModelConfig config = small_llama();
  config.family = ModelConfig::Family::qwen2;
  config.output_bias = config.mlp_bias = false;
  config.sliding_window = window;
  config.windowed_layers = {false, true};
  return config;
}

}  // namespace zero3d::test
