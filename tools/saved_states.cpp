#include "saved_states.h"

#include "zero3d/core/error.h"
#include "zero3d/engine/checkpoint/checkpoint_folder.h"
#include "zero3d/engine/checkpoint/checkpoint_reader.h"

namespace zero3d::tools {

std::unique_ptr<SavedState> open_saved_state(const std::string& folder) {
  const std::string path = find_checkpoint(folder);
  if (!is_checkpoint(path)) {
    throw IoError(path, 0,
                  path == folder ? "has neither a checkpoint nor a file `latest` that names one"
                                 : "is no whole checkpoint: it has no zero3d.json");
  }
  return std::make_unique<CheckpointReader>(path);
}

const JsonValue* train_fact(const SavedState& saved, const char* name) {
  const JsonValue* const facts = saved.run().client_state.find(kTrainFacts);
  return facts == nullptr ? nullptr : facts->find(name);
}

}  // namespace zero3d::tools
