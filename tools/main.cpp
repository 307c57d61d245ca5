// The zero3d command: parses the subcommand and turns errors into one line on stderr and an exit
// code.
#include <CLI/CLI.hpp>

int main(int argc, char** argv) {
  CLI::App app{"zero3d: train large models with ZeRO, from an ordinary ds_config file"};
  CLI11_PARSE(app, argc, argv);
  return 0;
}
