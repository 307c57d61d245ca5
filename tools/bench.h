// The benchmarks of `zero3d bench`, one source file each.
#pragma once

namespace CLI {
class App;
}

namespace zero3d::tools {

void add_bench_adam(CLI::App& bench);

}  // namespace zero3d::tools
