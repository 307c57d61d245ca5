// config.json read as a hostile file, written for transformers; built-in shapes; what a model
// declares.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <regex>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/zero/placement.h"
#include "zero3d/models/build.h"
#include "zero3d/models/model_size.h"
#include "zero3d/tests/models/vectors.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d {
namespace {

using Family = ModelConfig::Family;

const std::string kGpt2 = R"("architectures": ["GPT2LMHeadModel"], "vocab_size": 61, "n_embd": 48,
  "n_layer": 3, "n_head": 3, "n_positions": 32)";
const std::string kLlama =
    R"("architectures": ["LlamaForCausalLM"], "vocab_size": 257, "hidden_size": 64,
  "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4)";
const std::string kQwen2 =
    R"("architectures": ["Qwen2ForCausalLM"], "vocab_size": 257, "hidden_size": 64,
  "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2)";

/// `base` with more keys.
ModelConfig parse(const std::string& base, const std::string& more = "") {
  return parse_model_config("{" + base + (more.empty() ? "" : ", " + more) + "}",
                            "dir/config.json");
}

void expect_refused(const std::string& text, const std::vector<std::string>& parts) {
  try {
    parse_model_config(text, "dir/config.json");
    ADD_FAILURE() << "accepted: " << text;
  } catch (const IoError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("dir/config.json"), std::string::npos) << message;
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos)
          << "\"" << part << "\" is not in: " << message;
  }
}

/// The text of `base` whose key has this value, whether it had one or not.
std::string with_key(const std::string& base, const std::string& key, const std::string& value) {
  std::string rest = std::regex_replace(base, std::regex("\"" + key + "\": [^,]*(,\\s*)?"), "");
  while (rest.ends_with(' ') || rest.ends_with(',')) rest.pop_back();
  return concat("{\"", key, "\": ", value, ", ", rest, "}");
}

TEST(ModelConfig, DefaultsAreTransformers) {
  const ModelConfig gpt2 = parse(kGpt2);
  EXPECT_TRUE(gpt2.tied);
  EXPECT_EQ(gpt2.intermediate_size, 192);
  EXPECT_EQ(gpt2.head_dim, 16);
  EXPECT_DOUBLE_EQ(gpt2.residual_dropout, 0.1);
  EXPECT_DOUBLE_EQ(gpt2.norm_eps, 1e-5);
  EXPECT_TRUE(gpt2.scale_attention);
  EXPECT_FALSE(gpt2.dtype.has_value());

  const ModelConfig llama = parse(kLlama);
  EXPECT_FALSE(llama.tied);
  EXPECT_EQ(llama.kv_heads, 4);
  EXPECT_EQ(llama.head_dim, 16);
  EXPECT_DOUBLE_EQ(llama.norm_eps, 1e-6);
  EXPECT_EQ(llama.max_positions, 2048);
  EXPECT_FALSE(llama.qkv_bias || llama.output_bias || llama.mlp_bias);
  EXPECT_EQ(llama.rope.type, RopeConfig::Type::standard);

  const ModelConfig qwen2 = parse(kQwen2);
  EXPECT_FALSE(qwen2.tied);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias);
  EXPECT_EQ(qwen2.max_positions, 32768);
}

TEST(ModelConfig, EachDropoutHasAKeyOfItsOwn) {
  const ModelConfig gpt2 =
      parse(kGpt2, R"("embd_pdrop": 0.25, "attn_pdrop": 0.5, "resid_pdrop": 0.75)");
  EXPECT_EQ(gpt2.embedding_dropout, 0.25);
  EXPECT_EQ(gpt2.attention_dropout, 0.5);
  EXPECT_EQ(gpt2.residual_dropout, 0.75);
}

