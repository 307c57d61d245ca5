// What a model folder holds beside the model's parameters: a head that is tied, buffers of older
// releases, names of wrappers, and the files that go with an export.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/models/build.h"
#include "zero3d/models/hf_folder.h"
#include "zero3d/models/rope.h"
#include "zero3d/tests/models/vectors.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::read_file;
using test::TemporaryFolder;

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' not in: " << text;
}

struct NamedValues {
  std::string name;
  Shape shape;
  std::vector<float> values;
  bool bytes = false;  ///< Of uint8.
};

NamedValues drawn(const std::string& name, const Shape& shape, std::uint64_t stream) {
  return {name, shape, test::normals(shape.numel(), stream)};
}

void write_tensors(const fs::path& folder, const std::vector<NamedValues>& tensors,
                   DType dtype = DType::f32) {
  fs::create_directories(folder);
  std::vector<TensorDeclaration> declared;
  for (const NamedValues& tensor : tensors)
    declared.push_back({tensor.name, tensor.shape, tensor.bytes ? DType::u8 : dtype});
  SafetensorsWriter writer((folder / "model.safetensors").string(), declared);
  for (NamedValues tensor : tensors) {
    if (tensor.bytes) {
      const std::vector<std::uint8_t> bytes(tensor.values.begin(), tensor.values.end());
      writer.write(tensor.name, ConstView(reinterpret_cast<const std::byte*>(bytes.data()),
                                          DType::u8, tensor.shape));
      continue;
    }
    writer.write(tensor.name, ConstView(reinterpret_cast<const std::byte*>(tensor.values.data()),
                                        DType::f32, tensor.shape));
  }
  writer.commit();
}

/// A folder of a small model with drawn weights; `edit` may change its tensors.
class ModelFolder : public testing::Test {
 protected:
  explicit ModelFolder(ModelConfig config = test::small_llama()) : config_(std::move(config)) {
    config_.tied = true;
    for (const ParameterSpec& spec : list_parameters(*build_model(config_)))
      tensors_.push_back(drawn(spec.name, spec.shape, tensors_.size()));
  }
  NamedValues& tensor(const std::string& name) {
    return *std::ranges::find(tensors_, name, &NamedValues::name);
  }
  std::unique_ptr<ParameterSource> open(DType dtype = DType::f32) {
    write_tensors(folder_.path(), tensors_, dtype);
    config_.remarks.clear();
    return open_model_folder(folder_.path().string(), config_);
  }
  std::string refusal() {
    return message_of<IoError>([&] { open(); });
  }
  /// Element 3 of a parameter.
  float value(const ParameterSource& source, const std::string& name) {
    for (const ParameterSpec& spec : list_parameters(*build_model(config_))) {
      if (spec.name != name) continue;
      float read = 0;
      const GlobalRun run{3, 1, 0};
      source.read(spec, {&run, 1}, View(reinterpret_cast<std::byte*>(&read), DType::f32, Shape{1}));
      return read;
    }
    ADD_FAILURE() << name;
    return 0;
  }

  TemporaryFolder folder_;
  ModelConfig config_;
  std::vector<NamedValues> tensors_;
};

constexpr const char* kTable = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

TEST_F(ModelFolder, AnEqualHeadIsTied) {
  tensor(kTable).values[5] = 0.0f;
  tensors_.push_back(tensor(kTable));
  tensors_.back().name = kHead;
  tensors_.back().values[5] = -0.0f;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto source = open(dtype);
    EXPECT_TRUE(config_.tied);
    EXPECT_EQ(config_.remarks, std::vector<std::string>());
  }
  EXPECT_NO_THROW(open_folder(folder_.path().string(), list_parameters(*build_model(config_))));
}

