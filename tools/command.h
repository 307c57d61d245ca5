// The subcommands of `zero3d`, one source file each. A subcommand adds itself to the application
// and does its work in its callback; it throws zero3d::Error, which main() prints as one line, or
// CLI::RuntimeError to end with another exit code after it has said what is wrong.
#pragma once

#include <CLI/CLI.hpp>

namespace zero3d::tools {

void add_bench(CLI::App& app);
void add_config_docs(CLI::App& app);
void add_train(CLI::App& app);
void add_validate(CLI::App& app);

}  // namespace zero3d::tools
