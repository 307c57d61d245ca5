// Model folders in and out: names and shapes are matched with what the model declares, and an
// export appears whole or not at all.
#include "zero3d/models/hf_folder.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/safetensors.h"
#include "zero3d/models/build.h"
#include "zero3d/models/model_config.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::read_file;
using test::TemporaryFolder;

constexpr const char* kConfig = R"({"model_type": "gpt2"})";

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' not in: " << text;
}

ParameterSpec spec(const std::string& name, const Shape& shape) {
  ParameterSpec parameter;
  parameter.name = name;
  parameter.shape = shape;
  return parameter;
}

View view_of(std::vector<float>& values) {
  return View(reinterpret_cast<std::byte*>(values.data()), DType::f32,
              Shape{static_cast<std::int64_t>(values.size())});
}

std::vector<float> values_of(const ParameterSource& source, const ParameterSpec& parameter) {
  std::vector<float> values(static_cast<std::size_t>(parameter.shape.numel()));
  const GlobalRun all{0, static_cast<std::int64_t>(values.size()), 0};
  source.read(parameter, {&all, 1}, view_of(values));
  return values;
}

/// A folder of the given tensors; element i of tensor k is k + i / 64.
void make_folder(const fs::path& path, const std::vector<ParameterSpec>& parameters,
                 DType dtype = DType::f32) {
  fs::create_directories(path);
  SafetensorsWriter writer((path / "model.safetensors").string(),
                           exported_tensors(parameters, dtype));
  float base = 0;
  for (const ParameterSpec& parameter : parameters) {
    std::vector<float> values(static_cast<std::size_t>(parameter.shape.numel()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = base + static_cast<float>(i) / 64;
    writer.write(parameter.name, view_of(values));
    base += 1;
  }
  writer.commit();
}

TEST(OpenFolder, ReadsRunsOfRecordedModels) {
  for (const char* model : {"gpt2-odd", "gpt2-tiny", "gpt2-untied-4", "llama-mha-odd",
                            "llama-tied-rope3", "llama-tiny", "qwen2-tiny"}) {
    const std::string folder = std::string("tests/golden/models/") + model;
    const auto parameters = list_parameters(*build_model(read_model_config(folder)));
    const auto source = open_folder(folder, parameters);
    const SafetensorsFile file(folder + "/model.safetensors");
    for (const ParameterSpec& parameter : parameters) {
      const std::int64_t count = parameter.shape.numel();
      std::vector<float> expected(static_cast<std::size_t>(count));
      file.read(*file.find(parameter.name), 0, view_of(expected));
      // Ever longer runs, backwards and apart from each other.
      std::vector<GlobalRun> runs;
      for (std::int64_t first = count, length = 1; first > 0; first -= length + 2, length += 3) {
        length = std::min(length, first);
        runs.push_back({first - length, length,
                        runs.empty() ? 1 : runs.back().offset + runs.back().count + 1});
      }
      std::vector<float> read(static_cast<std::size_t>(2 * count), -1.0f), wanted = read;
      for (const GlobalRun& run : runs)
        std::copy_n(expected.begin() + run.global_first, run.count, wanted.begin() + run.offset);
      source->read(parameter, runs, view_of(read));
      EXPECT_EQ(read, wanted) << parameter.name;
    }
    EXPECT_THROW(values_of(*source, spec("other", Shape{1})), Error);
  }
}

TEST(OpenFolder, NamesMatchWithAndWithoutPrefix) {
  TemporaryFolder folder;
  const std::vector<ParameterSpec> full = {spec("transformer.wte.weight", Shape{5, 2}),
                                           spec("transformer.h.0.ln_1.bias", Shape{2}),
                                           spec("lm_head.weight", Shape{5, 2})};
  const std::vector<ParameterSpec> bare = {spec("wte.weight", Shape{5, 2}),
                                           spec("h.0.ln_1.bias", Shape{2}),
                                           spec("lm_head.weight", Shape{5, 2})};
  make_folder(folder.path() / "full", full);
  make_folder(folder.path() / "bare", bare, DType::bf16);
  for (const auto& [name, parameters] : {std::pair{"full", &bare}, {"bare", &full}}) {
    const auto source = open_folder(folder.file(name), *parameters);
    for (std::size_t k = 0; k < 3; ++k) {
      EXPECT_EQ(values_of(*source, (*parameters)[k])[1], static_cast<float>(k) + 1.0f / 64);
    }
  }
  make_folder(folder.path() / "llama", {spec("embed_tokens.weight", Shape{3})});
  EXPECT_NO_THROW(open_folder(folder.file("llama"), {spec("model.embed_tokens.weight", Shape{3})}));
  make_folder(folder.path() / "twice", {full[0], bare[0], full[1], full[2]});
  expect_has(message_of<IoError>([&] { open_folder(folder.file("twice"), full); }),
             "'transformer.wte.weight' and 'wte.weight' name the same parameter");
}

TEST(OpenFolder, AllMismatchesInOneMessage) {
  TemporaryFolder folder;
  make_folder(folder.path(), {spec("a", Shape{2}), spec("b", Shape{2, 3}), spec("c", Shape{1})});
  std::vector<ParameterSpec> model = {spec("a", Shape{2}), spec("b", Shape{3, 2}),
                                      spec("missing.1", Shape{1}), spec("missing.2", Shape{1})};
  model.push_back(model.back());
  const std::string message =
      message_of<IoError>([&] { open_folder(folder.path().string(), model); });
  expect_has(message, folder.path().string());
  expect_has(message, "'b' has shape [2, 3], the model expects [3, 2]");
  expect_has(message, "'missing.1', 'missing.2'");
  expect_has(message, "1 in the folder but not in the model: 'c'");
  // Tied parameters that disagree cannot both fit.
  expect_has(message_of<IoError>([&] {
               open_folder(folder.path().string(), {model[0], spec("a", Shape{3}),
                                                    spec("b", Shape{2, 3}), spec("c", Shape{1})});
             }),
             "'a' has shape [2], the model expects [3]");
}

TEST(OpenFolder, RefusesIntegersAndDamage) {
  TemporaryFolder folder;
  SafetensorsWriter writer(folder.file("model.safetensors"), {{"a", Shape{2}, DType::i32}});
  std::int32_t two[2] = {};
  writer.write("a", View(reinterpret_cast<std::byte*>(two), DType::i32, Shape{2}));
  writer.commit();
  const std::vector<ParameterSpec> model = {spec("a", Shape{2})};
  expect_has(message_of<IoError>([&] { open_folder(folder.path().string(), model); }),
             "'a' has dtype I32, expected F32");
  folder.write("model.safetensors", "x");
  expect_has(message_of<IoError>([&] { open_folder(folder.path().string(), model); }),
             "model.safetensors: truncated");
}

class Export : public ::testing::Test {
 protected:
  /// Writes the parameters (element i of tensor k is k + i / 64) in slices of `slice` elements.
  void write_all(FolderWriter& writer, std::int64_t slice = 1 << 20) {
    for (std::size_t k = 0; k < parameters_.size(); ++k) {
      std::vector<float> values(static_cast<std::size_t>(parameters_[k].shape.numel()));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(k) + static_cast<float>(i) / 64;
      }
      const auto count = static_cast<std::int64_t>(values.size());
      for (std::int64_t first = 0; first < count; first += slice) {
        writer.write(parameters_[k].name,
                     view_of(values).flat(first, std::min(slice, count - first)));
      }
    }
  }
  void expect_exported(const std::string& path) {
    const auto source = open_folder(path, parameters_);
    for (std::size_t k = 0; k < parameters_.size(); ++k) {
      const auto values = values_of(*source, parameters_[k]);
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], static_cast<float>(k) + static_cast<float>(i) / 64);
      }
    }
  }
  std::vector<std::string> names(const fs::path& path) {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(path)) {
      found.push_back(entry.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  TemporaryFolder folder_;
  std::vector<ParameterSpec> parameters_ = {spec("transformer.wte.weight", Shape{13, 2}),
                                            spec("transformer.h.0.ln.bias", Shape{7}),
                                            spec("transformer.ln_f.weight", Shape{3})};
};

TEST_F(Export, IsReadBack) {
  const std::string path = folder_.file("deeper/out/");
  FolderWriter writer(path, kConfig, exported_tensors(parameters_, DType::f32));
  write_all(writer, 5);
  EXPECT_FALSE(fs::exists(path));
  writer.commit();
  expect_exported(path);
  EXPECT_EQ(read_file(fs::path(path) / "config.json"), kConfig);
  EXPECT_EQ(SafetensorsFile(path + "model.safetensors").metadata().at("format"), "pt");
  EXPECT_EQ(names(folder_.path() / "deeper"), std::vector<std::string>{"out"});
  EXPECT_EQ(names(path), (std::vector<std::string>{"config.json", "model.safetensors"}));
}

TEST_F(Export, CutsShards) {
  const std::string path = folder_.file("out");
  FolderWriter writer(path, kConfig, exported_tensors(parameters_, DType::bf16), 20);
  write_all(writer, 4);
  writer.commit();
  EXPECT_EQ(names(path), (std::vector<std::string>{
                             "config.json", "model-00001-of-00002.safetensors",
                             "model-00002-of-00002.safetensors", "model.safetensors.index.json"}));
  expect_exported(path);
  // One file again: none of the old shards stays behind.
  FolderWriter again(path, kConfig, exported_tensors(parameters_, DType::f32));
  write_all(again);
  again.commit();
  EXPECT_EQ(names(path), (std::vector<std::string>{"config.json", "model.safetensors"}));
  expect_exported(path);
}

TEST_F(Export, NamesTiedParametersOnce) {
  const auto tensors =
      exported_tensors({parameters_[0], parameters_[1], parameters_[0]}, DType::f16);
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[1].name, parameters_[1].name);
  EXPECT_EQ(tensors[1].dtype, DType::f16);
}

