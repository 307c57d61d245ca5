// `zero3d bench`: measures parts of the engine beside what the machine can do.
#include "bench.h"

#include <algorithm>

#include "command.h"

namespace zero3d::tools {

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure a part of the engine on this machine");
  bench->require_subcommand(1);
  add_bench_adam(*bench);
  add_bench_muon(*bench);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace zero3d::tools
