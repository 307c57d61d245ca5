// Command-line options that go into loading a ds_config, shared by validate and train.
#pragma once

#include <string>
#include <vector>

#include "zero3d/ds_config/load.h"

namespace CLI {
class App;
}

namespace zero3d::tools {

struct ConfigOptions {
  LoadOptions load;
  std::vector<double> betas;
  std::string model;  ///< Folder of a Hugging Face model; its hidden size fills "auto".

  /// The options as given, with the hidden size of `model` when "auto" may need it.
  LoadOptions resolved() const;
};

/// --tp, --pp, --sp, those of pipelines, --recompute, --strict, and the values for "auto" that
/// every subcommand takes: --lr,
/// --micro-batch, ... `options` must outlive the parsing.
void add_loading_options(CLI::App& command, ConfigOptions& options);
/// The same with --ranks, --model, --hidden-size and --steps, for subcommands that run no model.
void add_config_options(CLI::App& command, ConfigOptions& options);

}  // namespace zero3d::tools
