// What the engine would refuse or warn of once a run starts, told while the file is read: its own
// constructors are called on the settings that the file comes to.
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/rules.h"
#include "zero3d/ds_config/settings.h"
#include "zero3d/engine/optimizer_setup.h"

namespace zero3d::config {
namespace {

/// Where `path` stands, or the next section around it that the file has.
TextPosition nearest_position(const JsonValue& root, std::string path) {
  for (;;) {
    const JsonValue* node = root.find_path(path);
    if (node != nullptr) return node->position();
    const std::size_t dot = path.rfind('.');
    if (dot == std::string::npos) return {};
    path.resize(dot);
  }
}

class Trial {
 public:
  Trial(const Draft& draft, LoadResult& result) : draft_(draft), result_(result) {}

  void run() {
    const ReadSettings read = read_settings(draft_.config);
    for (const ConfigMessage& problem : read.problems) error(problem.path, problem.message);
    const TrainSettings& settings = read.settings;
    if (settings.gradients.predivide_factor == 0)
      error("gradient_predivide_factor", "is 0; expected another number, since it divides");
    if (settings.precision.loss_scale && read.problems.empty())
      attempt("fp16", [&] { LossScaler scaler(*settings.precision.loss_scale); });
    for (const auto& [tiles, key] : {std::pair(settings.tiles.linear, "zero3d.linear_tiles"),
                                     std::pair(settings.tiles.head, "zero3d.head_tiles")}) {
      if (tiles > 1 && settings.tp > 1)
        error(key, concat("cuts layers into ", tiles, " tiles, and tp is ", settings.tp,
                          ": a layer is cut one way or the other; set it to 1, or tp to 1"));
    }
    if (settings.accumulation < settings.pp)  // the engine says the same, and for how long
      warn(concat("gradient_accumulation_steps: ", settings.accumulation,
                  " micro-batches of a step on ", settings.pp,
                  " stages leave some of them waiting; raise gradient_accumulation_steps"));
    const bool sound = !settings.optimizer.type.empty() && !reported("optimizer");
    const bool scheduled = !settings.schedule.type.empty() && !reported("scheduler");
    if (sound) {
      attempt("optimizer", [&] {
        const OptimizerSetup setup(settings.optimizer,
                                   scheduled ? settings.schedule : ScheduleChoice{}, {});
        for (const std::string& warning : setup.warnings()) warn(warning);
      });
    } else if (scheduled) {
      attempt("scheduler", [&] { try_schedule(settings.schedule); });
    }
  }

 private:
  /// Alone, where the optimizer cannot be made: with and without decay are two groups.
  void try_schedule(const ScheduleChoice& choice) {
    const std::vector<GroupSettings> groups(2);
    const auto schedule = make_schedule(choice.type, choice.params, groups);
    for (const std::string& warning : schedule->warnings()) warn(warning);
  }

  template <typename Body>
  void attempt(const std::string& section, const Body& body) {
    try {
      body();
    } catch (const ConfigError& problem) {
      const std::string message = problem.what();
      error(problem.path(), message.substr(problem.path().size() + 2));
    } catch (const Error& problem) {
      error(section, problem.what());
    }
  }

  /// Whether something in `section` is refused already.
  bool reported(const std::string& section) const {
    for (const ConfigMessage& entry : result_.train_errors) {
      if (entry.path.rfind(section, 0) == 0) return true;
    }
    return false;
  }

  void error(const std::string& path, const std::string& message) {
    for (const ConfigMessage& entry : result_.train_errors) {
      if (entry.path == path) return;
    }
    draft_.reader.train_error(path, message, nearest_position(draft_.root, path));
  }

  void warn(const std::string& text) {
    const std::size_t colon = text.find(": ");
    std::string path = text.substr(0, colon);
    const TextPosition position = nearest_position(draft_.root, path);
    result_.train_warnings.push_back({std::move(path), text.substr(colon + 2), position});
  }

  const Draft& draft_;
  LoadResult& result_;
};

}  // namespace

void check_training(const Draft& draft, LoadResult& result) { Trial(draft, result).run(); }

}  // namespace zero3d::config
