// What LLaMA and its kin declare, in transformers' order, with their initial values.
#include "zero3d/models/llama.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/models/tiled_block.h"
#include "zero3d/models/tiled_end_blocks.h"

namespace zero3d {
namespace {

using Cut = LinearOptions::Cut;

constexpr const char* kTokenTable = "model.embed_tokens.weight";

kernels::RmsFactor rms_factor(const ModelConfig& config) {
  return config.is_gemma() ? kernels::RmsFactor::one_plus_weight : kernels::RmsFactor::weight;
}

/// `values`, but for a row of zeros: what torch draws for a table with a padding token.
InitialValues zero_row(InitialValues values, std::int64_t row, std::int64_t width) {
  return [=](std::uint64_t seed, std::int64_t first, std::int64_t count, float* to) {
    values(seed, first, count, to);
    const std::int64_t begin = std::max(first, row * width),
                       end = std::min(first + count, (row + 1) * width);
    for (std::int64_t i = begin; i < end; ++i) to[i - first] = 0.0f;
  };
}

std::unique_ptr<Block> make_embedding(const ModelConfig& config, const TileSettings& tiles) {
  EmbeddingParts parts;
  parts.name = "embedding";
  ParameterSpec table;
  table.name = kTokenTable;
  table.shape = Shape{config.vocab_size, config.hidden_size};
  table.initial = normal_values(table.name, static_cast<float>(config.initializer_range));
  if (config.padding_token)
    table.initial = zero_row(std::move(table.initial), *config.padding_token, config.hidden_size);
  table.split.dim = 0;
  table.adds_gradient = true;
  table.gradient_in_weights = true;
  parts.table = parts.parameters.add(std::move(table));
  parts.vocabulary = config.vocab_size;
  parts.padding = config.padding_token;
  if (config.is_gemma()) parts.scale = std::sqrt(static_cast<float>(config.hidden_size));
  return make_embedding_block(std::move(parts), tiles.head);
}

std::unique_ptr<Block> make_layer(const ModelConfig& config, std::int64_t layer,
                                  const std::shared_ptr<const Rope>& rope,
                                  const TileSettings& tiles) {
  const std::string prefix = concat("model.layers.", layer, ".");
  const auto linear = [&](ParameterList& list, const char* name, std::int64_t in, std::int64_t out,
                          bool biased, Cut cut, const TensorParallelSplit& split = {}) {
    LinearOptions options;
    options.prefix = prefix + name;
    options.in = in;
    options.out = out;
    options.biased = biased;
    options.stddev = config.initializer_range;
    options.cut = cut;
    options.split = split;
    return declare_linear(list, options);
  };

  TransformerParts parts;
  parts.name = concat("layers.", layer);
  ParameterList& list = parts.parameters;
  const std::int64_t c = config.hidden_size, wide = config.intermediate_size;
  const std::int64_t q = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
  TensorParallelSplit heads, kv_heads;
  heads.grain = kv_heads.grain = config.head_dim;
  kv_heads.shares_grains = true;
  Attention& attention = parts.attention;
  attention.inputs = {
      linear(list, "self_attn.q_proj", c, q, config.qkv_bias, Cut::outputs, heads),
      linear(list, "self_attn.k_proj", c, kv, config.qkv_bias, Cut::outputs, kv_heads),
      linear(list, "self_attn.v_proj", c, kv, config.qkv_bias, Cut::outputs, kv_heads)};
  attention.output = linear(list, "self_attn.o_proj", q, c, config.output_bias, Cut::inputs, heads);
  if (config.norms_heads())  // one weight for all heads, and so not cut
    for (const char* name : {"self_attn.q_norm", "self_attn.k_norm"})
      attention.norms.push_back(declare_rms_norm(list, prefix + name, config.head_dim,
                                                 config.norm_eps, kernels::RmsFactor::weight,
                                                 SharedGradient::of_heads));
  attention.heads = config.heads;
  attention.kv_heads = config.kv_heads;
  attention.head_dim = config.head_dim;
  attention.scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  attention.probabilities = Dropout(config.attention_dropout, layer + 1, DropoutSite::attention);
  attention.rope = rope;
  attention.window = config.window_of(layer);

  parts.mlp.inputs = {linear(list, "mlp.gate_proj", c, wide, config.mlp_bias, Cut::outputs),
                      linear(list, "mlp.up_proj", c, wide, config.mlp_bias, Cut::outputs)};
  parts.mlp.output = linear(list, "mlp.down_proj", wide, c, config.mlp_bias, Cut::inputs);
  parts.mlp.gelu_gate = config.activation == ModelConfig::Activation::gelu;
  const kernels::RmsFactor factor = rms_factor(config);
  parts.norm1 = declare_rms_norm(list, prefix + "input_layernorm", c, config.norm_eps, factor);
  parts.norm2 =
      declare_rms_norm(list, prefix + "post_attention_layernorm", c, config.norm_eps, factor);
  return make_transformer_block(std::move(parts), tiles.linear);
}

std::unique_ptr<Block> make_head(const ModelConfig& config, const TileSettings& tiles) {
  HeadParts parts;
  parts.name = "head";
  parts.norm = declare_rms_norm(parts.parameters, "model.norm", config.hidden_size, config.norm_eps,
                                rms_factor(config));
  parts.head = declare_head(parts.parameters, config.tied ? kTokenTable : "lm_head.weight",
                            config.hidden_size, config.vocab_size, config.initializer_range);
  return make_head_block(std::move(parts), tiles.head);
}

}  // namespace

std::vector<std::unique_ptr<Block>> make_llama_blocks(const ModelConfig& config,
                                                      const TileSettings& tiles) {
  const auto rope = std::make_shared<const Rope>(config);
  std::vector<std::unique_ptr<Block>> blocks;
  blocks.push_back(make_embedding(config, tiles));
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    blocks.push_back(make_layer(config, layer, rope, tiles));
  blocks.push_back(make_head(config, tiles));
  return blocks;
}

}  // namespace zero3d
