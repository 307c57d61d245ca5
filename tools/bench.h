// The benchmarks of `zero3d bench`, one source file each.
#pragma once

#include <vector>

namespace CLI {
class App;
}

namespace zero3d::tools {

void add_bench_adam(CLI::App& bench);
void add_bench_muon(CLI::App& bench);

/// Of at least one value.
double median(std::vector<double> values);

}  // namespace zero3d::tools
