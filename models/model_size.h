// The hidden size of a Hugging Face model, for the sizes that "auto" derives from it.
#pragma once

#include <cstdint>
#include <string>

namespace zero3d {

/// From config.json in the folder `model` (or that file itself): hidden_size, else the largest of
/// hidden_sizes, else the same inside text_config, else n_embd or d_model; of a built-in shape its
/// own. Throws Error when there is no such file or shape, or no such entry.
std::int64_t model_hidden_size(const std::string& model);

}  // namespace zero3d
