// config.json of the families beside GPT-2, in the spellings that published folders have: what each
// key means, what has no effect, and what is written again.
#include <gtest/gtest.h>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/hjson.h"
#include "zero3d/models/model_config.h"

namespace zero3d {
namespace {

using Family = ModelConfig::Family;
using Type = RopeConfig::Type;

JsonValue json_of(const std::string& text) {
  std::vector<HjsonProblem> duplicates;
  return parse_hjson(text, "text", duplicates);
}

/// A config.json of three layers; `more` are keys that take the place of these.
ModelConfig parse(const std::string& architecture, const std::string& more = "{}") {
  JsonValue json = json_of(R"({"vocab_size": 257, "hidden_size": 64, "intermediate_size": 176,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2})");
  json.set("architectures", JsonValue::make_array()).push_back(JsonValue(architecture));
  const JsonValue keys = json_of(more);
  for (const JsonMember& member : keys.members()) json.set(member.name, member.value);
  return parse_model_config(json.dump(), "dir/config.json");
}

std::string refusal(const std::string& architecture, const std::string& more) {
  try {
    parse(architecture, more);
  } catch (const IoError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_refused(const std::string& architecture, const std::string& more,
                    const std::vector<std::string>& parts) {
  const std::string message = refusal(architecture, more);
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
}

/// One remark names all of `keys`, and no others; none where there are none.
void expect_unread(const std::string& architecture, const std::string& more,
                   const std::vector<std::string>& keys) {
  std::string names;
  for (const std::string& key : keys) append_item(names, ", ", "'", key, "'");
  const std::vector<std::string> remarks = parse(architecture, more).remarks;
  if (keys.empty()) {
    EXPECT_EQ(remarks, keys) << more;
    return;
  }
  const bool one = keys.size() == 1;
  EXPECT_EQ(remarks, std::vector<std::string>{concat(
                         names, " of config.json ", one ? "has" : "have",
                         " no effect: ", architecture, " does not read ", one ? "it" : "them")})
      << more;
}

constexpr const char* kLlama = "LlamaForCausalLM";
constexpr const char* kMistral = "MistralForCausalLM";
constexpr const char* kQwen2 = "Qwen2ForCausalLM";
constexpr const char* kQwen3 = "Qwen3ForCausalLM";
constexpr const char* kGemma = "GemmaForCausalLM";

TEST(Families, DefaultsAreTransformers) {
  const ModelConfig mistral = parse(kMistral, R"({"num_attention_heads": 8})");
  EXPECT_EQ(mistral.sliding_window, 4096) << "absent is not null";
  EXPECT_EQ(mistral.max_positions, 131072);
  EXPECT_EQ(parse(kMistral, R"({"sliding_window": null})").sliding_window, 0);
  const ModelConfig qwen3 = parse(kQwen3);
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_TRUE(qwen3.norms_heads());
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_EQ(parse(kQwen3, R"({"head_dim": null})").head_dim, 16);
  const ModelConfig gemma = parse(kGemma);
  EXPECT_EQ(gemma.head_dim, 256);
  EXPECT_EQ(gemma.activation, ModelConfig::Activation::gelu);
  EXPECT_EQ(gemma.max_positions, 8192);
  EXPECT_TRUE(gemma.tied);
  EXPECT_EQ(parse(kLlama).activation, ModelConfig::Activation::silu);
  // Where the number of key/value heads is not said, each family has its own.
  for (const auto& [architecture, expected] : {std::pair<const char*, int>(kLlama, 64),
                                               {kMistral, 8},
                                               {kQwen2, 32},
                                               {kQwen3, 32},
                                               {kGemma, 16}})
    EXPECT_EQ(parse_model_config(concat(R"({"architectures": [")", architecture,
                                        R"("], "vocab_size": 9, "hidden_size": 64, "head_dim": 2,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 64})"),
                                 "c")
                  .kv_heads,
              expected)
        << architecture;
}

TEST(Families, ArchitectureAndModelTypeMustAgree) {
  EXPECT_EQ(parse("LLaMAForCausalLM").family, Family::llama) << "the first spelling";
  EXPECT_EQ(parse(kMistral, R"({"model_type": "mistral"})").family, Family::mistral);
  EXPECT_EQ(parse(kLlama, R"({"architectures": null, "model_type": "gemma"})").family,
            Family::gemma);
  expect_refused(kLlama, R"({"model_type": "mistral"})",
                 {"model_type", "mistral", "LlamaForCausalLM"});
  expect_refused(kLlama, R"({"model_type": "mamba"})", {"model_type", "mamba", "qwen3"});
  const std::string text = to_config_json(parse("LLaMAForCausalLM"), DType::f32);
  EXPECT_NE(text.find("\"LlamaForCausalLM\""), std::string::npos) << text;
}

TEST(Families, Biases) {
  const auto biases = [](const ModelConfig& config) {
    return std::vector<bool>{config.qkv_bias, config.output_bias, config.mlp_bias};
  };
  const char* all = R"({"attention_bias": true, "mlp_bias": true})";
  EXPECT_EQ(biases(parse(kLlama, all)), (std::vector<bool>{true, true, true}));
  EXPECT_EQ(biases(parse(kQwen3, all)), (std::vector<bool>{true, true, false}));
  EXPECT_EQ(biases(parse(kGemma, all)), (std::vector<bool>{true, true, false}));
  EXPECT_EQ(biases(parse(kQwen2, all)), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(biases(parse(kMistral, all)), (std::vector<bool>{false, false, false}));
  expect_unread(kMistral, all, {"attention_bias", "mlp_bias"});
  expect_unread(kQwen3, all, {"mlp_bias"});
  EXPECT_EQ(parse(kMistral, R"({"attention_bias": false})").remarks.size(), 0u);
}

TEST(Families, KeysThatNobodyReadsAreSaidToHaveNoEffect) {
  const char* others = R"({"final_logit_softcapping": 30.0, "num_local_experts": 8,
      "scale_emb": 12, "rotary_pct": 0.5, "layer_norm_eps": 1e-5, "clip_qkv": 8.0,
      "use_qk_norm": false, "pruned_heads": {}, "alibi": null, "torch_dtype": "float16",
      "dtype": "float16", "_name_or_path": "x", "use_cache": true, "pretraining_tp": 1,
      "id2label": {"0": "a"}, "transformers_version": "4.40.0", "pad_token_id": 1})";
  for (const auto& family : {kLlama, kGemma, kQwen3})
    expect_unread(family, others,
                  {"clip_qkv", "final_logit_softcapping", "layer_norm_eps", "num_local_experts",
                   "rotary_pct", "scale_emb"});
  const char* gpt2 = R"({"max_position_embeddings": 16, "rope_theta": 10000.0,
      "intermediate_size": null, "num_key_value_heads": null, "n_ctx": 16,
      "summary_type": "cls_index", "task_specific_params": {"text-generation": {}}})";
  expect_unread("GPT2LMHeadModel", gpt2, {"rope_theta"});
  const ModelConfig other = parse("GPT2LMHeadModel", R"({"max_position_embeddings": 16,
      "intermediate_size": null, "num_key_value_heads": null, "n_ctx": 8})");
  EXPECT_EQ(other.remarks, std::vector<std::string>{"n_ctx 8 has no effect beside n_positions 16"});
}

