// What an I/O queue is made of: its options, the choice of a port, files, checksums.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <random>

#include "faulty_port.h"
#include "zero3d/offload/checksum.h"
#include "zero3d/offload/io_port.h"
#include "zero3d/offload/io_queue.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

constexpr std::int64_t kPage = 4096;

TEST(IoQueue, RefusesOptionsOutOfRange) {
  const auto device = make_cpu_device({});
  const auto refusal = [&](const IoOptions& options) {
    return message_of<Error>([&] { IoQueue(*device, "test", options, {}, {}); });
  };
  EXPECT_EQ(refusal({.block_size = 5000}),
            "aio.block_size is 5000; expected a multiple of 4096 up to 1073741824");
  EXPECT_EQ(refusal({.queue_depth = 0}), "aio.queue_depth is 0; expected 1 to 4096");
  EXPECT_EQ(refusal({.intra_op_parallelism = 0}),
            "aio.intra_op_parallelism is 0; expected 1 to 1024");
}

TEST(IoPort, ThreadsTakeTheRingsPlaceWithOneLine) {
  for (const int code : {ENOSYS, EPERM, ENOMEM}) {
    const LogCapture log;
    const auto port =
        open_io_port({.threads = 2}, [code](const IoPortOptions&) -> std::unique_ptr<IoPort> {
          throw IoError("io_uring", code, "refused");
        });
    EXPECT_EQ(port->name(), "threads");
    EXPECT_EQ(log.lines().size(), 1u);
    EXPECT_EQ(log.with("I/O on 2 threads instead of io_uring").size(), 1u);
  }
}

TEST(IoFile, DoesWithoutDirectWhereTheFileSystemHasNone) {
  const TemporaryFolder folder;
  const auto refuse_direct = [](const char* path, int flags) {
    if (flags & O_DIRECT) {
      errno = EINVAL;
      return -1;
    }
    return ::open(path, flags, 0600);
  };
  IoFile file(folder.file("a"), true, refuse_direct);
  EXPECT_FALSE(file.direct());
  file.reserve(3 * kPage);
  EXPECT_EQ(std::filesystem::file_size(file.path()), 3 * kPage);
  EXPECT_NE(message_of<IoError>([&] { IoFile(folder.file("no/b"), true); }).find("No such file"),
            std::string::npos);
}

TEST(Checksum, FindsEveryFlippedBitAndPagesInTheWrongPlace) {
  std::vector<std::byte> bytes(2 * kPage + 100);
  std::mt19937 random(1);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const View view(bytes.data(), DType::u8, Shape{static_cast<std::int64_t>(bytes.size())});
  std::uint64_t sums[3], moved[3];
  checksum_pages(view, 0, sums);
  checksum_pages(view, kPage, moved);
  EXPECT_EQ(first_damaged_page(view, 0, sums), -1);
  for (int page = 0; page < 3; ++page) EXPECT_NE(sums[page], moved[page]);
  for (std::size_t at = 0; at < bytes.size(); at += 37) {
    bytes[at] ^= std::byte{1};
    EXPECT_EQ(first_damaged_page(view, 0, sums), static_cast<std::int64_t>(at) / kPage * kPage);
    bytes[at] ^= std::byte{1};
  }
  const std::uint64_t unknown[3] = {};
  EXPECT_EQ(first_damaged_page(view, 0, unknown), -1);
}

}  // namespace
}  // namespace zero3d::test
