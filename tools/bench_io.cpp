// Times the I/O queue on a file in a folder: every combination of block size, depth, and direct or
// buffered, each written and read once from end to end, and what of the aio section is best here.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "bench.h"
#include "zero3d/core/error.h"
#include "zero3d/core/multiples.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/offload/io_port.h"
#include "zero3d/offload/io_queue.h"
#include "zero3d/offload/swap_folder.h"

namespace zero3d::tools {
namespace {

constexpr std::int64_t kTile = std::int64_t{8} << 20;  // bytes of one submission, as of one tile
constexpr std::int64_t kTiles = 8;                     // in memory

struct Rate {
  double gb_per_second = 0;
  double cpu_seconds_per_gb = 0;
};

struct Result {
  std::int64_t block_size = 0;
  int queue_depth = 0;
  bool direct = false;
  std::string port;
  Rate write, read;
  /// Of a pass that reads as much as it writes.
  double both() const { return 2 / (1 / write.gb_per_second + 1 / read.gb_per_second); }
};

double cpu_seconds() {
  rusage use = {};
  ::getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

/// The file of a bench, one queue on it, and the memory that is written and read.
class Subject {
 public:
  Subject(const IoBenchOptions& options, std::int64_t size, bool direct)
      : size_(size),
        device_(make_cpu_device({})),
        folder_({options.path}, "bench", direct),
        memory_(device_->memory(Tier::pinned), kNoStream, DType::u8, Shape{kTiles * kTile},
                Category::other) {
    // No zeros: some drives store none.
    for (std::int64_t i = 0; i < kTiles * kTile; ++i)
      memory_.view().data()[i] = static_cast<std::byte>(i * 2654435761 >> 13);
    folder_.reserve({size}, "the file of bench io");
    if (direct && !file().direct())
      throw IoError(options.path, 0, "its file system has no direct I/O; use --buffered");
  }

  /// The first write of a reserved range costs a file system more than those that follow.
  void prepare() {
    IoQueue queue(*device_, "bench", {}, folder_.files(), {});
    pass(queue, true);
  }

  Result run(const IoOptions& options) {
    const View buffers[] = {memory_.view()};
    IoQueue queue(*device_, "bench", options, folder_.files(), buffers);
    Result result{options.block_size,
                  options.queue_depth,
                  file().direct(),
                  std::string(queue.port()),
                  {},
                  {}};
    result.write = pass(queue, true);
    forget();
    result.read = pass(queue, false);
    return result;
  }

 private:
  const IoFile& file() const { return *folder_.files()[0]; }

  /// What was written through the page cache is on the drive, and out of the cache.
  void forget() {
    ::fdatasync(file().descriptor());
    ::posix_fadvise(file().descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  }

  Rate pass(IoQueue& queue, bool write) {
    const std::int64_t begin = now_ns();
    const double cpu = cpu_seconds();
    std::vector<Event> busy(kTiles);
    for (std::int64_t at = 0; at < size_; at += kTile) {
      const std::int64_t tile = at / kTile % kTiles;
      Event& event = busy[static_cast<std::size_t>(tile)];
      if (event.recorded()) event.wait();
      const View bytes = memory_.view().flat(tile * kTile, std::min(kTile, size_ - at));
      event = queue.submit(write ? "write" : "read", {{write, 0, at, bytes, nullptr}}, {});
    }
    for (const Event& event : busy) {
      if (event.recorded()) event.wait();
    }
    if (write && ::fdatasync(file().descriptor()) != 0)
      throw IoError(file().path(), errno, "cannot bring the file to the drive");
    const double seconds = static_cast<double>(now_ns() - begin) * 1e-9;
    const double gb = static_cast<double>(size_) * 1e-9;
    return {gb / seconds, (cpu_seconds() - cpu) / gb};
  }

  const std::int64_t size_;
  std::unique_ptr<Device> device_;
  SwapFolder folder_;
  Tensor memory_;
};

void print_table(const std::vector<Result>& results, int threads) {
  std::printf("%-9s %-9s %11s %11s %10s %10s %14s %14s\n", "port", "cache", "block_size",
              "queue_depth", "write GB/s", "read GB/s", "write CPU s/GB", "read CPU s/GB");
  for (const Result& result : results)
    std::printf("%-9s %-9s %11lld %11d %10.3f %10.3f %14.3f %14.3f\n", result.port.c_str(),
                result.direct ? "direct" : "buffered", static_cast<long long>(result.block_size),
                result.queue_depth, result.write.gb_per_second, result.read.gb_per_second,
                result.write.cpu_seconds_per_gb, result.read.cpu_seconds_per_gb);
  const Result& best =
      *std::max_element(results.begin(), results.end(),
                        [](const Result& a, const Result& b) { return a.both() < b.both(); });
  std::printf(
      "\nbest here, %s:\n\"aio\": {\"block_size\": %lld, \"queue_depth\": %d, "
      "\"intra_op_parallelism\": %d, \"single_submit\": false, \"overlap_events\": true}\n",
      best.direct ? "direct" : "buffered", static_cast<long long>(best.block_size),
      best.queue_depth, threads);
  std::fflush(stdout);
}

}  // namespace

void bench_io(const IoBenchOptions& options) {
  if (!std::filesystem::is_directory(options.path))
    throw IoError(options.path, ENOTDIR, "bench io --path: expected a folder that can be written");
  const std::int64_t size = round_up(parse_bytes(options.size), IoFile::kAlignment);
  std::vector<bool> ways;
  if (options.direct || !options.buffered) ways.push_back(true);
  if (options.buffered || !options.direct) ways.push_back(false);
  std::vector<Result> results;
  const std::size_t count = ways.size() * options.block_sizes.size() * options.queue_depths.size();
  for (const bool direct : ways) {
    Subject subject(options, size, direct);
    subject.prepare();
    for (const std::string& block : options.block_sizes) {
      for (const int depth : options.queue_depths) {
        IoOptions io;
        io.block_size = parse_bytes(block);
        io.queue_depth = depth;
        io.intra_op_parallelism = options.threads;
        if (options.port == "threads") io.port = make_thread_port;
        if (options.port == "io_uring") io.port = make_ring_port;
        std::fprintf(stderr, "bench io: %zu of %zu, %s, block size %s, depth %d\n",
                     results.size() + 1, count, direct ? "direct" : "buffered", block.c_str(),
                     depth);
        results.push_back(subject.run(io));
      }
    }
  }
  print_table(results, options.threads);
}

}  // namespace zero3d::tools
