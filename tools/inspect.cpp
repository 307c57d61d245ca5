// zero3d inspect: what a checkpoint holds, and whether its files are whole.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "command.h"
#include "inspect_deepspeed.h"

namespace zero3d::tools {
namespace {

struct InspectOptions {
  std::string path;
  bool verify = false;
};

void inspect(const InspectOptions& options) {
  const DeepspeedCheckpoint checkpoint(options.path);
  print_checkpoint(checkpoint, std::cout);
  if (!options.verify) return;
  checkpoint.verify();
  std::cout << "  every file has the checksums that it states\n";
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command =
      app.add_subcommand("inspect", "Say what a checkpoint that DeepSpeed wrote holds");
  command
      ->add_option("CHECKPOINT", options->path,
                   "A folder with a file 'latest', or a tag's folder in it")
      ->required();
  command->add_flag("--verify", options->verify, "Read all files and compare their checksums");
  command->callback([options] { inspect(*options); });
}

}  // namespace zero3d::tools
