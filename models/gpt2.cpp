// What GPT-2 declares, in transformers' order, with its initial values.
#include "zero3d/models/gpt2.h"

#include <cmath>
#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/models/tiled_block.h"
#include "zero3d/models/tiled_end_blocks.h"

namespace zero3d {
namespace {

using Cut = LinearOptions::Cut;

constexpr const char* kTokenTable = "transformer.wte.weight";

std::unique_ptr<Block> make_embedding(const ModelConfig& config, const TileSettings& tiles) {
  const auto stddev = static_cast<float>(config.initializer_range);
  EmbeddingParts parts;
  parts.name = "embedding";
  ParameterSpec table;
  table.name = kTokenTable;
  table.shape = Shape{config.vocab_size, config.hidden_size};
  table.initial = normal_values(table.name, stddev);
  table.split.dim = 0;
  table.adds_gradient = true;
  table.gradient_in_weights = true;
  parts.table = parts.parameters.add(std::move(table));
  parts.vocabulary = config.vocab_size;
  ParameterSpec positions;
  positions.name = "transformer.wpe.weight";
  positions.shape = Shape{config.max_positions, config.hidden_size};
  positions.initial = normal_values(positions.name, stddev);
  positions.adds_gradient = true;
  positions.gradient_in_weights = true;
  parts.positions = parts.parameters.add(std::move(positions));
  parts.dropout = Dropout(config.embedding_dropout, 0, DropoutSite::embedding);
  return make_embedding_block(std::move(parts), tiles.head);
}

float attention_scale(const ModelConfig& config, std::int64_t layer) {
  float scale =
      config.scale_attention ? 1.0f / std::sqrt(static_cast<float>(config.head_dim)) : 1.0f;
  if (config.scale_by_inverse_layer) scale /= static_cast<float>(layer + 1);
  return scale;
}

std::unique_ptr<Block> make_layer(const ModelConfig& config, std::int64_t layer,
                                  const TileSettings& tiles) {
  const std::int64_t block = layer + 1, c = config.hidden_size;
  const std::string prefix = concat("transformer.h.", layer, ".");
  const double stddev = config.initializer_range;
  // Deeper models start with smaller steps on the residual path (GPT-2 paper, section 2.3).
  const double residual_stddev = stddev / std::sqrt(2.0 * static_cast<double>(config.layers));
  const auto linear = [&](const char* name, std::int64_t in, std::int64_t out, double deviation,
                          Cut cut) {
    LinearOptions options;
    options.prefix = prefix + name;
    options.in = in;
    options.out = out;
    options.biased = true;
    options.input_major = true;
    options.stddev = deviation;
    options.cut = cut;
    return options;
  };

  TransformerParts parts;
  parts.name = concat("h.", layer);
  ParameterList& list = parts.parameters;
  parts.norm1 = declare_layer_norm(list, prefix + "ln_1", c, config.norm_eps);
  LinearOptions fused = linear("attn.c_attn", c, 3 * c, stddev, Cut::outputs);
  fused.split.parts = {c, c, c};
  fused.split.grain = config.head_dim;
  Attention& attention = parts.attention;
  attention.inputs = {declare_linear(list, fused)};
  LinearOptions projection = linear("attn.c_proj", c, c, residual_stddev, Cut::inputs);
  projection.split.grain = config.head_dim;
  attention.output = declare_linear(list, projection);
  attention.heads = attention.kv_heads = config.heads;
  attention.head_dim = config.head_dim;
  attention.scale = attention_scale(config, layer);
  attention.probabilities = Dropout(config.attention_dropout, block, DropoutSite::attention);
  attention.output_dropout = Dropout(config.residual_dropout, block, DropoutSite::attention_out);

  parts.norm2 = declare_layer_norm(list, prefix + "ln_2", c, config.norm_eps);
  const std::int64_t wide = config.intermediate_size;
  parts.mlp.inputs = {declare_linear(list, linear("mlp.c_fc", c, wide, stddev, Cut::outputs))};
  parts.mlp.output =
      declare_linear(list, linear("mlp.c_proj", wide, c, residual_stddev, Cut::inputs));
  parts.mlp.output_dropout = Dropout(config.residual_dropout, block, DropoutSite::mlp_out);
  return make_transformer_block(std::move(parts), tiles.linear);
}

std::unique_ptr<Block> make_head(const ModelConfig& config, const TileSettings& tiles) {
  HeadParts parts;
  parts.name = "head";
  parts.norm =
      declare_layer_norm(parts.parameters, "transformer.ln_f", config.hidden_size, config.norm_eps);
  parts.head = declare_head(parts.parameters, config.tied ? kTokenTable : "lm_head.weight",
                            config.hidden_size, config.vocab_size, config.initializer_range);
  return make_head_block(std::move(parts), tiles.head);
}

}  // namespace

std::vector<std::unique_ptr<Block>> make_gpt2_blocks(const ModelConfig& config,
                                                     const TileSettings& tiles) {
  std::vector<std::unique_ptr<Block>> blocks;
  blocks.push_back(make_embedding(config, tiles));
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    blocks.push_back(make_layer(config, layer, tiles));
  blocks.push_back(make_head(config, tiles));
  return blocks;
}

}  // namespace zero3d
