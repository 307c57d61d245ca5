// Any text as the manifest of a checkpoint: either an IoError, or a manifest that says the same
// when it is written again, whose tensors have each element once or are refused.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "zero3d/core/error.h"
#include "zero3d/engine/checkpoint/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace zero3d;
  CheckpointManifest manifest;
  try {
    manifest = parse_manifest("input", {reinterpret_cast<const char*>(data), size});
  } catch (const IoError&) {
    return 0;
  }
  const std::string text = to_text(manifest);
  if (to_text(parse_manifest("written", text)) != text) std::abort();
  constexpr std::int64_t kMostRuns = 1 << 16;  // as many as a file of this size is worth
  for (std::size_t i = 0; i < manifest.parameters.size(); ++i) {
    for (const auto& [tensor, dtype] : manifest.parameters[i].tensors) {
      const std::vector<Piece>& pieces = manifest.pieces[i].at(tensor);
      std::int64_t runs = 0;
      for (const Piece& piece : pieces) runs += piece.repeat > kMostRuns ? kMostRuns : piece.repeat;
      if (runs >= kMostRuns) continue;
      try {
        placed_runs(pieces, manifest.parameters[i].shape.numel(),
                    static_cast<std::int64_t>(size_of(dtype)), "a tensor");
      } catch (const Error&) {
      }
    }
  }
  return 0;
}
