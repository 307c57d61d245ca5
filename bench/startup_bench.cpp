// From the start of the process to the end of step 1: the time of `zero3d train` with one step of
// the tiny model, whole process included.
//   startup_bench ZERO3D [runs]
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "trainer.h"
#include "zero3d/core/error.h"
#include "zero3d/core/trace.h"

extern char** environ;

namespace zero3d::bench {
namespace {

/// A config and random bytes of text in a folder that goes with the object.
class RunFiles {
 public:
  RunFiles() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "zero3d-startup-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw IoError(pattern, errno, "cannot make a folder");
    folder_ = pattern;
    std::ofstream(folder_ / "ds_config.json") << ds_config(4, "fp32", 0);
    std::ofstream text(folder_ / "text");
    for (int i = 0; i < 100'000; ++i) text.put(static_cast<char>('a' + i * 7919 % 26));
  }
  ~RunFiles() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string path(const char* name) const { return (folder_ / name).string(); }

 private:
  std::filesystem::path folder_;
};

double run_seconds(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t process = -1;
  const std::int64_t begin = now_ns();
  const int error =
      posix_spawn(&process, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw IoError(words[0], error, "cannot start");
  int status = 0;
  waitpid(process, &status, 0);
  if (status != 0) throw_invalid("zero3d train failed; its message is above");
  return static_cast<double>(now_ns() - begin) * 1e-9;
}

int run(int argc, char** argv) {
  if (argc < 2) throw_invalid("usage: startup_bench ZERO3D [runs]");
  const int runs = argc > 2 ? std::atoi(argv[2]) : 9;
  const RunFiles files;
  for (const char* model : {"llama-tiny"}) {
    std::vector<double> times;
    for (int i = 0; i < runs; ++i) {
      times.push_back(run_seconds({argv[1], "train", "--config", files.path("ds_config.json"),
                                   "--model", model, "--data", files.path("text"), "--data-format",
                                   "text", "--seq-len", "128", "--steps", "1"}));
    }
    std::printf("%-12s start to end of step 1: %.3f s (wanted below 0.5)\n", model, median(times));
  }
  return 0;
}

}  // namespace
}  // namespace zero3d::bench

int main(int argc, char** argv) {
  try {
    return zero3d::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