TEST(Families, KeysThatAKindOfRopeDoesNotReadAreSaid) {
  const auto remarks = [](const std::string& rope) {
    return parse(kLlama, R"({"rope_scaling": )" + rope + "}").remarks;
  };
  using Remarks = std::vector<std::string>;
  EXPECT_EQ(
      remarks(R"({"type": "yarn", "factor": 4.0, "attn_factor": 1.3, "finetuned": true})"),
      Remarks{"'attn_factor', 'finetuned' of rope_scaling have no effect: rope_type yarn does "
              "not read them"});
  EXPECT_EQ(remarks(R"({"rope_type": "default", "factor": 4.0})"),
            Remarks{"'factor' of rope_scaling has no effect: rope_type default does not read it"});
  EXPECT_EQ(remarks(R"({"type": "linear", "factor": 4.0, "finetuned": false})"), Remarks());
  expect_refused(kLlama, R"({"rope_scaling": {"type": null, "factor": 2.0}})",
                 {"rope_scaling.type", "null", "linear"});
}

TEST(Families, ActivationsByName) {
  using Activation = ModelConfig::Activation;
  EXPECT_EQ(parse(kGemma, R"({"hidden_act": "gelu"})").activation, Activation::gelu);
  EXPECT_EQ(parse(kGemma, R"({"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"})")
                .activation,
            Activation::gelu);
  EXPECT_EQ(parse(kLlama, R"({"hidden_act": "gelu_pytorch_tanh"})").activation, Activation::gelu);
  EXPECT_EQ(parse(kLlama, R"({"hidden_act": "swish"})").activation, Activation::silu);
  expect_refused(kLlama, R"({"hidden_act": "gelu"})", {"hidden_act", "gelu", "silu"});
  expect_refused(kGemma, R"({"hidden_activation": "relu"})", {"hidden_activation", "relu"});
  expect_refused(kGemma, R"({"is_causal": false})", {"is_causal"});
  expect_refused(kGemma, R"({"use_bidirectional_attention": true})",
                 {"use_bidirectional_attention"});
}

