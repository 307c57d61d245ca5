// The nano model: a causal transformer of two layers, hidden 16, 4 heads, a vocabulary of 61, and
// its batches: seeded tokens numbered by global sample, so that every split over ranks and
// micro-batches sees the same ones.
#pragma once

#include "zero3d/core/random.h"
#include "zero3d/models/build.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {

inline constexpr std::int64_t kNanoSequence = 8;

inline ModelConfig nano_gpt2(bool tied) {
  ModelConfig config;
  config.family = ModelConfig::Family::gpt2;
  config.vocab_size = 61;
  config.hidden_size = 16;
  config.layers = 2;
  config.heads = config.kv_heads = 4;
  config.head_dim = 4;
  config.intermediate_size = 64;
  config.max_positions = 16;
  config.initializer_range = 0.1;
  config.tied = tied;
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  return config;
}

inline ModelConfig nano_llama(bool tied) {
  ModelConfig config;
  config.family = ModelConfig::Family::llama;
  config.vocab_size = 61;
  config.hidden_size = 16;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 4;
  config.intermediate_size = 40;
  config.max_positions = 16;
  config.initializer_range = 0.1;
  config.tied = tied;
  return config;
}

/// One of each family for meshes: 8 heads, 4 key and value heads, an MLP and a vocabulary that
/// four ranks share unevenly, dropout wherever the family has it.
inline std::vector<ModelConfig> nano_families() {
  using Family = ModelConfig::Family;
  std::vector<ModelConfig> all;
  for (const Family family : {Family::gpt2, Family::llama, Family::mistral, Family::qwen2,
                              Family::qwen3, Family::gemma}) {
    const bool gpt2 = family == Family::gpt2;
    ModelConfig config = gpt2 ? nano_gpt2(true) : nano_llama(family == Family::gemma);
    config.family = family;
    config.hidden_size = 32;
    config.heads = 8;
    config.kv_heads = gpt2 ? 8 : 4;
    config.intermediate_size = 42;
    config.attention_dropout = 0.1;
    if (gpt2) config.embedding_dropout = config.residual_dropout = 0.1;
    if (family == Family::mistral) config.sliding_window = 3;
    if (family == Family::qwen2) config.qkv_bias = true;
    if (family == Family::gemma) config.activation = ModelConfig::Activation::gelu;
    all.push_back(config);
  }
  return all;
}

/// Rows of the micro-batch at `moment`: samples ((step * accumulation + m) * ranks + rank) * rows +
/// row, the last target of every third sample ignored.
inline TokenBatch nano_batch(const Moment& moment, int ranks, std::int64_t accumulation,
                             std::int64_t rows, std::int64_t sequence = kNanoSequence) {
  TokenBatch batch(rows, sequence);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t sample =
        ((moment.step * accumulation + moment.micro_batch) * ranks + moment.rank) * rows + row;
    const auto token = [&](std::int64_t i) {
      const auto word = philox4x32(
          {static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(i), 0, 0}, {17, 1})[0];
      return static_cast<std::int32_t>(word % 61u);
    };
    for (std::int64_t i = 0; i < sequence; ++i) {
      const auto at = static_cast<std::size_t>(row * sequence + i);
      batch.tokens[at] = token(i);
      batch.targets[at] = i + 1 == sequence && sample % 3 == 0 ? -100 : token(i + 1);
    }
  }
  return batch;
}

inline RunOptions nano_options(const ModelConfig& model, int ranks, std::int64_t accumulation,
                               std::int64_t rows = 2) {
  RunOptions options;
  options.ranks = ranks;
  options.make_module = [model](int) { return build_model(model); };
  options.batch = [ranks, accumulation, rows](const Moment& moment) {
    return nano_batch(moment, ranks, accumulation, rows);
  };
  return options;
}

}  // namespace zero3d::test
