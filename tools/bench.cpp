// `zero3d bench`: measures parts of the engine beside what the machine can do. Here are its
// options.
#include "bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "command.h"
#include "option_checks.h"

namespace zero3d::tools {
namespace {

void add_bench_adam(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("adam", "CPU AdamW beside a null update over the same streams");
  auto options = std::make_shared<AdamBenchOptions>();
  command->add_option("--numel", options->numels, "Numbers of parameters (16M = 16 * 2^20)")
      ->delimiter(',');
  command->add_option("--threads", options->threads, "Numbers of threads")
      ->delimiter(',')
      ->check(int_number(1));
  command->add_option("--gradient", options->gradient, "fp32, bf16 or fp16");
  command->add_option("--copy", options->copy,
                      "dtype of the parameter copy written in the same pass, or none");
  command->add_option("--isa", options->isa, "scalar, avx2, avx512, ...; default: the fastest");
  command->add_option("--repeats", options->repeats, "Interleaved runs of each")
      ->check(int_number(1));
  command->add_flag("--print-times", options->print_times, "Also every run's time, for scripts");
  command->callback([options] { bench_adam(*options); });
}

void add_bench_io(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "io", "Writes and reads of a drive as offload to NVMe does them, and the best aio section");
  auto options = std::make_shared<IoBenchOptions>();
  command->add_option("--path", options->path, "Folder on the drive; its file is removed again")
      ->required();
  command->add_option("--size", options->size, "Of the file")->capture_default_str();
  command->add_option("--block-size", options->block_sizes, "Bytes of one read or write, a list")
      ->delimiter(',');
  command->add_option("--queue-depth", options->queue_depths, "Blocks under way, a list")
      ->delimiter(',')
      ->check(int_number(1));
  command->add_option("--threads", options->threads, "Where io_uring is not used")
      ->check(int_number(1));
  command->add_option("--port", options->port, "auto, io_uring or threads")
      ->check(CLI::IsMember({"auto", "io_uring", "threads"}));
  command->add_flag("--direct", options->direct, "Only past the page cache");
  command->add_flag("--buffered", options->buffered, "Only through the page cache");
  command->callback([options] { bench_io(*options); });
}

void add_bench_muon(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("muon", "Muon's orthogonalisation beside its matrix products alone");
  auto options = std::make_shared<MuonBenchOptions>();
  command->add_option("--rows", options->rows, "Rows of the matrix")->check(whole_number(1));
  command->add_option("--columns", options->columns, "Columns")->check(whole_number(1));
  command->add_option("--threads", options->threads, "Numbers of threads")
      ->delimiter(',')
      ->check(int_number(1));
  command->add_option("--method", options->method, "gram or standard")
      ->check(CLI::IsMember({"gram", "standard"}));
  command->add_option("--repeats", options->repeats, "Interleaved runs of each")
      ->check(int_number(1));
  command->callback([options] { bench_muon(*options); });
}

void add_bench_save(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "save", "Saves and loads of a checkpoint beside one write and one copy of its bytes");
  auto options = std::make_shared<SaveBenchOptions>();
  command->add_option("--path", options->path, "Folder to save to; its files are removed again")
      ->required();
  command->add_option("--size", options->size, "Of masters and moments")->capture_default_str();
  command->add_option("--tier", options->tier, "Where they lie: device or cpu")
      ->check(CLI::IsMember({"device", "cpu"}))
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "Runs of each, in turns")
      ->check(int_number(1));
  command->callback([options] { bench_save(*options); });
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure a part of the engine on this machine");
  bench->require_subcommand(1);
  add_bench_adam(*bench);
  add_bench_io(*bench);
  add_bench_muon(*bench);
  add_bench_save(*bench);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace zero3d::tools
