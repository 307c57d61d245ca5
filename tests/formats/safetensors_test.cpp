// Reading safetensors files: what the format allows is read exactly, what it forbids is refused
// with a message that names it.
#include "zero3d/formats/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "zero3d/core/error.h"
#include "zero3d/formats/safetensors_header.h"
#include "zero3d/formats/safetensors_writer.h"
#include "zero3d/formats/weight_folder.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d {
namespace {

using test::message_of;
using test::TemporaryFolder;

std::string with_size(const std::string& header, const std::string& data) {
  const std::uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header + data;
}

/// What reading a file of this header and `bytes` bytes of data throws.
std::string refusal(const std::string& header, std::size_t bytes) {
  TemporaryFolder folder;
  const std::string path =
      folder.write("hostile.safetensors", with_size(header, std::string(bytes, 'x')));
  return message_of<IoError>([&] { SafetensorsFile file(path); });
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' not in: " << text;
}

template <typename T>
View view_of(std::vector<T>& values) {
  return View(reinterpret_cast<std::byte*>(values.data()), dtype_of<T>::value,
              Shape{static_cast<std::int64_t>(values.size())});
}

TEST(Safetensors, ReadsWhatAnotherWriterWrote) {
  const SafetensorsFile file("tests/golden/models/gpt2-tiny/model.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const SafetensorsEntry* entry = file.find("transformer.wte.weight");
  ASSERT_NE(entry, nullptr);
  EXPECT_TRUE(same_shape(entry->shape, Shape{257, 64}));
  EXPECT_EQ(entry->dtype, DType::f32);
  EXPECT_EQ(file.find("transformer.wte"), nullptr);
  std::vector<float> whole(257 * 64);
  file.read(*entry, 0, view_of(whole));
  double squares = 0;
  for (const float value : whole) squares += static_cast<double>(value) * value;
  EXPECT_GT(squares, 0.0);
  for (const std::int64_t first : {0, 1, 63, 64, 4097}) {
    for (const std::size_t count : {0u, 1u, 31u, 12345u}) {
      std::vector<float> slice(count);
      file.read(*entry, first, view_of(slice));
      EXPECT_TRUE(std::equal(slice.begin(), slice.end(), whole.begin() + first));
      std::vector<bf16> rounded(count);
      file.read(*entry, first, view_of(rounded));
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(rounded[i].bits, to_bf16(slice[i]).bits);
      }
    }
  }
  std::vector<float> past(2);
  EXPECT_THROW(file.read(*entry, 257 * 64 - 1, view_of(past)), Error);
  EXPECT_THROW(file.read(*entry, -1, view_of(past)), Error);
}

TEST(Safetensors, ConvertsLongTensorsInPieces) {
  TemporaryFolder folder;
  std::vector<float> values(200003);
  std::iota(values.begin(), values.end(), -5.0f);
  SafetensorsWriter writer(folder.file("a.safetensors"),
                           {{"x", Shape{static_cast<std::int64_t>(values.size())}, DType::f32}});
  writer.write("x", view_of(values));
  writer.commit();
  const SafetensorsFile file(folder.file("a.safetensors"));
  std::vector<f16> half(values.size() - 2);
  std::vector<double> wide(values.size() - 2);
  file.read(*file.find("x"), 1, view_of(half));
  file.read(*file.find("x"), 1, view_of(wide));
  for (std::size_t i = 0; i < half.size(); ++i) {
    ASSERT_EQ(half[i].bits, to_f16(values[i + 1]).bits);
    ASSERT_EQ(wide[i], static_cast<double>(values[i + 1]));
  }
}

TEST(Safetensors, AcceptsTheEdgesOfTheFormat) {
  TemporaryFolder folder;
  const std::string header =
      R"({"__metadata__":{"a":"b"},"scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      R"("empty":{"dtype":"BF16","shape":[0,4],"data_offsets":[4,4]},)"
      R"("high":{"dtype":"BOOL","shape":[1,1,1,1,1,2,1],"data_offsets":[4,6]},)"
      R"("quarter":{"dtype":"F4","shape":[4],"data_offsets":[6,8]}}   )";
  const SafetensorsFile file(
      folder.write("edges.safetensors", with_size(header, std::string("\0\0\x80\x3fxx"
                                                                      "qq",
                                                                      8))));
  EXPECT_EQ(file.tensors().size(), 4u);
  std::vector<float> scalar(1);
  file.read(*file.find("scalar"), 0, view_of(scalar));
  EXPECT_EQ(scalar[0], 1.0f);
  EXPECT_EQ(file.find("empty")->numel(), 0);
  EXPECT_EQ(file.find("high")->numel(), 2);
  expect_has(message_of<IoError>([&] { file.read(*file.find("high"), 0, view_of(scalar)); }),
             "'BOOL'");
  const SafetensorsFile none(folder.write("none.safetensors", with_size("{}", "")));
  EXPECT_TRUE(none.tensors().empty());
  const SafetensorsFile null(folder.write(
      "null.safetensors", with_size(R"({"__metadata__":null,"a":{"dtype":"U8","shape":[1],)"
                                    R"("data_offsets":[0,1]}})",
                                    "x")));
  EXPECT_EQ(null.tensors().size(), 1u);
  EXPECT_TRUE(null.metadata().empty());
}

TEST(Safetensors, RefusesWhatIsNoFileOfTheFormat) {
  TemporaryFolder folder;
  const auto refused = [&](const std::string& bytes) {
    const std::string path = folder.write("hostile.safetensors", bytes);
    return message_of<IoError>([&] { SafetensorsFile file(path); });
  };
  expect_has(refused(""), "truncated");
  expect_has(refused("1234567"), "found 7 bytes");
  expect_has(refused(std::string(8, '\xff')), "the format allows 100000000");
  expect_has(refused(std::string("\x40\0\0\0\0\0\0\0{}", 10)), "expected a header of 64 bytes");
  expect_has(refused(std::string("PK\x03\x04 not ours", 13)), "no safetensors file");
  expect_has(refused("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
             "git-lfs pointer");
  expect_has(message_of<IoError>([&] { SafetensorsFile file(folder.file("absent")); }),
             "No such file");
  expect_has(message_of<IoError>([&] { SafetensorsFile file(folder.file("hostil.safetensors")); }),
             "did you mean " + folder.file("hostile.safetensors") + "?");
  expect_has(message_of<IoError>([&] { SafetensorsFile file(folder.path().string()); }), "folder");
  expect_has(message_of<IoError>([] { SafetensorsFile file("/dev/zero"); }), "regular file");
}

TEST(Safetensors, RefusesHeadersThatAreNotTheFormats) {
  const std::string deep(1000000, '[');
  for (const std::string header : {"",
                                   " {}",
                                   "[]",
                                   "null",
                                   "{",
                                   "{}{}",
                                   "\"a\"",
                                   "{\"a\":1}",
                                   "{\"a\":[]}",
                                   "{\"a\":null}",
                                   "{\"a\":\"b\"}",
                                   "{\"a\":{\"dtype\":1}}",
                                   "{\"a\":{\"shape\":1}}",
                                   "{\"a\":{\"shape\":[[1]]}}",
                                   "{\"a\":{\"shape\":[-1]}}",
                                   "{\"a\":{\"shape\":[1.5]}}",
                                   "{\"a\":{\"shape\":[9223372036854775808]}}",
                                   "{\"a\":{\"shape\":[1e3]}}",
                                   "{\"a\":{\"shape\":{\"b\":1}}}",
                                   "{\"a\":{\"dtype\":{}}}",
                                   "{\"a\":{\"other\":1}}",
                                   "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}",
                                   "{\"a\":{\"data_offsets\":[0,0,0]}}",
                                   "{\"a\":{\"data_offsets\":[true,0]}}",
                                   "{\"__metadata__\":{\"a\":1}}",
                                   "{\"__metadata__\":{\"a\":{}}}",
                                   "{\"__metadata__\":[]}",
                                   "{\"__metadata__\":{\"a\":null}}",
                                   "{\"__metadata__\":null,\"__metadata__\":null}",
                                   "{\"a\":null}",
                                   "{\"__metadata__\":{},\"__metadata__\":{}}",
                                   "{\"a\xff\":{}}"}) {
    expect_has(refusal(header, 0), "damaged safetensors file");
  }
  expect_has(refusal(deep, 0), "damaged safetensors file");
  expect_has(refusal("{\"a\":" + deep, 0), "has an array at tensor 'a'");
  expect_has(refusal("{\"a\":{\"shape\":" + deep, 0), "has an array at tensor 'a'");
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

TEST(Safetensors, RefusesRangesThatLie) {
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets, std::size_t bytes) {
    return refusal("{" + tensor("t", dtype, shape, offsets) + "}", bytes);
  };
  EXPECT_EQ(one("F32", "[2]", "[0,8]", 8), "");
  expect_has(one("F32", "[2]", "[0,8]", 7), "outside the 7 bytes of data");
  expect_has(one("F32", "[2]", "[0,8]", 9), "the tensors end at byte 8 of 9");
  expect_has(one("F32", "[2]", "[1,9]", 9), "after a hole");
  expect_has(one("F32", "[2]", "[8,0]", 8), "outside");
  expect_has(one("F32", "[2]", "[0,4]", 4), "needs 8 bytes");
  expect_has(one("BF16", "[3]", "[0,8]", 8), "needs 6 bytes");
  expect_has(one("F31", "[2]", "[0,8]", 8), "unknown dtype 'F31'");
  expect_has(one("F4", "[3]", "[0,2]", 2), "impossible");
  expect_has(one("F32", "[4294967296,4294967296]", "[0,8]", 8), "impossible");
  expect_has(one("F32", "[4611686018427387904]", "[0,0]", 0), "impossible");
  expect_has(one("F32", "[2]", "[9223372036854775807,9223372036854775807]", 8), "outside");
  expect_has(refusal("{\"t\":{\"dtype\":\"F32\",\"shape\":[0]}}", 0), "some are missing");
}

TEST(Safetensors, ListsEveryProblemOnce) {
  const std::string overlap = refusal(
      "{" + tensor("a", "U8", "[4]", "[0,4]") + "," + tensor("b", "U8", "[4]", "[2,6]") + "}", 6);
  expect_has(overlap, "'b' starts at byte 2, inside the tensor before it that ends at 4");
  const std::string same = refusal(
      "{" + tensor("a", "U8", "[4]", "[0,4]") + "," + tensor("b", "U8", "[4]", "[0,4]") + "}", 4);
  expect_has(same, "'b' starts at byte 0, inside");
  const std::string many = refusal(
      "{" + tensor("a", "U8", "[4]", "[0,4]") + "," + tensor("a", "U8", "[4]", "[4,8]") + "," +
          tensor("c", "F0", "[1]", "[8,12]") + "," + tensor("d", "U8", "[4]", "[12,99]") + "}",
      12);
  expect_has(many, "'a' is listed twice");
  expect_has(many, "unknown dtype 'F0'");
  expect_has(many, "'d': bytes [12, 99)");
  const std::string named =
      refusal("{" + tensor("a\\u0000\\u001b[2J", "F0", "[]", "[0,0]") + "}", 0);
  expect_has(named, "'a\\x00\\x1b[2J'");
}

TEST(Safetensors, EveryTruncationIsRefused) {
  TemporaryFolder folder;
  std::vector<float> values(5, 1.0f);
  SafetensorsWriter writer(folder.file("whole.safetensors"),
                           {{"a", Shape{2}, DType::f32}, {"b", Shape{3}, DType::bf16}});
  writer.write("a", view_of(values).flat(0, 2));
  writer.write("b", view_of(values).flat(2, 3));
  writer.commit();
  const std::string whole = test::read_file(folder.file("whole.safetensors"));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string path = folder.write("cut.safetensors", whole.substr(0, size));
    EXPECT_THROW(SafetensorsFile file(path), IoError) << size;
  }
  const std::string path = folder.write("shrunk.safetensors", whole);
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, whole.size() - 1);
  std::vector<float> out(3);
  expect_has(message_of<IoError>([&] { file.read(*file.find("b"), 0, view_of(out)); }),
             "the file shrank");
}

