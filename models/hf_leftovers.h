// Tensors of a model folder that no parameter takes: what older releases of transformers saved
// beside the weights and its later ones derive. Internal to models.
#pragma once

#include <optional>
#include <string>

#include "zero3d/formats/weight_folder.h"
#include "zero3d/models/model_config.h"

namespace zero3d {

/// Whether two tensors hold the same values; false where shapes differ or one is not floating.
bool same_values(const WeightFolder::Tensor& a, const WeightFolder::Tensor& b);

/// What is known of a tensor that no parameter takes.
struct Leftover {
  bool known = false;    ///< A causal mask or a rotary table, by its name.
  std::string doubtful;  ///< Why it may not be what the model derives; empty: it is that.
};
/// Compares it with what the model makes of itself. `config` null: rotary tables are doubtful.
Leftover examine_leftover(const WeightFolder::Tensor& tensor, const ModelConfig* config);

}  // namespace zero3d
