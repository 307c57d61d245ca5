// One manifest of those that ranks make of their parts.
#pragma once

#include <string>
#include <vector>

#include "zero3d/engine/checkpoint/manifest.h"

namespace zero3d {

/// In front of a rank's text: it lists every parameter of its stage and part, in order; or those
/// that it wrote something of.
inline constexpr char kLeadsPart = 'L';
inline constexpr char kOfPart = 'P';

/// Leaves out parameters of which this rank wrote nothing.
void drop_without_pieces(CheckpointManifest& part);

/// The whole; parameters in the order of the ranks that lead. Throws Error(kInvalid) where ranks
/// disagree about a parameter.
CheckpointManifest merge_manifests(const std::vector<std::string>& parts, const SavedRun& run);

}  // namespace zero3d
