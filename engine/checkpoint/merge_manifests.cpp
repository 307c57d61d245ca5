#include "zero3d/engine/checkpoint/merge_manifests.h"

#include <map>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

class Merger {
 public:
  CheckpointManifest whole;

  void add(const CheckpointManifest& part, std::size_t rank) {
    const auto first_file = static_cast<int>(whole.files.size());
    whole.files.insert(whole.files.end(), part.files.begin(), part.files.end());
    for (std::size_t i = 0; i < part.parameters.size(); ++i) {
      const std::size_t index = place(part.parameters[i], rank);
      for (const auto& [tensor, pieces] : part.pieces[i]) {
        std::vector<Piece>& all = whole.pieces[index][tensor];
        for (Piece piece : pieces) {
          piece.file += first_file;
          all.push_back(piece);
        }
      }
    }
  }

 private:
  std::size_t place(const SavedParameter& parameter, std::size_t rank) {
    const auto [found, fresh] = index_.emplace(parameter.name, whole.parameters.size());
    if (fresh) {
      whole.parameters.push_back(parameter);
      whole.pieces.emplace_back();
      return found->second;
    }
    const SavedParameter& known = whole.parameters[found->second];
    if (known.shape != parameter.shape || known.tensors != parameter.tensors)
      throw_invalid(concat("rank ", rank, " has another ", parameter.name,
                           " than others: ", to_string(parameter.shape), ", not ",
                           to_string(known.shape), ", or other states of it"));
    return found->second;
  }

  std::map<std::string, std::size_t> index_;
};

}  // namespace

void drop_without_pieces(CheckpointManifest& part) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < part.parameters.size(); ++i) {
    if (part.pieces[i].empty()) continue;
    if (kept < i) {
      part.parameters[kept] = std::move(part.parameters[i]);
      part.pieces[kept] = std::move(part.pieces[i]);
    }
    ++kept;
  }
  part.parameters.resize(kept);
  part.pieces.resize(kept);
}

CheckpointManifest merge_manifests(const std::vector<std::string>& parts, const SavedRun& run) {
  Merger merger;
  for (const char turn : {kLeadsPart, kOfPart}) {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      if (parts[rank].empty() || parts[rank].front() != turn) continue;
      const std::string_view text = std::string_view(parts[rank]).substr(1);
      merger.add(parse_manifest(concat("the part of rank ", rank), text), rank);
    }
  }
  merger.whole.run = run;
  return std::move(merger.whole);
}

}  // namespace zero3d
