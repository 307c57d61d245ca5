// A configuration of which a test states what it is about.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/load.h"

namespace zero3d {

/// `members` in a configuration that is fine otherwise, with an optimizer unless they have one, or
/// are none themselves.
inline LoadResult load(const std::string& members, int ranks = 8) {
  LoadOptions options;
  options.ranks = ranks;
  const bool has_optimizer = members.empty() || members.find("\"optimizer\"") != std::string::npos;
  LoadResult loaded = load_config_text(
      concat("{\"train_batch_size\": 8, ",
             has_optimizer ? "" : "\"optimizer\": {\"type\": \"AdamW\"}, ", members, "}"),
      "file", options);
  EXPECT_TRUE(loaded.ok()) << members << ": " << (loaded.ok() ? "" : loaded.errors[0].message);
  return loaded;
}

}  // namespace zero3d