TEST(Families, SlicesOfPretrainingHaveNoEffect) {
  EXPECT_NO_THROW(parse(kLlama, R"({"pretraining_tp": 2})"));
  expect_refused(kLlama, R"({"pretraining_tp": "two"})", {"pretraining_tp", "an integer"});
}

std::vector<std::int64_t> windows(const ModelConfig& config) {
  std::vector<std::int64_t> all;
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    all.push_back(config.window_of(layer));
  return all;
}

TEST(Families, WindowsOfLayers) {
  using Windows = std::vector<std::int64_t>;
  EXPECT_EQ(windows(parse(kMistral, R"({"sliding_window": 8})")), (Windows{8, 8, 8}));
  EXPECT_EQ(windows(parse(kLlama)), (Windows{0, 0, 0}));
  expect_unread(kLlama, R"({"sliding_window": 8})", {"sliding_window"});
  expect_unread(kLlama, R"({"layer_types": ["sliding_attention"]})", {"layer_types"});
  expect_unread(kLlama, R"({"layer_types": ["full_attention", "attention"]})", {});
  expect_unread(kMistral, R"({"use_sliding_window": true})", {"use_sliding_window"});
  for (const char* qwen : {kQwen2, kQwen3}) {
    EXPECT_EQ(windows(parse(qwen, R"({"sliding_window": 8, "max_window_layers": 1})")),
              (Windows{0, 0, 0}));
    const std::string used = R"({"use_sliding_window": true, "sliding_window": 8, )";
    EXPECT_EQ(windows(parse(qwen, used + R"("max_window_layers": 1})")), (Windows{0, 8, 8}));
    EXPECT_EQ(windows(parse(qwen, used + R"("max_window_layers": 28})")), (Windows{0, 0, 0}));
    EXPECT_EQ(windows(parse(qwen, used + R"("layer_types": ["sliding_attention",
        "full_attention", "sliding_attention"]})")),
              (Windows{8, 0, 8}));
    expect_refused(qwen, used + R"("layer_types": ["full_attention"]})", {"layer_types", "3"});
    expect_refused(qwen, R"({"layer_types": ["full_attention", "full_attention",
        "sliding_attention"]})",
                   {"layer_types", "use_sliding_window"});
    expect_refused(qwen, R"({"layer_types": ["full_attention", "full_attention",
        "chunked_attention"]})",
                   {"layer_types", "chunked_attention"});
  }
  expect_refused(kMistral, R"({"sliding_window": 0})", {"sliding_window", "0", "null"});
}

TEST(Families, AMistralThatListsItsLayersHasWindowsByLayer) {
  using Windows = std::vector<std::int64_t>;
  const std::string some = R"("layer_types": ["sliding_attention", "attention",
      "sliding_attention"]})";
  for (const char* name : {kMistral, "MinistralForCausalLM"}) {
    const ModelConfig config = parse(name, R"({"sliding_window": 8, )" + some);
    EXPECT_EQ(windows(config), (Windows{8, 0, 8}));
    const std::string text = to_config_json(config, DType::f32);
    EXPECT_EQ(windows(parse_model_config(text, "again")), (Windows{8, 0, 8}));
    EXPECT_EQ(json_of(text).find("use_sliding_window"), nullptr);
  }
  EXPECT_EQ(parse("MinistralForCausalLM", R"({"model_type": "ministral"})").family,
            Family::mistral);
  EXPECT_EQ(windows(parse(kMistral, "{" + some)), (Windows{4096, 0, 4096}));
  const ModelConfig full = parse(kMistral, R"({"sliding_window": 8, "layer_types":
      ["full_attention", "full_attention", "full_attention"]})");
  EXPECT_EQ(windows(full), (Windows{0, 0, 0}));
  EXPECT_EQ(windows(parse_model_config(to_config_json(full, DType::f32), "again")),
            (Windows{0, 0, 0}));
  expect_refused(kMistral, R"({"sliding_window": null, )" + some,
                 {"layer_types", "a sliding_window"});
  expect_refused(kMistral, R"({"layer_types": ["full_attention"]})", {"layer_types", "3"});
}

