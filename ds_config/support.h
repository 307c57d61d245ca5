// The one list of what zero3d does not implement of ds_config, or has no use for. Everything not
// listed is implemented.
#pragma once

#include <span>
#include <string_view>

#include "zero3d/ds_config/config.h"

namespace zero3d::config {

enum class Support {
  implemented,
  no_effect,       ///< Nothing to do here; often without effect in DeepSpeed as well.
  not_yet,         ///< The result of training is the same without it.
  changes_result,  ///< The result would differ: train refuses it unless told otherwise.
  refused          ///< The run cannot start with it.
};

struct SupportEntry {
  std::string_view path;  ///< A key, or a section with all its keys.
  Support support;
  std::string_view would;         ///< What it would have done.
  bool (*active)(const Config&);  ///< Whether a configuration asks for it; null: never reported.
};

std::span<const SupportEntry> support_table();

/// The entry that covers `path`: its own or that of a section around it; null when implemented.
const SupportEntry* find_support(std::string_view path);

}  // namespace zero3d::config
