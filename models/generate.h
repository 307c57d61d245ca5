// Text from a model: a loop of "logits of the last position, draw the next token" over whatever
// runs the model. For models of bytes a token below 256 is a byte.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero3d {

struct SamplingOptions {
  double temperature = 1.0;  ///< 0: the most likely token (the lowest on a tie).
  std::int64_t top_k = 0;    ///< Draw among the k most likely (the lower token on a tie); 0: all.
  std::uint64_t seed = 0;
};

/// Draws from softmax(logits / temperature); a pure function of its arguments. `position` names the
/// random number. Throws Error(kInvalid) for no logits, Error(kNumeric) for logits that are not
/// finite (-inf excepted: never drawn).
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          std::uint64_t position);

struct GenerateOptions {
  std::int64_t max_new_tokens = 100;
  std::int64_t max_context = 0;  ///< The last tokens that are shown to the model; 0: all.
  std::int32_t end_token = -1;   ///< Ends the text when drawn (and is kept); -1: none.
  SamplingOptions sampling;
};

/// Logits [vocabulary] of the position after `tokens` (one sequence, not empty).
using NextLogits = std::function<std::vector<float>(std::span<const std::int32_t> tokens)>;

/// The prompt and what follows it. Throws Error(kInvalid) for an empty prompt or bad options.
std::vector<std::int32_t> generate(std::span<const std::int32_t> prompt,
                                   const GenerateOptions& options, const NextLogits& next_logits);

/// Bytes as tokens and back; tokens from 256 on (end of text) have no byte and are left out.
std::vector<std::int32_t> tokens_from_bytes(std::string_view text);
std::string bytes_from_tokens(std::span<const std::int32_t> tokens);

}  // namespace zero3d
