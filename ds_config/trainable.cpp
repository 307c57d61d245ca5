#include "zero3d/ds_config/trainable.h"

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/support.h"

namespace zero3d {

void TrainCheck::require_ok() const {
  if (ok()) return;
  std::string message;
  for (const ConfigMessage& entry : errors) {
    message += concat(message.empty() ? "" : "\n  ", entry.path, entry.path.empty() ? "" : ": ",
                      entry.message);
  }
  throw ConfigError("", message);
}

TrainCheck check_trainable(const LoadResult& loaded, const TrainOptions& options) {
  TrainCheck check;
  check.errors = loaded.train_errors;
  std::string list;
  for (const config::SupportEntry& entry : config::support_table()) {
    if (entry.active == nullptr || !entry.active(loaded.config)) continue;
    const std::string path(entry.path);
    const bool differs = entry.support == config::Support::changes_result;
    if (entry.support == config::Support::refused) {
      check.errors.push_back(
          {path,
           concat("not implemented yet: it would ", entry.would, "; run with a degree of 1"),
           {}});
    } else if (differs && !options.allow_unsupported) {
      check.errors.push_back(
          {path,
           concat("not implemented yet, and the result would differ: it would ", entry.would,
                  ". Remove it, or train without it by --allow-unsupported"),
           {}});
    } else {
      list += concat(list.empty() ? "" : "; ", path, " (would ", entry.would, ")");
    }
  }
  if (!list.empty()) check.not_implemented = concat("accepted, but not implemented yet: ", list);
  return check;
}

}  // namespace zero3d
