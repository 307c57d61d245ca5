#include "zero3d/formats/deepspeed_contents.h"

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/problem_list.h"
#include "zero3d/formats/safetensors.h"

namespace zero3d {

const TorchArchive& DeepspeedContents::open(const std::string& path) {
  return *archives_.emplace_back(std::make_unique<TorchArchive>(path, files_));
}

const DeepspeedParameter* DeepspeedContents::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &parameters[found->second];
}

DeepspeedParameter& DeepspeedContents::declare(const TorchArchive& archive, const std::string& name,
                                               const std::vector<std::int64_t>& shape) {
  const auto [found, fresh] = index_.emplace(name, parameters.size());
  if (fresh) {
    parameters.emplace_back();
    parameters.back().name = name;
    parameters.back().shape = shape;
  }
  DeepspeedParameter& parameter = parameters[found->second];
  if (parameter.shape != shape)
    throw IoError(archive.path(), 0,
                  concat("parameter ", printable(name), " has shape ", to_string(shape),
                         ", in another file of the checkpoint ", to_string(parameter.shape)));
  return parameter;
}

void DeepspeedContents::add_piece(const std::string& name, std::string_view what,
                                  const DeepspeedPiece& piece) {
  const std::optional<DType> dtype = piece.tensor->type->dtype;
  if (!dtype || !is_floating(*dtype))
    throw IoError(piece.archive->path(), 0,
                  concat(what, " of ", printable(name), " has dtype ", piece.tensor->type->name,
                         ", expected a floating one"));
  if (piece.tensor->expanded())
    throw IoError(piece.archive->path(), 0,
                  concat(what, " of ", printable(name), " repeats its elements (a stride of 0)"));
  const std::int64_t available = piece.tensor->numel();
  if (piece.count < 0 || piece.tensor_first < 0 || piece.count > available ||
      piece.tensor_first > available - piece.count)
    throw IoError(piece.archive->path(), 0,
                  concat(what, " of ", printable(name), ": expected ", piece.count,
                         " elements from ", piece.tensor_first, " on, its tensor has ", available));
  auto& kinds = pieces_[name];
  auto found = kinds.find(what);
  if (found == kinds.end()) found = kinds.emplace(std::string(what), Pieces()).first;
  if (piece.count > 0) found->second.push_back(piece);
}

bool DeepspeedContents::has(std::string_view name, std::string_view what) const {
  const auto found = pieces_.find(name);
  return found != pieces_.end() && found->second.contains(what);
}

const DeepspeedContents::Pieces& DeepspeedContents::pieces(std::string_view name,
                                                           std::string_view what) const {
  static const Pieces kNone;
  const auto parameter = pieces_.find(name);
  if (parameter == pieces_.end()) return kNone;
  const auto found = parameter->second.find(what);
  return found == parameter->second.end() ? kNone : found->second;
}

void DeepspeedContents::finish() {
  ProblemList problems;
  for (DeepspeedParameter& parameter : parameters) {
    const std::int64_t numel = parameter.numel();
    auto& kinds = pieces_[parameter.name];
    if (!kinds.contains(DeepspeedCheckpoint::kMaster)) {
      problems.add(concat("parameter ", printable(parameter.name), " ", to_string(parameter.shape),
                          " has no values in any file"));
      continue;
    }
    parameter.states.clear();
    for (auto& [what, pieces] : kinds) {
      std::ranges::stable_sort(pieces, {}, &DeepspeedPiece::first);
      std::int64_t end = 0;
      for (const DeepspeedPiece& piece : pieces) {
        if (piece.first != end) break;
        end += piece.count;
      }
      if (end != numel || std::ranges::any_of(pieces, [&](const DeepspeedPiece& piece) {
            return piece.first + piece.count > numel;
          }))
        problems.add(concat(what, " of ", printable(parameter.name), ": the files' pieces fit ",
                            "together up to element ", end, " of ", numel));
      if (what != DeepspeedCheckpoint::kMaster) parameter.states.push_back(what);
    }
  }
  problems.throw_if_any(facts.folder, "the files of the checkpoint do not fit together");
}

}  // namespace zero3d
