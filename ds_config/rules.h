// The rules of ds_config that look at more than one key, in the order DeepSpeed applies them.
#pragma once

#include "zero3d/ds_config/reader.h"

namespace zero3d::config {

/// Refuses keys that DeepSpeed removed, whatever their value, and says what replaces them; renames
/// the section bfloat16. Works on the tree, before it is read.
void replace_old_keys(Reader& reader, JsonValue& root);

/// dp, tp, pp and sp of `ranks`, from the options or the tree.
ParallelDegrees resolve_degrees(Reader& reader, const JsonValue& root, const LoadOptions& options);

/// Deprecated keys into their replacements, and the rules inside zero_optimization.
void finish_zero(Reader& reader, const JsonValue& root, Config& config);
/// What the stage at hand cannot bear or does not use.
void check_zero(Reader& reader, const JsonValue& root, const Config& config);
void finish_precision(Reader& reader, const JsonValue& root, Config& config);
/// Whichever of the batch triple is absent, and whether the three fit dp.
void finish_batch(Reader& reader, const JsonValue& root, Config& config);
/// The rest: reductions, curriculum, wall_clock_breakdown, keys without effect at this stage.
void finish_rest(Reader& reader, const JsonValue& root, Config& config);
/// Types and parameters of optimizer and scheduler, as their constructors will take them.
void check_optimizer(Reader& reader, const JsonValue& root, const Config& config);
void check_scheduler(Reader& reader, const JsonValue& root, const Config& config);

/// Where `key` of `section` ("" for the root) stands, else the section, else 0:0.
TextPosition position_of(const JsonValue& root, std::string_view section, std::string_view key);

}  // namespace zero3d::config
