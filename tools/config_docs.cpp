// zero3d config-docs: prints docs/config.md; for the people who maintain it, so not listed.
#include <iostream>

#include "command.h"
#include "zero3d/ds_config/docs.h"

namespace zero3d::tools {

void add_config_docs(CLI::App& app) {
  CLI::App* command = app.add_subcommand("config-docs", "Print docs/config.md");
  command->group("");
  command->callback([] { std::cout << config_reference(); });
}

}  // namespace zero3d::tools
