// `zero3d bench`: measures parts of the engine beside what the machine can do.
#include "bench.h"

#include "command.h"

namespace zero3d::tools {

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure a part of the engine on this machine");
  bench->require_subcommand(1);
  add_bench_adam(*bench);
}

}  // namespace zero3d::tools
