// What the readers of DeepSpeed's layouts put together: facts, parameters, and for each of them
// where the pieces of its master weights and states lie. Internal to formats.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/formats/deepspeed_checkpoint.h"
#include "zero3d/formats/deepspeed_files.h"
#include "zero3d/formats/torch_archive.h"

namespace zero3d {

/// Elements of a parameter, at [first, first + count), that lie in a tensor from `tensor_first` on.
struct DeepspeedPiece {
  const TorchArchive* archive = nullptr;
  const PickleTensor* tensor = nullptr;
  std::int64_t tensor_first = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

class DeepspeedContents {
 public:
  using Pieces = std::vector<DeepspeedPiece>;

  DeepspeedFacts facts;
  std::vector<DeepspeedParameter> parameters;

  /// Opens a file of the checkpoint, kept for as long as this.
  const TorchArchive& open(const std::string& path);
  const std::vector<std::unique_ptr<TorchArchive>>& archives() const { return archives_; }

  const DeepspeedParameter* find(std::string_view name) const;
  /// Adds a parameter, or returns the one of that name, which must have the same shape.
  DeepspeedParameter& declare(const TorchArchive& archive, const std::string& name,
                              const std::vector<std::int64_t>& shape);
  void add_piece(const std::string& name, std::string_view what, const DeepspeedPiece& piece);
  bool has(std::string_view name, std::string_view what) const;
  /// The pieces in order; empty when there are none.
  const Pieces& pieces(std::string_view name, std::string_view what) const;

  /// Sorts all pieces and holds them to the shapes. Throws IoError naming gaps and overlaps.
  void finish();

 private:
  std::shared_ptr<OpenFiles> files_ = std::make_shared<OpenFiles>();
  std::vector<std::unique_ptr<TorchArchive>> archives_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::map<std::string, std::map<std::string, Pieces, std::less<>>, std::less<>> pieces_;
};

/// The readers, each for a kind of folder. They throw IoError.
void read_deepspeed_zero(const DeepspeedFiles& files, DeepspeedContents& contents);
void read_deepspeed_universal(const DeepspeedFiles& files, DeepspeedContents& contents);
/// The optimizer in a model file: no ZeRO stage. `weights` in the order of the module.
struct DeepspeedWeight {
  std::string name;
  const TorchArchive* archive = nullptr;
  const PickleTensor* tensor = nullptr;
};
void read_deepspeed_plain(const std::vector<const TorchArchive*>& models,
                          const std::vector<DeepspeedWeight>& weights, DeepspeedContents& contents);

// Values that the layouts share.

/// A member that must be there, of that kind.
PickleValue require_member(const TorchArchive& archive, PickleValue parent, std::string_view name,
                           PickleKind kind);
/// name -> shape, in order, of a dict of sizes.
using NamedShapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;
std::int64_t numel_of(const std::vector<std::int64_t>& shape);
NamedShapes named_shapes(const TorchArchive& archive, PickleValue dict);
/// Of counters: 0 where it is absent, and IoError when it is negative or no number. A tensor of one
/// element counts as its number.
std::int64_t counter(const TorchArchive& archive, PickleValue value);
/// Steps, samples, degrees, scheduler, version and aliases of a model file.
void read_model_facts(const TorchArchive& archive, DeepspeedFacts& facts);
/// Loss scale, clipping and groups of an optimizer's state; `optimizer` has "param_groups".
void read_optimizer_facts(const TorchArchive& archive, PickleValue state, PickleValue optimizer,
                          DeepspeedFacts& facts);
/// The states of an optimizer ("state"), by the number of the parameter.
std::map<std::int64_t, PickleValue> states_by_id(PickleValue optimizer);
/// The numbers of the parameters of each of its groups.
std::vector<std::vector<std::int64_t>> group_ids(const TorchArchive& archive,
                                                 PickleValue optimizer);
/// Calls body(name, tensor) for the states that have an element for each of at least `numel`.
void for_each_state(PickleValue states, std::int64_t numel,
                    const std::function<void(const std::string&, const PickleTensor&)>& body);

}  // namespace zero3d
