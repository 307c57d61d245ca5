// Weights that torch.save wrote, as a model's folder has them: one file or shards with an index.
#include <gtest/gtest.h>

#include "zero3d/core/error.h"
#include "zero3d/formats/safetensors_writer.h"
#include "zero3d/formats/torch_weights.h"
#include "zero3d/formats/weight_folder.h"
#include "zero3d/tests/formats/torch_writer.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d {
namespace {

using test::message_of;
using test::P;
using test::TemporaryFolder;
using test::TorchWriter;
using Floats = std::vector<float>;

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' not in: " << text;
}

class TorchWeights : public testing::Test {
 protected:
  void write(const std::string& name, const std::map<std::string, Floats>& tensors) {
    TorchWriter writer;
    P::Entries entries;
    for (const auto& [tensor, values] : tensors)
      entries.emplace_back(tensor,
                           writer.floats(values, {static_cast<std::int64_t>(values.size())}));
    folder_.write(name, writer.archive(P::ordered(entries)));
  }
  std::string refusal() {
    return message_of<IoError>([&] { WeightFolder folder(folder_.path().string()); });
  }
  static Floats values(const WeightFolder& folder, const std::string& name) {
    Floats out(static_cast<std::size_t>(folder.find(name)->entry->numel()));
    folder.read(name, 0,
                View(reinterpret_cast<std::byte*>(out.data()), DType::f32,
                     Shape{static_cast<std::int64_t>(out.size())}));
    return out;
  }
  TemporaryFolder folder_;
};

TEST_F(TorchWeights, OneFile) {
  write("pytorch_model.bin", {{"a", {1, 2}}, {"b", {3}}});
  const WeightFolder folder(folder_.path().string());
  EXPECT_EQ(folder.tensors().size(), 2u);
  EXPECT_EQ(folder.find("a")->entry->dtype_name, "F32");
  EXPECT_EQ(values(folder, "a"), (Floats{1, 2}));
  EXPECT_EQ(values(WeightFolder(folder_.file("pytorch_model.bin")), "b"), Floats{3});
}

TEST_F(TorchWeights, Shards) {
  write("pytorch_model-1.bin", {{"a", {1, 2}}});
  write("pytorch_model-2.bin", {{"b", {3}}});
  const auto index = [&](const std::string& map) {
    folder_.write("pytorch_model.bin.index.json", "{\"weight_map\":" + map + "}");
  };
  index(R"({"a":"pytorch_model-1.bin","b":"pytorch_model-2.bin"})");
  const WeightFolder folder(folder_.path().string());
  EXPECT_EQ(values(folder, "a"), (Floats{1, 2}));
  EXPECT_EQ(values(folder, "b"), Floats{3});
  index(R"({"a":"pytorch_model-2.bin","b":"pytorch_model-2.bin"})");
  expect_has(refusal(), "the index says pytorch_model-2.bin, it is not there");
  index(R"({"a":"../pytorch_model-1.bin"})");
  expect_has(refusal(), "expected the plain name of a .bin file");
}

TEST_F(TorchWeights, SafetensorsGoFirst) {
  write("pytorch_model.bin", {{"a", {1}}});
  SafetensorsWriter writer(folder_.file("model.safetensors"), {{"a", Shape{1}, DType::f32}});
  Floats two = {2};
  writer.write("a",
               ConstView(reinterpret_cast<const std::byte*>(two.data()), DType::f32, Shape{1}));
  writer.commit();
  EXPECT_EQ(values(WeightFolder(folder_.path().string()), "a"), Floats{2});
}

TEST_F(TorchWeights, RefusesOtherContents) {
  TorchWriter writer;
  folder_.write("pytorch_model.bin",
                writer.archive(P::dict({{"state_dict", P::dict({})}, {"epoch", P::integer(3)}})));
  const std::string text = refusal();
  expect_has(text, "its state_dict() alone");
  expect_has(text, "'state_dict': expected a tensor, found a dict of 0");
  expect_has(text, "'epoch': expected a tensor, found 3");
  folder_.write("pytorch_model.bin", writer.archive(P::integer(3)));
  expect_has(refusal(), "expected a module's state (state_dict()), found 3");
  const P storage = TorchWriter::storage_id(writer.storage("1234"), "FloatStorage", 1);
  folder_.write("pytorch_model.bin",
                writer.archive(P::dict({{"w", TorchWriter::tensor(storage, 0, {1 << 30}, {0})}})));
  expect_has(refusal(), "'w' repeats its elements");
  folder_.write("pytorch_model.bin", "PK\x03\x04");
  expect_has(refusal(), "no complete zip archive");
}

}  // namespace
}  // namespace zero3d