TEST_F(ModelFolder, AnotherHeadIsNotTiedAndThatIsSaid) {
  tensors_.push_back(drawn(kHead, tensor(kTable).shape, 99));
  const auto parameters = list_parameters(*build_model(config_));
  const auto source = open();
  EXPECT_FALSE(config_.tied);
  EXPECT_EQ(value(*source, kHead), tensor(kHead).values[3]);
  EXPECT_EQ(value(*source, kTable), tensor(kTable).values[3]);
  ASSERT_EQ(config_.remarks.size(), 1u);
  for (const char* part : {"tie_word_embeddings", kHead, kTable})
    expect_has(config_.remarks[0], part);
  expect_has(to_config_json(config_, DType::f32), "\"tie_word_embeddings\": false");
  // Who has decided that they are tied is told.
  expect_has(message_of<IoError>([&] { open_folder(folder_.path().string(), parameters); }),
             "'lm_head.weight' and 'model.embed_tokens.weight' differ");
}

TEST_F(ModelFolder, WeightFilesThatAreNotReadAreNamed) {
  const std::vector<std::string> others = {"adapter_model.safetensors",
                                           "model-00002-of-00002.safetensors",
                                           "model.safetensors.index.json"};
  for (const std::string& name : others) folder_.write(name, "{}");
  open();
  ASSERT_EQ(config_.remarks.size(), 1u);
  for (const std::string& name : others) expect_has(config_.remarks[0], name);
}

TEST_F(ModelFolder, OneElementMakesAnotherHead) {
  NamedValues head = tensor(kTable);
  head.name = kHead;
  head.values.back() += 1;
  tensors_.push_back(head);
  open();
  EXPECT_FALSE(config_.tied);
}

TEST_F(ModelFolder, AHeadOfAnotherShapeIsRefusedWithBoth) {
  tensors_.push_back(drawn(kHead, Shape{config_.vocab_size + 3, config_.hidden_size}, 99));
  const std::string message = refusal();
  for (const char* part : {"'lm_head.weight' has shape [56, 10]", "[53, 10]", "ties them"})
    expect_has(message, part);
}

TEST_F(ModelFolder, ATiedFolderWithTheHeadAloneTakesIt) {
  tensor(kTable).name = kHead;
  const auto source = open();
  EXPECT_TRUE(config_.tied);
  EXPECT_EQ(value(*source, kTable), tensor(kHead).values[3]);
  config_.tied = false;
  expect_has(refusal(), "1 missing from the folder: 'model.embed_tokens.weight'");
}

TEST_F(ModelFolder, RotaryTablesAreCompared) {
  NamedValues table = {"model.layers.0.self_attn.rotary_emb.inv_freq", Shape{config_.head_dim / 2},
                       rope_inverse_frequencies(config_.rope, config_.head_dim, 32, 32)};
  tensors_.push_back(table);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    open(dtype);
    EXPECT_EQ(config_.remarks, std::vector<std::string>()) << name_of(dtype);
  }
  config_.rope.type = RopeConfig::Type::linear;  // some releases saved them before scaling
  config_.rope.factor = 4;
  open();
  EXPECT_EQ(config_.remarks, std::vector<std::string>());
  config_.rope.theta = 5e5;
  open();
  ASSERT_EQ(config_.remarks.size(), 1u);
  for (const char* part : {"1 tensors", "not the frequencies", "layers.0.self_attn.rotary_emb"})
    expect_has(config_.remarks[0], part);
}

class Gpt2Folder : public ModelFolder {
 protected:
  Gpt2Folder() : ModelFolder(test::small_gpt2()) {}
};