TEST(ModelConfig, BothSpellingsOfRopeAndDtype) {
  const std::string llama3 = R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32)";
  const std::vector<std::string> spellings = {
      R"("rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", )" + llama3 +
          R"(}, "torch_dtype": "bfloat16")",
      R"("rope_theta": 500000, "rope_scaling": {"type": "llama3", )" + llama3 +
          R"(}, "dtype": "torch.bfloat16")",
      R"("rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", )" + llama3 +
          R"(}, "dtype": "bfloat16")"};
  for (const std::string& spelling : spellings) {
    const ModelConfig config = parse(kLlama, spelling);
    EXPECT_EQ(config.rope.type, RopeConfig::Type::llama3);
    EXPECT_DOUBLE_EQ(config.rope.theta, 5e5);
    EXPECT_DOUBLE_EQ(config.rope.factor, 8);
    EXPECT_EQ(config.rope.original_max_positions, 32);
    EXPECT_EQ(config.dtype, DType::bf16);
  }
  EXPECT_EQ(parse(kLlama, R"("rope_scaling": null)").rope.type, RopeConfig::Type::standard);
  EXPECT_EQ(parse(kLlama, R"("rope_scaling": {"type": "dynamic", "factor": 2})").rope.type,
            RopeConfig::Type::dynamic);
}

TEST(ModelConfig, UnknownArchitectureIsRefusedByName) {
  expect_refused(R"({"architectures": ["MixtralForCausalLM"]})",
                 {"architectures", "MixtralForCausalLM", "LlamaForCausalLM"});
  expect_refused(R"({"model_type": "mamba"})", {"model_type", "mamba", "qwen3"});
  expect_refused("{}", {"architectures", "GPT2LMHeadModel"});
  expect_refused(R"({"architectures": ["GPT2LMHeadModel", "LlamaForCausalLM"]})",
                 {"architectures"});
  expect_refused(R"({"architectures": "GPT2LMHeadModel"})", {"architectures"});
  EXPECT_EQ(
      parse(
          R"("model_type": "gpt2", "vocab_size": 5, "n_embd": 4, "n_layer": 1, "n_head": 1, "n_positions": 8)")
          .family,
      Family::gpt2);
}

TEST(ModelConfig, Gpt2TakesTheNamesOfOtherFamilies) {
  const std::string rest = R"("model_type": "gpt2", "vocab_size": 5, )";
  const ModelConfig named = parse(rest + R"("hidden_size": 8, "num_hidden_layers": 3,
      "num_attention_heads": 2, "max_position_embeddings": 16)");
  EXPECT_EQ(named.hidden_size, 8);
  EXPECT_EQ(named.layers, 3);
  EXPECT_EQ(named.heads, 2);
  EXPECT_EQ(named.max_positions, 16);
  const std::string both = rest + R"("n_embd": 8, "n_layer": 3, "n_head": 2, "n_positions": 16, )";
  EXPECT_EQ(parse(both + R"("hidden_size": 8)").hidden_size, 8);
  for (const auto& [key, alias, value] : {std::array{"n_embd", "hidden_size", "8"},
                                          {"n_layer", "num_hidden_layers", "3"},
                                          {"n_head", "num_attention_heads", "2"},
                                          {"n_positions", "max_position_embeddings", "16"}})
    expect_refused(concat("{", both, "\"", alias, "\": 4}"), {key, value, alias, "4"});
}

