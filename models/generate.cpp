// Sampling in double over a fixed order of tokens, so that a seed names one text.
#include "zero3d/models/generate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "zero3d/core/error.h"
#include "zero3d/core/random.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

/// Outside of the layers that training draws from (block * 16 + site).
constexpr std::uint32_t kSamplingLayer = 0xFFFFFFFFu;

void check(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
    throw_invalid(concat("temperature is ", options.temperature, "; expected 0 or more"));
  if (options.top_k < 0)
    throw_invalid(concat("top_k is ", options.top_k, "; expected 0 (all tokens) or more"));
}

/// The candidates, most likely first; equal logits by token.
std::vector<std::int32_t> candidates(std::span<const float> logits, std::int64_t top_k) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const auto count = static_cast<std::int64_t>(order.size());
  const std::int64_t keep = top_k == 0 ? count : std::min(top_k, count);
  std::partial_sort(order.begin(), order.begin() + keep, order.end(), likelier);
  order.resize(static_cast<std::size_t>(keep));
  return order;
}

}  // namespace

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          std::uint64_t position) {
  check(options);
  if (logits.empty()) throw_invalid("there are no logits to draw a token from");
  float highest = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity())
      throw Error(ErrorKind::kNumeric, concat("the logit of token ", i, " is ", logits[i]));
    highest = std::max(highest, logits[i]);
  }
  if (std::isinf(highest)) throw Error(ErrorKind::kNumeric, "the logits of all tokens are -inf");

  const bool greedy = options.temperature == 0;
  const std::vector<std::int32_t> order = candidates(logits, greedy ? 1 : options.top_k);
  if (greedy) return order.front();
  std::vector<double> cumulative(order.size());
  double sum = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const double logit = logits[static_cast<std::size_t>(order[i])];
    sum += std::exp((logit - static_cast<double>(highest)) / options.temperature);
    cumulative[i] = sum;
  }
  RandomKey key;
  key.seed = options.seed;
  key.layer = kSamplingLayer;
  const double threshold = (key.word(0, position) + 0.5) / 4294967296.0 * sum;
  // The first sum that reaches the threshold: a token without weight does not raise the sum, and
  // the threshold is at most the last one.
  const auto drawn = std::lower_bound(cumulative.begin(), cumulative.end(), threshold);
  return order[static_cast<std::size_t>(drawn - cumulative.begin())];
}

std::vector<std::int32_t> generate(std::span<const std::int32_t> prompt,
                                   const GenerateOptions& options, const NextLogits& next_logits) {
  check(options.sampling);
  if (prompt.empty()) throw_invalid("generation needs a prompt of at least one token");
  if (options.max_new_tokens < 0 || options.max_context < 0)
    throw_invalid(concat("max_new_tokens is ", options.max_new_tokens, " and max_context ",
                         options.max_context, "; expected 0 or more"));
  std::vector<std::int32_t> tokens(prompt.begin(), prompt.end());
  for (std::int64_t i = 0; i < options.max_new_tokens; ++i) {
    std::span<const std::int32_t> context(tokens);
    if (options.max_context > 0 && std::ssize(context) > options.max_context)
      context = context.last(static_cast<std::size_t>(options.max_context));
    const std::vector<float> logits = next_logits(context);
    tokens.push_back(sample_token(logits, options.sampling, tokens.size()));
    if (tokens.back() == options.end_token) break;
  }
  return tokens;
}

std::vector<std::int32_t> tokens_from_bytes(std::string_view text) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

std::string bytes_from_tokens(std::span<const std::int32_t> tokens) {
  std::string text;
  for (const std::int32_t token : tokens)
    if (token >= 0 && token < 256) text.push_back(static_cast<char>(token));
  return text;
}

}  // namespace zero3d
