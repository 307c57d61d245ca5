// Writing safetensors: what was written is read back, files appear whole or not at all, shards are
// cut as planned.
#include "zero3d/formats/safetensors_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <numeric>

#include "zero3d/core/error.h"
#include "zero3d/formats/safetensors.h"
#include "zero3d/formats/safetensors_header.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d {
namespace {

using test::message_of;
using test::TemporaryFolder;

template <typename T>
View view_of(std::vector<T>& values) {
  return View(reinterpret_cast<std::byte*>(values.data()), dtype_of<T>::value,
              Shape{static_cast<std::int64_t>(values.size())});
}

bool is_empty(const TemporaryFolder& folder) { return std::filesystem::is_empty(folder.path()); }

TEST(SafetensorsWriter, RoundTripsSizesSlicesAndDTypes) {
  TemporaryFolder folder;
  const std::int64_t sizes[] = {0, 1, 2, 13, 1024, 0, 300007};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t slice : {std::int64_t{7}, std::int64_t{1000000}}) {
      std::vector<TensorDeclaration> tensors;
      for (const std::int64_t size : sizes) {
        tensors.push_back(
            {"tensor \"" + std::to_string(tensors.size()) + "\" \xc3\xa9", Shape{1, size}, dtype});
      }
      const std::string path = folder.file("out.safetensors");
      SafetensorsWriter writer(path, tensors, {{"format", "pt"}});
      for (const TensorDeclaration& tensor : tensors) {
        std::vector<float> values(static_cast<std::size_t>(tensor.shape.numel()));
        std::iota(values.begin(), values.end(), 0.125f);
        for (std::int64_t first = 0; first < tensor.shape.numel(); first += slice) {
          writer.write(tensor.name,
                       view_of(values).flat(first, std::min(slice, tensor.shape.numel() - first)));
        }
      }
      EXPECT_TRUE(writer.complete());
      writer.commit();
      const SafetensorsFile file(path);
      EXPECT_EQ(file.metadata().at("format"), "pt");
      ASSERT_EQ(file.tensors().size(), std::size(sizes));
      for (const TensorDeclaration& tensor : tensors) {
        const SafetensorsEntry* entry = file.find(tensor.name);
        ASSERT_NE(entry, nullptr);
        EXPECT_TRUE(same_shape(entry->shape, tensor.shape));
        EXPECT_EQ(entry->dtype, dtype);
        std::vector<float> values(static_cast<std::size_t>(tensor.shape.numel()));
        file.read(*entry, 0, view_of(values));
        for (std::size_t i = 0; i < values.size(); ++i) {
          const float value = static_cast<float>(i) + 0.125f;
          const float expected = dtype == DType::bf16  ? to_float(to_bf16(value))
                                 : dtype == DType::f16 ? to_float(to_f16(value))
                                                       : value;
          ASSERT_EQ(values[i], expected) << i;
        }
      }
    }
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(SafetensorsWriter, DataIsAlignedToEightBytes) {
  TemporaryFolder folder;
  for (int length = 1; length < 20; ++length) {
    const std::string path = folder.file("a.safetensors");
    SafetensorsWriter(path,
                      {{std::string(static_cast<std::size_t>(length), 'n'), Shape{0}, DType::f32}})
        .commit();
    EXPECT_EQ(SafetensorsFile(path).tensors()[0].begin % 8, 0u);
  }
}

TEST(SafetensorsWriter, HoldsItsCallerToTheDeclaration) {
  TemporaryFolder folder;
  std::vector<float> values(3);
  std::vector<std::int32_t> integers(2);
  {
    SafetensorsWriter writer(folder.file("a.safetensors"),
                             {{"a", Shape{2}, DType::f32}, {"b", Shape{2}, DType::f32}});
    EXPECT_NE(message_of<Error>([&] { writer.write("b", view_of(values)); }).find("expected 'a'"),
              std::string::npos);
    EXPECT_THROW(writer.write("a", view_of(values)), Error);
    EXPECT_THROW(writer.write("a", view_of(integers)), Error);
    EXPECT_THROW(writer.commit(), Error);
    writer.write("a", view_of(values).flat(0, 2));
    EXPECT_NE(message_of<Error>([&] { writer.commit(); }).find("before tensor 'b' was whole"),
              std::string::npos);
    EXPECT_THROW(SafetensorsWriter(folder.file("b.safetensors"),
                                   {{"a", Shape{2}, DType::f32}, {"a", Shape{2}, DType::f32}}),
                 Error);
  }
  EXPECT_TRUE(is_empty(folder));
}

TEST(SafetensorsWriter, LeavesTheOldFileUntilCommit) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.safetensors", "old");
  std::vector<float> values(2);
  {
    SafetensorsWriter writer(path, {{"a", Shape{2}, DType::f32}});
    writer.write("a", view_of(values));
  }
  EXPECT_EQ(test::read_file(path), "old");
  SafetensorsWriter writer(path, {{"a", Shape{2}, DType::f32}});
  writer.write("a", view_of(values));
  writer.commit();
  EXPECT_EQ(SafetensorsFile(path).tensors().size(), 1u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(SafetensorsWriter, AFullDiskLeavesNothingBehind) {
  TemporaryFolder folder;
  rlimit old = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {4096, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string first;
  std::string second;
  {
    std::vector<float> values(2000);
    SafetensorsWriter writer(folder.file("a.safetensors"), {{"a", Shape{2000}, DType::f32}});
    first = message_of<IoError>([&] { writer.write("a", view_of(values)); });
    ::setrlimit(RLIMIT_FSIZE, &old);
    // Part of the tensor is in the file: writing it again would shift it.
    writer.write("a", view_of(values));
    second = message_of<IoError>([&] { writer.commit(); });
  }
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(first.find("File too large"), std::string::npos) << first;
  EXPECT_NE(second.find("not whole"), std::string::npos) << second;
  EXPECT_TRUE(is_empty(folder));
}

TEST(SafetensorsWriter, RefusesAFolderThatIsNotThere) {
  TemporaryFolder folder;
  EXPECT_NE(message_of<IoError>([&] {
              SafetensorsWriter(folder.file("absent/a.safetensors"), {});
            }).find("No such file"),
            std::string::npos);
}

TEST(ShardPlan, KeepsOrderAndBound) {
  std::vector<TensorDeclaration> tensors;
  for (const std::int64_t size : {10, 20, 30, 500, 5, 0, 40, 41, 100}) {
    tensors.push_back({"t" + std::to_string(tensors.size()), Shape{size}, DType::u8});
  }
  for (const std::int64_t bound : {1, 40, 60, 100, 500, 746, 100000}) {
    const auto plan = plan_shards(tensors, bound);
    EXPECT_EQ(std::accumulate(plan.begin(), plan.end(), std::size_t{0}), tensors.size());
    std::size_t next = 0;
    for (const std::size_t count : plan) {
      std::int64_t bytes = 0;
      std::int64_t largest = 0;
      ASSERT_GT(count, 0u);
      for (std::size_t i = 0; i < count; ++i, ++next) {
        bytes += tensors[next].bytes();
        largest = std::max(largest, tensors[next].bytes());
      }
      EXPECT_TRUE(bytes <= bound || bytes == largest) << bound;
    }
  }
  EXPECT_EQ(plan_shards(tensors, 746), std::vector<std::size_t>{9});
  EXPECT_EQ(plan_shards({}, 10), std::vector<std::size_t>{0});
  EXPECT_EQ(shard_file_name(0, 1), "model.safetensors");
  EXPECT_EQ(shard_file_name(1, 12), "model-00002-of-00012.safetensors");
}

TEST(ShardPlan, IndexIsWhatTheReaderParses) {
  const std::vector<TensorDeclaration> tensors = {{"b", Shape{4}, DType::f32},
                                                  {"a", Shape{2, 4}, DType::f32}};
  const std::string index = shard_index(tensors, plan_shards(tensors, 32));
  const auto files = parse_safetensors_index("index", index);
  EXPECT_EQ(files.at("b"), "model-00001-of-00002.safetensors");
  EXPECT_EQ(files.at("a"), "model-00002-of-00002.safetensors");
  EXPECT_NE(index.find("\"total_size\": 48"), std::string::npos);
  EXPECT_NE(index.find("\"total_parameters\": 12"), std::string::npos);
}

}  // namespace
}  // namespace zero3d