TEST(ModelConfig, WhatWouldChangeTheArithmeticIsRefusedByName) {
  const auto refused = [](const std::string& base, const std::string& more,
                          const std::vector<std::string>& parts) {
    expect_refused("{" + base + ", " + more + "}", parts);
  };
  refused(kGpt2, R"("activation_function": "relu")", {"activation_function", "relu", "gelu_new"});
  refused(kGpt2, R"("add_cross_attention": true)", {"add_cross_attention"});
  refused(kGpt2, R"("quantization_config": {"bits": 4})", {"quantization_config"});
  refused(kGpt2, R"("dtype": "float8_e4m3fn")", {"dtype", "float8_e4m3fn", "bfloat16"});
  refused(kLlama, R"("hidden_act": "gelu")", {"hidden_act", "gelu", "silu"});
  refused(kLlama, R"("compression_config": {"bits": 4})", {"compression_config"});
  refused(kLlama, R"("is_encoder_decoder": true)", {"is_encoder_decoder"});
  refused(kLlama, R"("rope_scaling": {"rope_type": "su", "factor": 4})",
          {"rope_scaling.rope_type", "su", "llama3"});
  refused(kLlama, R"("rope_scaling": {"type": "linear"})", {"rope_scaling.factor", "absent"});
  refused(kQwen2, R"("layer_types": ["full_attention", "sliding_attention"])",
          {"layer_types", "sliding_attention"});
  EXPECT_NO_THROW(parse(
      kQwen2, R"("use_sliding_window": true, "sliding_window": 128, "max_window_layers": 28)"));
  EXPECT_NO_THROW(parse(kGpt2, R"("activation_function": "gelu_pytorch_tanh")"));
}

TEST(ModelConfig, HostileValuesAreRefused) {
  for (const char* text : {"", "[]", "null", "{", "{\"a\": \"\xff\"}", "3"})
    expect_refused(text, {});
  expect_refused("{" + kGpt2 + R"(, "n_head": 5})", {"'n_head' stands twice"});
  expect_refused("{" + kGpt2 + R"(, "x": {"y": [{"z": 1, "z": 1}]}})", {"'z' stands twice"});
  EXPECT_NO_THROW(parse(kGpt2, R"("x": [{"z": 1}, {"z": {"z": 1}}])"));
  expect_refused(with_key(kGpt2, "n_head", "5"), {"48", "5"});
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"vocab_size", "0"},
      {"vocab_size", "-3"},
      {"vocab_size", "1e3"},
      {"vocab_size", "\"61\""},
      {"vocab_size", "99999999999999999999"},
      {"vocab_size", "18446744073709551615"},
      {"vocab_size", "null"},
      {"num_hidden_layers", "0"},
      {"num_hidden_layers", "100000000"},
      {"hidden_size", "9223372036854775807"},
      {"num_attention_heads", "0"},
      {"num_attention_heads", "3"},
      {"num_key_value_heads", "3"},
      {"num_key_value_heads", "0"},
      {"head_dim", "15"},
      {"head_dim", "4611686018427387904"},
      {"head_dim", "-2"},
      {"intermediate_size", "0"},
      {"rms_norm_eps", "-1"},
      {"rms_norm_eps", "\"small\""},
      {"rope_theta", "0"},
      {"attention_dropout", "1.5"},
      {"tie_word_embeddings", "1"},
      {"rope_scaling", "[]"},
      {"rope_scaling", "7"},
      {"rope_scaling", R"({"type": "linear", "factor": 0})"},
      {"rope_scaling", R"({"type": 5})"},
      {"layer_types", "{}"},
      {"dtype", "16"},
      {"initializer_range", "1e400"}};
  for (const auto& [key, value] : bad) expect_refused(with_key(kLlama, key, value), {});
  expect_refused(R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 5})",
                 {"hidden_size", "absent"});
}

