// What the files of ZeRO ranks have in common, whatever the stage. Internal to formats.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/formats/deepspeed_contents.h"

namespace zero3d {

/// What holds for the elements of one ZeRO rank's file.
struct DeepspeedShard {
  const TorchArchive* archive = nullptr;
  PickleValue state;
};

/// One group's partition on one rank: masters, and states that lie as they do.
struct DeepspeedPartition {
  const TorchArchive* archive = nullptr;
  const PickleTensor* masters = nullptr;
  PickleValue states;

  /// The elements of a parameter from `first` on, which lie from element `at` on here.
  void add(DeepspeedContents& contents, const std::string& name, std::int64_t at,
           std::int64_t first, std::int64_t count) const;
};

/// Throws IoError: a file that must be there is not.
[[noreturn]] void refuse_missing(const DeepspeedFiles& files, std::string_view what);

/// The optimizer files of a model-parallel rank, in order; empty when there are none. Throws
/// IoError when one is missing.
std::vector<DeepspeedShard> open_shards(const DeepspeedFiles& files, int mp,
                                        DeepspeedContents& contents);
/// The parameters of each group of the optimizer, in the order of its flat buffer.
std::vector<NamedShapes> group_shapes(const TorchArchive& model);
/// `value` as a tensor; IoError naming `what` otherwise.
const PickleTensor& require_tensor(const TorchArchive& archive, PickleValue value,
                                   std::string_view what);
/// Declares the parameters of a group, with the updates that its states count.
void declare_group(DeepspeedContents& contents, const TorchArchive& archive, PickleValue states,
                   std::size_t group, const NamedShapes& shapes);
/// Of the first floating tensor in a module's state.
std::optional<DType> weight_dtype(PickleValue module);

void read_deepspeed_stage3(const DeepspeedFiles& files, DeepspeedContents& contents);

}  // namespace zero3d