TEST(Safetensors, ReadsConcurrently) {
  const SafetensorsFile file("tests/golden/models/llama-tiny/model.safetensors");
  const SafetensorsEntry& entry = *file.find("model.embed_tokens.weight");
  std::vector<float> whole(static_cast<std::size_t>(entry.numel()));
  file.read(entry, 0, view_of(whole));
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (std::size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t first = static_cast<std::int64_t>(t); first + 64 < entry.numel();
           first += 67) {
        std::vector<float> part(64);
        file.read(entry, first, view_of(part));
        if (!std::equal(part.begin(), part.end(), whole.begin() + first)) return;
      }
      equal[t] = 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 1));
}

class Shards : public ::testing::Test {
 protected:
  void shard(const std::string& name, const std::vector<std::string>& tensors, float value) {
    std::vector<TensorDeclaration> declared;
    for (const std::string& tensor_name : tensors) {
      declared.push_back({tensor_name, Shape{2}, DType::f32});
    }
    SafetensorsWriter writer(folder_.file(name), declared);
    for (const std::string& tensor_name : tensors) {
      std::vector<float> values(2, value);
      writer.write(tensor_name, view_of(values));
    }
    writer.commit();
  }
  void index(const std::string& map) {
    folder_.write(
        "model.safetensors.index.json",
        "{\"metadata\":{\"total_size\":1,\"x\":[[1.5,null,true,-1]]},\"weight_map\":" + map + "}");
  }
  std::string refused() {
    return message_of<IoError>([&] { WeightFolder folder(folder_.path().string()); });
  }
  TemporaryFolder folder_;
};