TEST(ModelConfig, WhatIsWrittenReadsBackAlike) {
  std::vector<ModelConfig> configs = {test::small_gpt2(), test::small_llama()};
  for (const auto name : built_in_model_names()) configs.push_back(built_in_model_config(name));
  configs[0].scale_by_inverse_layer = true;
  configs[0].scale_attention = false;
  configs[1].rope = {RopeConfig::Type::llama3, 5e5, 8.0, 1.0, 4.0, 32};
  configs.push_back(configs[1]);
  configs.back().rope = {RopeConfig::Type::dynamic, 1e4, 2.0};
  for (const ModelConfig& config :
       {test::small_qwen3(), test::small_gemma(), test::small_windowed(5)})
    configs.push_back(config);
  for (const ModelConfig& config : configs)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const std::string text = to_config_json(config, dtype);
      const ModelConfig back = parse_model_config(text, "again");
      EXPECT_EQ(back.dtype, dtype);
      EXPECT_EQ(back.tied, config.tied);
      EXPECT_EQ(parameter_count(back), parameter_count(config));
      EXPECT_EQ(back.rope, config.rope);
      EXPECT_EQ(back.family, config.family);
      EXPECT_EQ(back.activation, config.activation);
      EXPECT_EQ(back.padding_token, config.padding_token);
      for (std::int64_t layer = 0; layer < config.layers; ++layer)
        EXPECT_EQ(back.window_of(layer), config.window_of(layer)) << layer;
      EXPECT_EQ(back.remarks, std::vector<std::string>());
      EXPECT_EQ(to_config_json(back, dtype), text);
    }
}

TEST(ModelConfig, TokensThatBeginAndEndATextAreKept) {
  EXPECT_TRUE(parse(kGpt2).eos_tokens.empty());
  const ModelConfig one = parse(kGpt2, R"("bos_token_id": 7, "eos_token_id": 8)");
  EXPECT_EQ(one.bos_token, 7);
  EXPECT_EQ(one.eos_tokens, std::vector<std::int64_t>{8});
  const ModelConfig two = parse(kGpt2, R"("eos_token_id": [8, 9])");
  EXPECT_EQ(parse_model_config(to_config_json(two, DType::f32), "again").eos_tokens,
            (std::vector<std::int64_t>{8, 9}));
  expect_refused("{" + kGpt2 + R"(, "eos_token_id": ["a"]})", {"eos_token_id"});
}

TEST(ModelConfig, RecordedFoldersParse) {
  const ModelConfig odd = read_model_config("tests/golden/models/gpt2-odd");
  EXPECT_EQ(odd.heads, 3);
  EXPECT_EQ(odd.hidden_size, 48);
  for (const char* name : {"gemma-tiny", "mistral-window", "qwen3-tiny"})
    EXPECT_NO_THROW(read_model_config(std::string("tests/golden/models/") + name)) << name;
  const ModelConfig rope = read_model_config("tests/golden/models/llama-tied-rope3/config.json");
  EXPECT_TRUE(rope.tied);
  EXPECT_EQ(rope.rope.type, RopeConfig::Type::llama3);
  EXPECT_EQ(rope.dtype, DType::f32);
  try {
    read_model_config("tests/golden/models/absent");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("absent"), std::string::npos);
    EXPECT_EQ(error.code(), ENOENT);
  }
}

// Published parameter counts.
TEST(BuiltInModels, HaveTheSizesOfTheirNames) {
  const std::map<std::string_view, std::int64_t> counts = {
      {"gpt2", 124439808},          {"gpt2-medium", 354823168},   {"gpt2-large", 774030080},
      {"gpt2-xl", 1557611200},      {"llama-1.1b", 1100048384},   {"llama-2-7b", 6738415616},
      {"llama-2-13b", 13015864320}, {"llama-2-70b", 68976648192}, {"llama-3-8b", 8030261248},
      {"qwen2-0.5b", 494032768},    {"qwen2-7b", 7615616512}};
  for (const auto& [name, count] : counts)
    EXPECT_EQ(parameter_count(built_in_model_config(name)), count) << name;
  for (const auto name : built_in_model_names()) {
    const ModelConfig config = built_in_model_config(name);
    std::int64_t declared = 0;
    for (const ParameterSpec& spec : list_parameters(*build_model(config)))
      declared += spec.shape.numel();
    EXPECT_EQ(declared, parameter_count(config)) << name;
  }
  const std::int64_t tiny = parameter_count(built_in_model_config("llama-tiny"));
  EXPECT_GT(tiny, 500000);
  EXPECT_LT(tiny, 1000000);
}