TEST_F(Gpt2Folder, MasksAreCompared) {
  NamedValues mask = {"h.0.attn.bias", Shape{1, 1, 3, 3}, {1, 0, 0, 1, 1, 0, 1, 1, 1}};
  tensors_.push_back(mask);
  tensors_.push_back({"h.0.attn.masked_bias", Shape{}, {-1e4f}});
  for (const bool bytes : {true, false}) {  // later releases saved flags
    tensor("h.0.attn.bias").bytes = bytes;
    open();
    EXPECT_EQ(config_.remarks, std::vector<std::string>());
  }
  tensor("h.0.attn.bias").values[1] = 1;
  tensor("h.0.attn.masked_bias").values[0] = 0;
  open();
  test::LogCapture log;
  open_folder(folder_.path().string(), list_parameters(*build_model(config_)));
  EXPECT_EQ(log.with("'h.0.attn.bias'").size(), 1u) << "who asks for parameters alone is warned";
  ASSERT_EQ(config_.remarks.size(), 2u);
  tensor("h.0.attn.bias").bytes = true;
  std::vector<std::string> remarks = config_.remarks;
  open();
  EXPECT_EQ(config_.remarks, remarks);
  expect_has(config_.remarks[0], "not the causal mask that the model has): 'h.0.attn.bias'");
  expect_has(config_.remarks[1], "'h.0.attn.masked_bias'");
  // Whatever else nobody takes is refused as before.
  tensors_.push_back(drawn("h.0.attn.rotary", Shape{2}, 3));
  expect_has(refusal(), "1 in the folder but not in the model: 'h.0.attn.rotary'");
}

TEST_F(ModelFolder, NamesOfWrappersAreNamed) {
  for (const auto& [prefix, wrapper] :
       {std::pair<std::string, std::string>("module.", "DistributedDataParallel"),
        {"_orig_mod.", "torch.compile"}}) {
    const std::vector<NamedValues> kept = tensors_;
    for (NamedValues& tensor : tensors_) tensor.name = prefix + tensor.name;
    const std::string message = refusal();
    expect_has(message, concat("every name begins with \"", prefix, "\""));
    expect_has(message, wrapper);
    tensors_ = kept;
  }
}

TEST(ModelFolders, WhatIsNoModelIsNamed) {
  TemporaryFolder folder;
  const std::string path = folder.path().string();
  const auto weights = [&] { return message_of<IoError>([&] { open_folder(path, {}); }); };
  const auto config = [&] { return message_of<IoError>([&] { read_model_config(path); }); };
  folder.write("adapter_config.json", "{}");
  expect_has(config(), "adapter (LoRA)");
  expect_has(weights(), "adapter (LoRA)");
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123456\n";
  folder.write("model.safetensors", pointer);
  folder.write("config.json", pointer);
  expect_has(weights(), "git-lfs pointer");
  expect_has(config(), "git-lfs pointer");
}

TEST(CarriedFiles, TokenizersGoWithAModel) {
  TemporaryFolder folder;
  const fs::path from = folder.path() / "from", to = folder.path() / "to";
  fs::create_directories(from / "onnx");
  fs::create_directories(to);
  const std::vector<std::string> carried = {"chat_template.jinja",
                                            "generation_config.json",
                                            "merges.txt",
                                            "special_tokens_map.json",
                                            "tokenizer.json",
                                            "tokenizer.model",
                                            "tokenizer_config.json",
                                            "vocab.json"};
  for (const std::string& name : carried) folder.write("from/" + name, "of " + name);
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json",
                           "pytorch_model.bin", "README.md", ".gitattributes"})
    folder.write(concat("from/", name), "x");
  fs::create_symlink("tokenizer.json", from / "tokenizer-link.json");
  fs::create_symlink("nowhere", from / "added_tokens.json");
  folder.write("to/vocab.json", "old");
  EXPECT_EQ(
      carry_model_files(from.string(), to.string()),
      (std::vector<std::string>{"README.md", "added_tokens.json", "onnx", "pytorch_model.bin"}));
  for (const std::string& name : carried) EXPECT_EQ(read_file(to / name), "of " + name);
  EXPECT_EQ(read_file(to / "tokenizer-link.json"), "of tokenizer.json");
  EXPECT_FALSE(fs::is_symlink(to / "tokenizer-link.json"));
  EXPECT_FALSE(fs::exists(to / "config.json"));
  EXPECT_EQ(carry_model_files("llama-tiny", to.string()), std::vector<std::string>());
  EXPECT_EQ(carry_model_files(to.string(), to.string()), std::vector<std::string>());
}