TEST_F(Shards, AreOneSetOfTensors) {
  shard("m-1.safetensors", {"a", "b"}, 1.0f);
  shard("m-2.safetensors", {"c"}, 2.0f);
  index(R"({"a":"m-1.safetensors","b":"./m-1.safetensors","c":"./m-2.safetensors"})");
  const WeightFolder folder(folder_.path().string());
  EXPECT_EQ(folder.tensors().size(), 3u);
  std::vector<float> values(1);
  folder.read("c", 1, view_of(values));
  EXPECT_EQ(values[0], 2.0f);
  folder.read("b", 0, view_of(values));
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_THROW(folder.read("d", 0, view_of(values)), IoError);
}

TEST_F(Shards, AllProblemsInOneMessage) {
  shard("m-1.safetensors", {"a", "b", "both"}, 1.0f);
  shard("m-2.safetensors", {"c", "both"}, 2.0f);
  folder_.write("m-4.safetensors", "cut");
  index(R"({"a":"m-2.safetensors","b":"m-1.safetensors","c":"m-2.safetensors",)"
        R"("d":"m-2.safetensors","e":"m-3.safetensors","f":"m-4.safetensors"})");
  const std::string message = refused();
  expect_has(message, folder_.path().string());
  expect_has(message, "'both' is in m-1.safetensors and in m-2.safetensors");
  expect_has(message, "'a': the index says m-2.safetensors, it is in m-1.safetensors");
  expect_has(message, "'d': the index says m-2.safetensors, it is not there");
  expect_has(message, "m-3.safetensors: cannot open the file (No such file");
  expect_has(message, "m-4.safetensors: truncated");
}

