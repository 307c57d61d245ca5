#include "zero3d/models/choose_tiles.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/memory_fit.h"
#include "zero3d/models/build.h"
#include "zero3d/parallel/agree.h"

namespace zero3d {
namespace {

constexpr int kLevels[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};

class Search {
 public:
  Search(const ModelConfig& model, const TrainSettings& settings, const Mesh& mesh,
         const EngineOptions& options, std::int64_t budget)
      : model_(model),
        settings_(settings),
        mesh_(mesh),
        options_(options),
        budget_(budget),
        asked_(settings.tiles) {}

  TileSettings run() const {
    const TileSettings uncut = with(1, 1);
    if (mesh_.size(Axis::tp) > 1) return uncut;  // layers are cut one way or the other
    if (budget_ < 0 || (asked_.linear > 0 && asked_.head > 0)) return uncut;
    // The coarsest of both that fits (finer ones may not: tiles have padding), then as few of each
    // as will still do.
    const auto level = std::find_if(std::begin(kLevels), std::end(kLevels),
                                    [this](int n) { return fits(with(n, n)); });
    if (level == std::end(kLevels)) {
      if (mesh_.leads())
        log_warning(concat("the model's plan does not fit ", format_bytes(budget_),
                           " of device memory, and no cut of its layers into up to ",
                           kLevels[std::size(kLevels) - 1], " tiles makes it fit"));
      return smallest();
    }
    TileSettings found = with(*level, *level);
    found.linear = fewest(found, &TileSettings::linear);
    found.head = fewest(found, &TileSettings::head);
    return found;
  }

 private:
  /// What is asked for stays.
  TileSettings with(int linear, int head) const {
    return {asked_.linear > 0 ? asked_.linear : linear, asked_.head > 0 ? asked_.head : head};
  }

  /// With the smallest need, for the engine to name.
  TileSettings smallest() const {
    TileSettings found = with(1, 1);
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const int level : kLevels) {
      const TileSettings tiles = with(level, level);
      const std::int64_t need = maximum(mesh_.world(), need_here(tiles));
      if (need < least) least = need, found = tiles;
    }
    return found;
  }

  std::int64_t need_here(const TileSettings& tiles) const {
    try {
      const std::unique_ptr<Module> module = build_model(model_, tiles);
      return RunPlanner(settings_, *module, mesh_, options_).least_memory(settings_).total();
    } catch (const Error&) {
      return std::numeric_limits<std::int64_t>::max();
    }
  }

  int fewest(TileSettings tiles, int TileSettings::*which) const {
    const int found = tiles.*which;
    if (asked_.*which > 0) return found;
    for (const int level : kLevels) {
      tiles.*which = level;
      if (level >= found || fits(tiles)) return level;
    }
    return found;
  }

  /// On every rank: stages of a pipeline have blocks of their own, and all must cut alike.
  bool fits(const TileSettings& tiles) const {
    for (const std::string& rank : mesh_.world().exchange(fits_here(tiles) ? "yes" : "no"))
      if (rank != "yes") return false;
    return true;
  }

  /// A cut that is refused for another reason does not fit either: an optimizer may want whole
  /// matrices.
  bool fits_here(const TileSettings& tiles) const {
    try {
      plan_memory(settings_, *build_model(model_, tiles), mesh_, options_, budget_);
      return true;
    } catch (const OutOfMemory&) {
      return false;
    } catch (const Error&) {
      if (tiles == with(1, 1)) throw;
      return false;
    }
  }

  const ModelConfig& model_;
  const TrainSettings& settings_;
  const Mesh& mesh_;
  const EngineOptions& options_;
  const std::int64_t budget_;
  const TileSettings asked_;
};

}  // namespace

TileSettings choose_tiles(const ModelConfig& model, const TrainSettings& settings, const Mesh& mesh,
                          const EngineOptions& options, std::int64_t device_budget) {
  return Search(model, settings, mesh, options, device_budget).run();
}

}  // namespace zero3d
