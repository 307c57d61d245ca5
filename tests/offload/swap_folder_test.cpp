// Where swapped state lies: private, spread over drives, gone when the run is.
#include <gtest/gtest.h>
#include <sys/file.h>

#include "zero3d/core/error.h"
#include "zero3d/offload/swap_folder.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path());
  return found;
}

TEST(SwapFolder, SpreadsRangesOverItsPathsAndReservesThem) {
  const TemporaryFolder folder;
  SwapFolder swap({folder.file("a/deep"), folder.file("b")}, "state", true);
  const auto places = swap.reserve({8192, 0, 4096, 4096, 12288}, "a test");
  EXPECT_EQ(places[0].file, 0);
  EXPECT_EQ(places[2].file, 1);
  EXPECT_EQ(places[3].file, 0);
  EXPECT_EQ(places[4].file, 1);
  EXPECT_EQ(places[3].offset, 8192);
  EXPECT_EQ(places[4].offset, 4096);
  EXPECT_EQ(fs::file_size(swap.files()[0]->path()), 12288u);
  EXPECT_EQ(fs::file_size(swap.files()[1]->path()), 16384u);
}

TEST(SwapFolder, IsPrivateAndGoesWithItsRun) {
  const TemporaryFolder folder;
  {
    SwapFolder one({folder.path().string()}, "state", false);
    SwapFolder two({folder.path().string()}, "state", false);
    EXPECT_EQ(entries(folder.path()).size(), 2u) << "one does not sweep the other's";
    EXPECT_EQ(fs::status(one.files()[0]->path()).permissions() & fs::perms::others_all,
              fs::perms::none);
  }
  EXPECT_TRUE(entries(folder.path()).empty());
}

TEST(SwapFolder, WhatAKilledRunLeftIsSwept) {
  const TemporaryFolder folder;
  std::string left;
  {
    SwapFolder killed({folder.path().string()}, "state", false);
    const fs::path held = entries(folder.path()).at(0);
    left = held.string() + "7";  // another number: a run of this host that nobody locks
    fs::create_directory(left);
    fs::copy_file(held / "state", fs::path(left) / "state");
  }
  EXPECT_TRUE(fs::exists(left));
  SwapFolder next({folder.path().string()}, "state", false);
  EXPECT_FALSE(fs::exists(left));
}

TEST(SwapFolder, TooLittleRoomIsToldExactly) {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  EXPECT_EQ(message_of<IoError>([&] { check_free_space(path, 5'000'000, "a test", 1'000'000); }),
            path +
                ": needs 5,000,000 bytes (4.77 MiB) for a test, and 1,000,000 bytes (976.56 KiB) "
                "are free (No space left on device); free 4,000,000 bytes (3.81 MiB), name a "
                "path on a larger drive, or several on different drives");
  check_free_space(path, 5, "a test", 5);
  SwapFolder swap({path, folder.file("b")}, "state", true);
  const std::int64_t huge = std::int64_t{1} << 55;
  const std::string message = message_of<IoError>([&] { swap.reserve({huge, huge}, "a test"); });
  EXPECT_NE(message.find("needs 72,057,594,037,927,936 bytes"), std::string::npos)
      << "paths on one drive count together: " << message;
  EXPECT_NE(message_of<IoError>([] { SwapFolder({"/proc/no"}, "state", true); }), "");
  EXPECT_NE(message_of<Error>([] { SwapFolder({}, "state", true); }).find("expected one per drive"),
            std::string::npos);
}

}  // namespace
}  // namespace zero3d::test