TEST(BuiltInModels, AMisspeltNameGetsTheNearest) {
  try {
    built_in_model_config("gpt2-medum");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("\"gpt2-medium\"?"), std::string::npos)
        << error.what();
  }
}

TEST(Model, RefusesAConfigThatDoesNotAddUp) {
  ModelConfig config = test::small_gpt2();
  config.hidden_size = 13;
  EXPECT_THROW(build_model(config), Error);
  config = test::small_llama();
  config.head_dim = 5;
  EXPECT_THROW(build_model(config), Error);
  config = test::small_llama(4, 3);
  EXPECT_THROW(build_model(config), Error);
  config = test::small_llama();
  config.sliding_window = 3;
  EXPECT_THROW(build_model(config), Error);
  config.family = Family::mistral;
  EXPECT_NO_THROW(build_model(config));
  config.windowed_layers = {true, false};
  EXPECT_NO_THROW(build_model(config));
  config.family = Family::gemma;
  config.sliding_window = 0;
  EXPECT_THROW(build_model(config), Error);
  config.sliding_window = 3;
  config.family = Family::qwen3;
  EXPECT_NO_THROW(build_model(config));
  config.windowed_layers = {true};
  EXPECT_THROW(build_model(config), Error);
}

TEST(Model, TiedHeadNamesTheEmbedding) {
  for (const bool tied : {true, false}) {
    ModelConfig gpt2 = test::small_gpt2(), llama = test::small_llama();
    gpt2.tied = llama.tied = tied;
    const auto head = build_model(gpt2)->blocks().back()->parameters().back();
    EXPECT_EQ(head.name, tied ? "transformer.wte.weight" : "lm_head.weight");
    const auto module = build_model(llama);
    EXPECT_EQ(module->blocks().back()->parameters().back().name,
              tied ? "model.embed_tokens.weight" : "lm_head.weight");
    EXPECT_TRUE(module->blocks().front()->parameters().front().adds_gradient);
    EXPECT_FALSE(module->blocks().back()->parameters().back().adds_gradient);
  }
}

/// The ranges of `name`'s cut dim that a tensor-parallel rank of `ranks` has.
std::vector<std::pair<std::int64_t, std::int64_t>> held(const Module& module,
                                                        const std::string& name, int rank,
                                                        int ranks) {
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const ParameterSpec& spec : list_parameters(module)) {
    if (!spec.name.ends_with(name)) continue;
    PlacementOptions options;
    options.tensor_parallel_rank = rank;
    options.tensor_parallel_size = ranks;
    for (const Box& box : place_parameter(spec, options).boxes)
      ranges.emplace_back(box.first, box.first + box.count);
    return ranges;
  }
  return ranges;
}

TEST(Model, TensorParallelRanksHoldWholeHeadsAndTheirBiases) {
  using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
  // Three heads of 4 over two ranks: two and one, in each of q, k and v.
  const auto gpt2 = build_model(test::small_gpt2(3, 4));
  const Ranges second = {{8, 12}, {20, 24}, {32, 36}};
  EXPECT_EQ(held(*gpt2, "h.1.attn.c_attn.weight", 1, 2), second);
  EXPECT_EQ(held(*gpt2, "h.1.attn.c_attn.bias", 1, 2), second);
  EXPECT_EQ(held(*gpt2, "h.1.attn.c_proj.weight", 1, 2), (Ranges{{8, 12}}));
  // Four query heads of 4 and two key heads over four ranks, two of which share a key head.
  const auto llama = build_model(test::small_llama(4, 2, 4));
  EXPECT_EQ(held(*llama, "layers.1.self_attn.q_proj.weight", 2, 4), (Ranges{{8, 12}}));
  EXPECT_EQ(held(*llama, "layers.1.self_attn.o_proj.weight", 2, 4), (Ranges{{8, 12}}));
  for (const char* name : {"k_proj.weight", "v_proj.weight"})
    EXPECT_EQ(held(*llama, name, 2, 4), (Ranges{{4, 8}})) << name;
  // One weight for all heads: every rank has it.
  const auto qwen3 = build_model(test::small_qwen3());
  EXPECT_EQ(held(*qwen3, "layers.1.self_attn.q_norm.weight", 1, 2), (Ranges{{0, 6}}));
  EXPECT_EQ(held(*qwen3, "layers.1.self_attn.k_norm.weight", 3, 4), (Ranges{{0, 6}}));
  EXPECT_EQ(held(*llama, "layers.1.self_attn.k_proj.bias", 2, 4), (Ranges{{4, 8}}));
  for (const Module* module : {gpt2.get(), llama.get(), qwen3.get()})
    for (const ParameterSpec& spec : list_parameters(*module))
      EXPECT_TRUE(place_parameter(spec, {}).whole()) << spec.name;
}

