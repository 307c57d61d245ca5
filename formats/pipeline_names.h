// Which parameters of a checkpoint are which of a model: by name where the checkpoint has the
// model's own, and by place where a pipeline saved it, whose layers name their parameters as their
// own modules do ("3.block.ln_1.weight", "5.head.weight").
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "zero3d/formats/deepspeed_checkpoint.h"

namespace zero3d {

struct NamedShape {
  std::string name;
  std::vector<std::int64_t> shape;
};

struct MatchedNames {
  std::map<std::string, std::string> names;  ///< The model's name -> that in the checkpoint.
  std::vector<std::string> remarks;          ///< Pairs that rest on their order alone.
};

/// Finds in `checkpoint` every parameter of the model, whose `blocks` declare them in order of
/// execution; one declared by several blocks (tied) counts where it comes first. `renames` settles
/// names of the checkpoint to begin with, whole ones or beginnings that end before a dot.
///
/// By name: the same one, or the same without "module." in front and with or without the base
/// model's prefix ("transformer.", "model."). By place, for pipelines: layers with parameters
/// follow one another as blocks do, and a block may be several layers; within a block, parameters
/// of equal shape are paired by the most parts of their names that agree from the end, then by
/// their order where both sides have equally many.
///
/// Throws IoError naming both sides where something of the model is not found, something trained
/// in the checkpoint is left over, shapes differ, or parameters could be paired in several ways.
MatchedNames match_names(const DeepspeedCheckpoint& checkpoint,
                         const std::vector<std::vector<NamedShape>>& blocks,
                         const std::map<std::string, std::string>& renames = {});

/// The pure part for pipelines: pairs `layers` (names without the layer's number) with `blocks`.
/// Returns for each parameter of each layer the model's name.
std::vector<std::vector<std::string>> match_layers(
    const std::vector<std::vector<NamedShape>>& layers,
    const std::vector<std::vector<NamedShape>>& blocks, std::vector<std::string>& remarks);

}  // namespace zero3d