TEST_F(Export, ReplacesAModelAndKeepsItsOtherFiles) {
  const fs::path path = folder_.path() / "model";
  make_folder(path, {spec("old", Shape{2})});
  std::ofstream(path / "config.json") << R"({"architectures": ["X"], "old": true})";
  std::ofstream(path / "tokenizer.json") << "tokens";
  fs::create_directory(path / "sub");
  std::ofstream(path / "sub" / "note") << "note";
  fs::create_symlink("tokenizer.json", path / "link");
  fs::create_directory_symlink(path, folder_.path() / "alias");
  {
    const auto source = open_folder(path.string(), {spec("old", Shape{2})});
    FolderWriter writer(folder_.file("alias"), kConfig, exported_tensors(parameters_, DType::f32));
    write_all(writer);
    EXPECT_NE(read_file(path / "config.json"), kConfig);
    writer.commit();
    EXPECT_EQ(values_of(*source, spec("old", Shape{2}))[1], 1.0f / 64);  // still open
  }
  expect_exported(path.string());
  EXPECT_EQ(read_file(path / "config.json"), kConfig);
  EXPECT_EQ(read_file(path / "tokenizer.json"), "tokens");
  EXPECT_EQ(read_file(path / "link"), "tokens");
  EXPECT_TRUE(fs::is_symlink(path / "link"));
  EXPECT_EQ(read_file(path / "sub" / "note"), "note");
  EXPECT_TRUE(fs::is_symlink(folder_.path() / "alias"));
  EXPECT_EQ(names(folder_.path()), (std::vector<std::string>{"alias", "model"}));
}

