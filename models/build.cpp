// Chooses the family's blocks.
#include "zero3d/models/build.h"

#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "zero3d/core/log.h"
#include "zero3d/core/output_file.h"
#include "zero3d/core/text.h"
#include "zero3d/models/gpt2.h"
#include "zero3d/models/hf_folder.h"
#include "zero3d/models/llama.h"
#include "zero3d/models/mesh_fit.h"

namespace zero3d {
namespace {

class LanguageModel final : public Module {
 public:
  LanguageModel(ModelConfig config, const TileSettings& tiles,
                std::vector<std::unique_ptr<Block>> blocks)
      : config_(std::move(config)), tiles_(tiles), blocks_(std::move(blocks)) {}
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return blocks_; }
  std::vector<std::string> mesh_problems(const GridDegrees& degrees) const override {
    std::vector<std::string> problems = zero3d::mesh_problems(config_, degrees);
    if (degrees.tp > 1 && (tiles_.linear > 1 || tiles_.head > 1))
      problems.push_back(concat("its layers are cut into tiles (linear_tiles ", tiles_.linear,
                                ", head_tiles ", tiles_.head, " of the section zero3d), and tp ",
                                degrees.tp, " cuts them too: a layer is cut one way or the other"));
    return problems;
  }

  void write_beside_weights(const std::string& folder, DType dtype) const override {
    write_text_file((std::filesystem::path(folder) / "config.json").string(),
                    to_config_json(config_, dtype));
    const std::vector<std::string> left = carry_model_files(config_.folder, folder);
    if (!left.empty())
      log_info(
          concat(left.size(), " files are left in ", config_.folder, ": ", joined(left, ", ")));
  }

 private:
  const ModelConfig config_;
  const TileSettings tiles_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace

std::unique_ptr<Module> build_model(const ModelConfig& config, const TileSettings& tiles) {
  validate(config);
  return std::make_unique<LanguageModel>(config, tiles,
                                         config.family == ModelConfig::Family::gpt2
                                             ? make_gpt2_blocks(config, tiles)
                                             : make_llama_blocks(config, tiles));
}

std::vector<ParameterSpec> list_parameters(const Module& module) {
  std::vector<ParameterSpec> unique;
  std::map<std::string, std::size_t> seen;
  for (const auto& block : module.blocks()) {
    for (ParameterSpec& spec : block->parameters()) {
      const auto [at, fresh] = seen.try_emplace(spec.name, unique.size());
      if (fresh) {
        spec.piece = {};
        spec.tile = kEveryTile;
        unique.push_back(std::move(spec));
      } else if (unique[at->second].shape != spec.shape) {
        throw_invalid(concat("parameter ", spec.name, " is declared as ",
                             to_string(unique[at->second].shape), " and again, by block ",
                             block->name(), ", as ", to_string(spec.shape)));
      }
    }
  }
  return unique;
}

}  // namespace zero3d
