// What errors say to users, those of libraries included.
#include "zero3d/core/error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "zero3d/core/text.h"

namespace zero3d {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Describe, LeavesOurOwnMessagesAsTheyAre) {
  EXPECT_EQ(describe(ConfigError("fp16", "expected an object")), "fp16: expected an object");
  EXPECT_EQ(message_of(std::make_exception_ptr(Error(ErrorKind::kInvalid, "text"))), "text");
  EXPECT_EQ(message_of(nullptr), "");
}

TEST(Describe, SaysWhatExceptionsOfLibrariesComeTo) {
  const std::error_code again(EAGAIN, std::generic_category());
  const std::string threads = describe(std::system_error(again));
  EXPECT_TRUE(has(threads, "starts no further thread")) << threads;
  EXPECT_TRUE(has(threads, "fewer ranks")) << threads;
  const std::string file = describe(std::filesystem::filesystem_error(
      "status", "a/path", std::make_error_code(std::errc::filename_too_long)));
  EXPECT_EQ(file, "a/path: the system refused: File name too long");
  const auto describe_thrown = [](auto call) {
    try {
      call();
    } catch (...) {
      return message_of(std::current_exception());
    }
    return std::string();
  };
  const std::string memory = describe(std::bad_alloc());
  EXPECT_TRUE(has(memory, "no memory left")) << memory;
  EXPECT_EQ(describe_thrown([] { std::vector<double>(std::size_t(-1) / 8); }), memory);
  EXPECT_EQ(describe_thrown([] { throw std::runtime_error("odd"); }), "odd");
}

TEST(IoError, SaysWhatToDoAboutTooManyFiles) {
  EXPECT_EQ(std::string(IoError("p", ENOENT, "cannot open the file").what()),
            "p: cannot open the file (No such file or directory)");
  EXPECT_TRUE(has(IoError("p", EMFILE, "cannot open the file").what(), "ulimit -n"));
}

}  // namespace
}  // namespace zero3d