TEST(Families, PaddingTokens) {
  EXPECT_EQ(parse(kLlama).padding_token, std::nullopt);
  EXPECT_EQ(parse(kLlama, R"({"pad_token_id": 0})").padding_token, 0);
  EXPECT_EQ(parse(kLlama, R"({"pad_token_id": -1})").padding_token, 256);
  expect_refused(kLlama, R"({"pad_token_id": 257})", {"pad_token_id", "257"});
  const auto written = [](const ModelConfig& config) {
    return json_of(to_config_json(config, DType::f32)).find("pad_token_id")->dump();
  };
  ModelConfig config = parse(kLlama, R"({"pad_token_id": -1})");
  EXPECT_EQ(written(config), "-1");
  config.padding_token = 4;
  EXPECT_EQ(written(config), "4");
  config.padding_token.reset();
  EXPECT_EQ(written(config), "null");
}

TEST(Families, RopeScalingsInEverySpelling) {
  const std::string keys = R"("factor": 4.0, "original_max_position_embeddings": 32)";
  for (const std::string& text :
       {R"({"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, )" + keys + "}}",
        R"({"rope_theta": 10000.0, "rope_scaling": {"type": "yarn", )" + keys + "}}",
        R"({"rope_scaling": {"rope_type": "yarn", "factor": null,
            "original_max_position_embeddings": 512}})" +
            std::string()}) {
    const ModelConfig config = parse(kLlama, text);
    EXPECT_EQ(config.rope.type, Type::yarn) << text;
    EXPECT_DOUBLE_EQ(config.rope.factor, 4.0) << text;
    EXPECT_EQ(config.remarks.size(), 0u) << text;
  }
  const ModelConfig full = parse(kLlama, R"({"rope_scaling": {"rope_type": "yarn", "factor": 2,
      "attention_factor": 1.25, "beta_fast": 16, "beta_slow": 0, "mscale": 1, "mscale_all_dim": 2,
      "truncate": false}})");
  EXPECT_EQ(full.rope.attention_factor, 1.25);
  EXPECT_EQ(full.rope.beta_fast, 16);
  EXPECT_EQ(full.rope.beta_slow, 1) << "0 is the default, as in transformers";
  EXPECT_EQ(full.rope.mscale_all_dim, 2);
  EXPECT_FALSE(full.rope.truncate);
  EXPECT_EQ(full.rope.original_max_positions, 2048);
  EXPECT_EQ(parse_model_config(to_config_json(full, DType::f32), "again").rope, full.rope);
  // The original context may stand at the top.
  const ModelConfig top = parse(kLlama, R"({"original_max_position_embeddings": 16, "head_dim": 4,
      "max_position_embeddings": 64, "rope_scaling": {"rope_type": "longrope",
      "short_factor": [1, 2], "long_factor": [3.5, 4]}})");
  EXPECT_EQ(top.rope.original_max_positions, 16);
  EXPECT_DOUBLE_EQ(top.rope.factor, 4.0) << "the ratio of the contexts";
  EXPECT_EQ(top.rope.long_factor, (std::vector<double>{3.5, 4}));
  EXPECT_EQ(parse_model_config(to_config_json(top, DType::f32), "again").rope, top.rope);
}

TEST(Families, RopeThatContradictsItselfIsRefusedWithBothValues) {
  for (const char* dict : {"rope_parameters", "rope_scaling"}) {
    const std::string begin = concat(R"({"rope_theta": 5000, "original_max_position_embeddings": 16,
        "max_position_embeddings": 64, ")",
                                     dict, R"(": {"factor": 4, )");
    EXPECT_EQ(parse(kLlama, begin + R"("rope_type": "yarn", "type": "yarn", "rope_theta": 5000.0,
        "original_max_position_embeddings": 16}})")
                  .rope.original_max_positions,
              16);
    expect_refused(kLlama, begin + R"("rope_type": "yarn", "type": "linear"}})",
                   {concat(dict, ".type"), "linear", "rope_type", "yarn"});
    expect_refused(kLlama, begin + R"("rope_type": "linear", "rope_theta": 7000}})",
                   {"rope_theta", "5000", concat(dict, ".rope_theta"), "7000"});
    expect_refused(kLlama,
                   begin + R"("rope_type": "yarn", "original_max_position_embeddings": 32}})",
                   {"original_max_position_embeddings", "16", "32"});
  }
}

