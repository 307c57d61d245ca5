// Times checkpoints of one rank: saves that training waits for, saves that it does not, and loads,
// beside what the machine can do: one write of as many bytes from end to end, and one copy of them.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>

#include "bench.h"
#include "zero3d/core/error.h"
#include "zero3d/core/output_file.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/engine/checkpoint/checkpoint.h"
#include "zero3d/engine/checkpoint/checkpoint_reader.h"
#include "zero3d/parallel/comm/communicator.h"

namespace zero3d::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBlock = std::int64_t{1} << 22;  // elements of a block's parameter
constexpr std::int64_t kStateBytes = 12;                // an element: its master and two moments

double seconds_of(const std::function<void()>& work) {
  const std::int64_t begin = now_ns();
  work();
  return static_cast<double>(now_ns() - begin) * 1e-9;
}

/// A bf16 model whose masters and moments are about `bytes`.
std::vector<std::vector<ParameterSpec>> blocks_of(std::int64_t bytes) {
  std::vector<std::vector<ParameterSpec>> blocks;
  for (std::int64_t at = 0; at < bytes; at += kBlock * kStateBytes) {
    ParameterSpec spec;
    spec.name = concat("block", blocks.size(), ".weight");
    spec.shape = Shape{2048, kBlock / 2048};
    spec.initial = normal_values(spec.name, 0.02f);
    blocks.push_back({spec});
  }
  return blocks;
}

TrainSettings settings_on(bool host) {
  TrainSettings settings;
  settings.optimizer.type = "AdamW";
  settings.precision.parameters = DType::bf16;
  settings.sharding.what = sharding_policy(1);
  if (host) settings.offload.optimizer.device = OffloadDevice::cpu;
  return settings;
}

/// What is read next comes from the drive.
void forget(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const Descriptor file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) continue;
    ::fdatasync(file.value());
    ::posix_fadvise(file.value(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

class Subject {
 public:
  explicit Subject(const SaveBenchOptions& options)
      : world_(make_self_communicator()),
        mesh_(*world_, {}),
        device_(make_cpu_device({})),
        model_(settings_on(options.tier == "cpu"), blocks_of(parse_bytes(options.size)), mesh_,
               *device_),
        saver_(model_),
        folder_((fs::path(options.path) / "zero3d-bench-save").string()) {}
  ~Subject() {
    std::error_code code;
    fs::remove_all(folder_, code);
  }

  struct Times {
    double save = 0, stall = 0, written = 0, load = 0, plain = 0, copy = 0;
  };
  Times run() {
    Times times;
    SaveCheckpointOptions save;
    save.tag = "waits";
    times.save = seconds_of([&] { saver_.save(folder_, save); });
    save.tag = "goes-on";
    save.asynchronous = true;
    times.stall = seconds_of([&] { begin(save); });
    times.written = times.stall + seconds_of([&] { saver_.finish(); });
    forget(fs::path(folder_) / "waits");
    times.load = seconds_of([&] {
      load_checkpoint(model_, CheckpointReader((fs::path(folder_) / "waits").string()), {});
    });
    measure_machine(times);
    return times;
  }
  std::int64_t bytes() const {
    return CheckpointReader((fs::path(folder_) / "waits").string()).bytes();
  }

 private:
  /// A step that follows has the state to itself once what was enqueued on its streams is over.
  void begin(const SaveCheckpointOptions& save) {
    saver_.save(folder_, save);
    model_.synchronize();
  }

  void measure_machine(Times& times) {
    const auto size = static_cast<std::size_t>(bytes());
    std::vector<std::byte> from(size, std::byte{1}), to(size, std::byte{2});
    times.copy = seconds_of([&] { std::memcpy(to.data(), from.data(), size); });
    const std::string path = (fs::path(folder_) / "plain").string();
    times.plain = seconds_of([&] {
      OutputFile file(path);
      constexpr std::size_t kPart = std::size_t{4} << 20;
      for (std::size_t at = 0; at < size; at += kPart)
        file.write(to.data() + at, std::min(kPart, size - at));
      file.commit();
    });
    fs::remove(path);
  }

  std::unique_ptr<Communicator> world_;
  Mesh mesh_;
  std::unique_ptr<Device> device_;
  ShardedModel model_;
  CheckpointSaver saver_;
  const std::string folder_;
};

}  // namespace

void bench_save(const SaveBenchOptions& options) {
  if (!fs::is_directory(options.path))
    throw IoError(options.path, ENOTDIR,
                  "bench save --path: expected a folder that can be written");
  Subject subject(options);
  std::vector<double> save, stall, written, load, plain, copy;
  for (int i = 0; i < options.repeats; ++i) {
    const Subject::Times times = subject.run();
    save.push_back(times.save);
    stall.push_back(times.stall);
    written.push_back(times.written);
    load.push_back(times.load);
    plain.push_back(times.plain);
    copy.push_back(times.copy);
  }
  const double gb = static_cast<double>(subject.bytes()) * 1e-9;
  const auto rate = [&](const char* what, const std::vector<double>& times) {
    std::printf("%-46s %8.3f s %8.3f GB/s\n", what, median(times), gb / median(times));
  };
  std::printf("state of %.3f GB, medians of %d\n", gb, options.repeats);
  rate("save", save);
  rate("load, from the drive", load);
  rate("one write of as much, synced", plain);
  rate("asynchronous save until it is durable", written);
  rate("  of that training waits", stall);
  rate("one copy of the state in memory", copy);
  std::printf("save beside one write %.3f; stall beside the save %.3f, beside the copy %.3f\n",
              median(plain) / median(save), median(stall) / median(save),
              median(stall) / median(copy));
  std::fflush(stdout);
}

}  // namespace zero3d::tools