TEST(CarriedFiles, ThatWereNeverFetchedAreToldOfAndStayBehind) {
  TemporaryFolder folder;
  for (const char* name : {"model", "out"}) fs::create_directories(folder.path() / name);
  folder.write("model/tokenizer.json",
               "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n");
  folder.write("model/merges.txt", "a b");
  test::LogCapture log;
  EXPECT_EQ(carry_model_files(folder.file("model"), folder.file("out")),
            std::vector<std::string>{"tokenizer.json"});
  EXPECT_FALSE(fs::exists(folder.path() / "out" / "tokenizer.json"));
  EXPECT_TRUE(fs::exists(folder.path() / "out" / "merges.txt"));
  EXPECT_EQ(log.with("tokenizer.json is a git-lfs pointer").size(), 1u);
}

TEST(CarriedFiles, GoBeforeThoseOfAReplacedExport) {
  TemporaryFolder folder;
  for (const char* name : {"model", "out"}) fs::create_directories(folder.path() / name);
  folder.write("model/tokenizer.json", "new");
  folder.write("out/config.json", R"({"model_type": "gpt2"})");
  folder.write("out/tokenizer.json", "old");
  folder.write("out/notes.txt", "kept");
  FolderWriter writer(folder.file("out"), R"({"model_type": "gpt2"})",
                      {{"a", Shape{1}, DType::f32}});
  float one = 1;
  writer.write("a", ConstView(reinterpret_cast<const std::byte*>(&one), DType::f32, Shape{1}));
  EXPECT_EQ(writer.carry(folder.file("model")), std::vector<std::string>());
  writer.commit();
  EXPECT_EQ(read_file(folder.path() / "out" / "tokenizer.json"), "new");
  EXPECT_EQ(read_file(folder.path() / "out" / "notes.txt"), "kept");
}

/// Every recorded folder, written and read again, is the same model.
TEST(RoundTrip, RecordedFoldersStayTheSameModel) {
  for (const char* name : {"gemma-tiny", "mistral-window", "qwen3-tiny", "llama-tied-rope3"}) {
    const std::string recorded = concat("tests/golden/models/", name);
    ModelConfig config = read_model_config(recorded);
    const auto weights = open_model_folder(recorded, config);
    const auto parameters = list_parameters(*build_model(config));
    TemporaryFolder folder;
    const std::string path = folder.file("out");
    FolderWriter writer(path, to_config_json(config, DType::f32),
                        exported_tensors(parameters, DType::f32));
    const auto values = [](const ParameterSource& source, const ParameterSpec& spec) {
      std::vector<float> all(static_cast<std::size_t>(spec.shape.numel()));
      const GlobalRun run{0, spec.shape.numel(), 0};
      source.read(spec, {&run, 1},
                  View(reinterpret_cast<std::byte*>(all.data()), DType::f32, spec.shape));
      return all;
    };
    for (const ParameterSpec& spec : parameters) {
      const std::vector<float> all = values(*weights, spec);
      writer.write(spec.name, ConstView(reinterpret_cast<const std::byte*>(all.data()), DType::f32,
                                        spec.shape));
    }
    writer.commit();
    ModelConfig again = read_model_config(path);
    const auto read = open_model_folder(path, again);
    EXPECT_EQ(again.remarks, std::vector<std::string>()) << name;
    EXPECT_EQ(to_config_json(again, DType::f32), to_config_json(config, DType::f32)) << name;
    for (const ParameterSpec& spec : parameters)
      EXPECT_EQ(values(*read, spec), values(*weights, spec)) << name << " " << spec.name;
  }
}

}  // namespace
}  // namespace zero3d