TEST(Families, RopeScalingGoesBeforeRopeParameters) {
  const ModelConfig config = parse(kLlama, R"({"rope_scaling": {"type": "linear", "factor": 4},
      "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}})");
  EXPECT_EQ(config.rope.type, Type::linear);
  ASSERT_EQ(config.remarks.size(), 1u);
  EXPECT_NE(config.remarks[0].find("rope_parameters"), std::string::npos);
  EXPECT_EQ(parse(kLlama, R"({"rope_scaling": {},
      "rope_parameters": {"rope_type": "linear", "factor": 4}})")
                .rope.type,
            Type::linear);
  // What it says there is looked at all the same.
  expect_refused(kLlama, R"({"rope_scaling": {"type": "linear", "factor": 4},
      "rope_parameters": {"rope_type": "su"}})",
                 {"rope_parameters.rope_type", "su"});
}

TEST(Families, RotationOfAPart) {
  for (const char* text :
       {R"({"partial_rotary_factor": 0.5})",
        R"({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}})"}) {
    const ModelConfig config = parse(kLlama, text);
    EXPECT_EQ(config.rope, RopeConfig()) << "as transformers has it in this family";
    ASSERT_EQ(config.remarks.size(), 1u) << text;
    EXPECT_NE(config.remarks[0].find("partial_rotary_factor 0.5"), std::string::npos);
  }
  const ModelConfig part =
      parse(kLlama,
            R"({"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.5}})");
  EXPECT_EQ(part.rope.rotated, 0.5);
  EXPECT_EQ(part.rope.factor, 1.0);
  expect_refused(kLlama, R"({"rope_scaling": {"type": "linear", "factor": 2,
      "partial_rotary_factor": 0.5}})",
                 {"rope_scaling.partial_rotary_factor", "0.5", "proportional"});
}

TEST(Families, HostileRopesAreRefused) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {R"({"rope_type": "yarn"})", "factor"},
      {R"({"rope_type": "yarn", "factor": 0})", "factor"},
      {R"({"rope_type": "yarn", "factor": 2, "rope_theta": 1.0})", "rope_theta"},
      {R"({"rope_type": "yarn", "factor": 2, "beta_fast": -1})", "beta_fast"},
      {R"({"rope_type": "yarn", "factor": 2, "mscale": -1, "mscale_all_dim": 1})", "mscale"},
      {R"({"rope_type": "yarn", "factor": 2, "attention_factor": "1"})", "attention_factor"},
      {R"({"rope_type": "yarn", "factor": 2, "truncate": 1})", "truncate"},
      {R"({"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 0})", "original"},
      {R"({"rope_type": "longrope", "factor": 2, "long_factor": [1]})", "short_factor"},
      {R"({"rope_type": "longrope", "factor": 2, "short_factor": [1], "long_factor": [1]})",
       "head_dim / 2"},
      {R"({"rope_type": "longrope", "factor": 2, "short_factor": ["a"], "long_factor": [1]})",
       "numbers"},
      {R"({"rope_type": "longrope", "factor": null, "original_max_position_embeddings": 0,
           "short_factor": [1], "long_factor": [1]})",
       "original"},
      {R"({"rope_type": "proportional", "partial_rotary_factor": 1.5})", "partial_rotary_factor"},
      {R"({"full_attention": {"rope_type": "default"}})", "full_attention"}};
  for (const auto& [rope, part] : bad)
    expect_refused(kLlama, R"({"rope_parameters": )" + rope + "}", {"dir/config.json", part});
}

TEST(Families, KeysThatSayNothingHereAreWrittenAgain) {
  const ModelConfig config = parse(kLlama, R"({"pad_token_id": 0, "auto_map": {"a": ["b", null]},
      "transformers_version": "4.30.0", "pretraining_tp": 2, "torch_dtype": "float16",
      "rope_scaling": {"type": "linear", "factor": 2, "origin": "somewhere"}, "use_cache": false})");
  const JsonValue written = json_of(to_config_json(config, DType::bf16));
  const auto expect = [&](const char* key, const char* value) {
    const JsonValue* found = written.find_path(key);
    ASSERT_NE(found, nullptr) << key;
    EXPECT_EQ(found->dump(), value) << key;
  };
  expect("pad_token_id", "0");
  expect("auto_map", R"({"a": ["b", null]})");
  expect("transformers_version", "\"4.30.0\"");
  expect("pretraining_tp", "2");
  expect("use_cache", "false");
  expect("torch_dtype", "\"bfloat16\"");  // what the export is
  expect("dtype", "\"bfloat16\"");
  expect("rope_parameters.origin", "\"somewhere\"");
  EXPECT_EQ(written.find("eos_token_id"), nullptr) << "absent is transformers' default, not null";
  ModelConfig tied = config;
  tied.tied = true;
  EXPECT_TRUE(json_of(to_config_json(tied, DType::f32)).find("tie_word_embeddings")->as_bool());
}

}  // namespace
}  // namespace zero3d
