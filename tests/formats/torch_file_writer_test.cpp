// Files written as torch.save writes them, read back by the reader of such files.
#include "zero3d/formats/torch_file_writer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/formats/torch_archive.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d {
namespace {

TEST(TorchFileWriter, WhatItWritesIsReadBack) {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("file.pt");
  std::vector<float> values(3'000'000);  // several pieces
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto count = static_cast<std::int64_t>(values.size());
  TorchFileWriter file(path);
  PickleWriter& out = file.pickle();
  out.begin_dict();
  out.text("tensor");
  const std::size_t storage =
      file.add_storage(DType::f32, count, [&](std::int64_t first, const View& dst) {
        std::memcpy(dst.data(), values.data() + first, dst.bytes());
      });
  file.tensor(storage, 1000, {3, 5, 7});
  out.text("numbers");
  out.begin_list();
  for (const std::int64_t number : {std::int64_t{0}, std::int64_t{-1}, INT64_MAX, INT64_MIN})
    out.integer(number);
  out.real(0.1);
  out.boolean(true);
  out.none();
  out.end_list();
  out.end_dict();
  file.commit();

  const TorchArchive archive(path);
  const PickleValue root = archive.root();
  const PickleValue numbers = root.find("numbers");
  ASSERT_EQ(numbers.size(), 7u);
  EXPECT_EQ(numbers[0].integer(), 0);
  EXPECT_EQ(numbers[1].integer(), -1);
  EXPECT_EQ(numbers[2].integer(), INT64_MAX);
  EXPECT_EQ(numbers[3].integer(), INT64_MIN);
  EXPECT_EQ(numbers[4].number(), 0.1);
  EXPECT_EQ(numbers[5].boolean(), true);
  EXPECT_TRUE(numbers[6].is_none());
  const PickleTensor* const tensor = root.find("tensor").tensor();
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->numel(), 105);
  std::vector<float> read(105);
  archive.read(*tensor, 0, View(reinterpret_cast<std::byte*>(read.data()), DType::f32, Shape{105}));
  EXPECT_EQ(read, std::vector<float>(values.begin() + 1000, values.begin() + 1105));
  EXPECT_THROW(file.add_storage(DType::f64, 1, {}), Error);
}

}  // namespace
}  // namespace zero3d