double deviation(const ParameterSpec& spec) {
  std::vector<float> values(static_cast<std::size_t>(spec.shape.numel()));
  spec.initial(9, 0, spec.shape.numel(), values.data());
  return test::norm(values) / std::sqrt(static_cast<double>(values.size()));
}

TEST(Model, InitialValuesAreTransformers) {
  ModelConfig gpt2 = test::small_gpt2(4, 16, 256, 3);
  gpt2.vocab_size = 257;
  ModelConfig llama = test::small_llama(4, 2, 16, 64, 176);
  llama.vocab_size = 257;
  ModelConfig gemma = llama;
  gemma.family = Family::gemma;
  gemma.qkv_bias = gemma.output_bias = gemma.mlp_bias = false;
  for (const ModelConfig& config : {gpt2, llama, gemma})
    for (const ParameterSpec& spec : list_parameters(*build_model(config))) {
      const bool norm =
          spec.name.find("ln_") != std::string::npos || spec.name.find("norm") != std::string::npos;
      double expected = 0.02;
      if (spec.name.ends_with(".bias")) {
        expected = 0;
      } else if (norm) {
        expected = config.is_gemma() ? 0 : 1;
      } else if (spec.name.ends_with("c_proj.weight")) {
        expected = 0.02 / std::sqrt(6.0);
      }
      EXPECT_NEAR(deviation(spec), expected, norm ? 0 : expected * 0.05) << spec.name;
    }
}

TEST(Model, APaddingTokenBeginsAtZero) {
  ModelConfig config = test::small_llama();
  config.padding_token = 7;
  const ParameterSpec table = list_parameters(*build_model(config)).front();
  const std::int64_t width = config.hidden_size;
  std::vector<float> all(static_cast<std::size_t>(table.shape.numel()));
  table.initial(1, 0, table.shape.numel(), all.data());
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(all[i] == 0, i / static_cast<std::size_t>(width) == 7) << i;
  std::vector<float> part(static_cast<std::size_t>(width));  // from the middle of row 6
  table.initial(1, 7 * width - 3, width, part.data());
  for (std::size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i] == 0, i >= 3) << i;
}

TEST(ModelSize, ReadsHuggingFaceConfigs) {
  test::TemporaryFolder folder;
  const auto size = [&](const std::string& text) {
    return model_hidden_size(folder.write("config.json", text));
  };
  EXPECT_EQ(size("{\"hidden_size\": 64}"), 64);
  EXPECT_EQ(size("{\"hidden_sizes\": [8, 32, 16]}"), 32);
  EXPECT_EQ(size("{\"text_config\": {\"hidden_size\": 128}}"), 128);
  EXPECT_EQ(size("{\"n_embd\": 768}"), 768);
  EXPECT_THROW(size("{\"layers\": 2}"), Error);
  EXPECT_THROW(model_hidden_size(folder.file("absent.json")), Error);
}

}  // namespace
}  // namespace zero3d
