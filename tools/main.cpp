// The zero3d command: dispatches to the subcommands and turns errors into one line on stderr and
// exit code 1.
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "command.h"

int main(int argc, char** argv) {
  CLI::App app{"zero3d: train large models with ZeRO, from an ordinary ds_config file", "zero3d"};
  app.require_subcommand(1);
  zero3d::tools::add_train(app);
  zero3d::tools::add_validate(app);
  zero3d::tools::add_config_docs(app);
  zero3d::tools::add_bench(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // --help is no failure
  } catch (const zero3d::tools::ExitStatus& status) {
    return status.code;
  } catch (const std::exception& error) {
    std::cout.flush();
    std::cerr << "zero3d: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