TEST_F(Shards, GivesUpAfterAFewFilesThatAreNotThere) {
  std::string map = "{";
  for (int i = 100; i < 200; ++i) {
    const std::string name = std::to_string(i);
    map += (i > 100 ? "," : "") + ("\"t" + name + "\":\"m-" + name + ".safetensors\"");
  }
  index(map + "}");
  const std::string message = refused();
  expect_has(message, "m-107.safetensors: cannot open the file");
  expect_has(message, "the files after these were not looked at");
  EXPECT_EQ(message.find("m-108"), std::string::npos) << message;
}

TEST_F(Shards, IndexNamesStayInTheFolder) {
  for (const std::string name :
       {"../up.safetensors", "./../up.safetensors", "./", "././m.safetensors",
        "/etc/abs.safetensors", "sub/a.safetensors", "a\\\\b.safetensors", ".hidden.safetensors",
        ".safetensors", "a.bin", "", "a\\u0000.safetensors"}) {
    index("{\"t\":\"" + name + "\"}");
    expect_has(refused(), "expected the plain name");
  }
}

TEST_F(Shards, RefusesDamagedIndexes) {
  for (const std::string text :
       {"", "{", "[]", "5", "\"x\"", "{}", "{\"weight_map\":5}", "{\"weight_map\":\"a\"}",
        "{\"weight_map\":[]}", "{\"weight_map\":{\"a\":{}}}", "{\"weight_map\":{\"a\":null}}",
        "{\"weight_map\":{},\"weight_map\":{}}"}) {
    folder_.write("model.safetensors.index.json", text);
    expect_has(refused(), "damaged index");
  }
  folder_.write("model.safetensors.index.json", "{\"metadata\":" + std::string(1000000, '['));
  expect_has(refused(), "nested too deeply");
  index(R"({"a":"m.safetensors","a":"n.safetensors"})");
  expect_has(refused(), "'a' is listed twice");
}

TEST_F(Shards, FoldersWithoutWeightsSayWhatTheyHave) {
  expect_has(refused(), "found none of them");
  folder_.write("model.pt", "x");
  expect_has(refused(), "'model.pt' holds weights pickled by PyTorch");
  expect_has(message_of<IoError>([&] { WeightFolder folder(folder_.file("absent")); }),
             "no such model folder");
}

}  // namespace
}  // namespace zero3d
