// The benchmarks of `zero3d bench`: what each takes, and what runs it, one source file each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zero3d::tools {

struct AdamBenchOptions {
  std::vector<std::string> numels = {"16M", "32M", "64M", "100M", "128M"};
  std::vector<int> threads = {1, 2};
  std::string gradient = "fp32";
  std::string copy = "none";
  std::string isa;
  int repeats = 11;
  bool print_times = false;
};

struct MuonBenchOptions {
  std::int64_t rows = 768, columns = 3072;
  std::vector<int> threads = {1, 2};
  std::string method = "gram";
  int repeats = 7;
};

struct IoBenchOptions {
  std::string path;
  std::string size = "1GiB";
  std::vector<std::string> block_sizes = {"128KiB", "1MiB", "8MiB"};
  std::vector<int> queue_depths = {1, 8, 32};
  int threads = 1;
  std::string port = "auto";
  bool direct = false;  ///< Both ways when neither is said.
  bool buffered = false;
};

struct SaveBenchOptions {
  std::string path;
  std::string size = "2GB";
  std::string tier = "cpu";
  int repeats = 3;
};

void bench_adam(const AdamBenchOptions& options);
void bench_io(const IoBenchOptions& options);
void bench_muon(const MuonBenchOptions& options);
void bench_save(const SaveBenchOptions& options);

/// Of at least one value.
double median(std::vector<double> values);

}  // namespace zero3d::tools
