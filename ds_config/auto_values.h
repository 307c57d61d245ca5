// Replaces "auto" in the tree of a ds_config before it is read, by the rules of the Hugging Face
// integration: values from the options, sizes from the model's hidden size. Also compares what the
// file states with the options given, as that integration does.
#pragma once

#include "zero3d/ds_config/reader.h"

namespace zero3d::config {

/// `replicas` is dp, the divisor of train_batch_size. What no option supplies becomes one error.
void resolve_autos(Reader& reader, JsonValue& root, const AutoValues& values, int replicas);

}  // namespace zero3d::config