TEST_F(Export, FillsAnEmptyFolder) {
  fs::create_directory(folder_.path() / "out");
  FolderWriter writer(folder_.file("out"), kConfig, exported_tensors(parameters_, DType::f32));
  write_all(writer);
  writer.commit();
  expect_exported(folder_.file("out"));
}

TEST_F(Export, RefusesFoldersThatAreNoModels) {
  const auto refused = [&](const std::string& path) {
    return message_of<IoError>(
        [&] { FolderWriter(path, kConfig, exported_tensors(parameters_, DType::f32)); });
  };
  fs::create_directory(folder_.path() / "home");
  folder_.write("home/thesis.txt", "years of work");
  expect_has(refused(folder_.file("home")), "is not replaced");
  folder_.write("home/config.json", "{\"colour\": 1}");
  expect_has(refused(folder_.file("home")), "is not replaced");
  folder_.write("home/config.json", "[not json");
  expect_has(refused(folder_.file("home")), "is not replaced");
  expect_has(refused(folder_.write("file", "x")), "expected a folder");
  expect_has(refused(folder_.file("file/below")), "file/below");
  EXPECT_EQ(names(folder_.path()), (std::vector<std::string>{"file", "home"}));
}

/// Neither what came to the place nor the export is lost, nor what an earlier one left aside.
TEST_F(Export, APlaceThatIsTakenMeanwhileLeavesItAside) {
  const std::string path = folder_.file("out");
  for (const char* kept : {"out.kept", "out.kept2", "out.kept3"}) {
    fs::remove_all(path);
    FolderWriter writer(path, kConfig, exported_tensors(parameters_, DType::f32));
    write_all(writer);
    fs::create_directory(path);
    folder_.write("out/thesis.txt", "years of work");
    const std::string message = message_of<Error>([&] { writer.commit(); });
    expect_has(message, "is not replaced");
    expect_has(message, concat("the complete export is kept as ", folder_.file(kept)));
    expect_exported(folder_.file(kept));
  }
  EXPECT_EQ(read_file(fs::path(path) / "thesis.txt"), "years of work");
  EXPECT_EQ(names(folder_.path()),
            (std::vector<std::string>{"out", "out.kept", "out.kept2", "out.kept3"}));
}

