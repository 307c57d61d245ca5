// The subcommands of `zero3d`. A subcommand adds itself to the application and does its work in its
// callback; it throws zero3d::Error, which main() prints as one line, or ExitStatus after it has
// said itself what is wrong. Only the sources that declare options include the parser's headers:
// they are slow to compile.
#pragma once

namespace CLI {
class App;
}

namespace zero3d::tools {

/// Ends the command with this exit code, without another word.
struct ExitStatus {
  int code = 1;
};

void add_bench(CLI::App& app);
void add_config_docs(CLI::App& app);
void add_diff(CLI::App& app);
void add_export(CLI::App& app);
void add_inspect(CLI::App& app);
void add_train(CLI::App& app);
void add_validate(CLI::App& app);

}  // namespace zero3d::tools
