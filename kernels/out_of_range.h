// What is said of a token or target outside the vocabulary, by whichever back end finds it.
#pragma once

#include <cstdint>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d::kernels {

[[noreturn]] inline void throw_bad_token(const char* what, std::int64_t vocabulary,
                                         std::int64_t row, std::int32_t token) {
  throw_invalid(concat(what, ": expected tokens in [0, ", vocabulary,
                       "), the vocabulary, but token ", row, " is ", token,
                       "; is the data made for another vocabulary?"));
}

[[noreturn]] inline void throw_bad_target(std::int64_t vocabulary, std::int64_t row,
                                          std::int32_t target, std::int32_t ignored) {
  throw_invalid(concat("cross_entropy_forward: expected targets in [0, ", vocabulary, ") or ",
                       ignored, " (ignored), but target ", row, " is ", target));
}

}  // namespace zero3d::kernels