TEST_F(Export, APlaceThatIsTakenAlreadyMayBeLeftToTheEnd) {
  const std::string path = folder_.file("out/");
  fs::create_directory(path);
  folder_.write("out/thesis.txt", "years of work");
  const auto open = [&] {
    return FolderWriter(path, kConfig, exported_tensors(parameters_, DType::f32),
                        FolderWriter::kMaxShardBytes, FolderWriter::Check::at_commit);
  };
  {
    FolderWriter writer = open();
    write_all(writer);
    expect_has(message_of<Error>([&] { writer.commit(); }), folder_.file("out.kept"));
    expect_exported(folder_.file("out.kept"));
  }
  FolderWriter writer = open();
  write_all(writer);
  fs::remove_all(path);
  writer.commit();
  expect_exported(path);
  EXPECT_EQ(names(folder_.path()), (std::vector<std::string>{"out", "out.kept"}));
}

TEST_F(Export, LeavesNothingWithoutCommit) {
  {
    FolderWriter writer(folder_.file("out"), kConfig, exported_tensors(parameters_, DType::f32));
    EXPECT_THROW(writer.commit(), Error);
    std::vector<float> values(26);
    EXPECT_THROW(writer.write("transformer.ln_f.weight", view_of(values)), Error);
    writer.write("transformer.wte.weight", view_of(values));
    EXPECT_THROW(writer.commit(), Error);
  }
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(Export, AFullDiskLeavesTheOldModel) {
  parameters_.push_back(spec("big", Shape{4000}));
  const fs::path path = folder_.path() / "model";
  make_folder(path, {spec("old", Shape{2})});
  std::ofstream(path / "config.json") << kConfig;
  rlimit old = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {8192, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = message_of<IoError>([&] {
    FolderWriter writer(path.string(), kConfig, exported_tensors(parameters_, DType::f32));
    write_all(writer);
    writer.commit();
  });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  expect_has(message, "File too large");
  EXPECT_EQ(names(folder_.path()), std::vector<std::string>{"model"});
  EXPECT_NO_THROW(open_folder(path.string(), {spec("old", Shape{2})}));
}

}  // namespace
}  // namespace zero3d
