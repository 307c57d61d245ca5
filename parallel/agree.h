// Numbers that every rank brings and all take the same of. Collective, host-blocking.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "zero3d/parallel/comm/communicator.h"

namespace zero3d {

inline std::int64_t maximum(Communicator& ranks, std::int64_t value) {
  for (const std::string& text : ranks.exchange(std::to_string(value)))
    value = std::max<std::int64_t>(value, std::stoll(text));
  return value;
}

inline std::int64_t minimum(Communicator& ranks, std::int64_t value) {
  return -maximum(ranks, -value);
}

}  // namespace zero3d
