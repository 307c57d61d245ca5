// Sampling: distribution, determinism, limits.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "zero3d/core/error.h"
#include "zero3d/models/generate.h"

namespace zero3d {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

std::map<std::int32_t, double> frequencies(const std::vector<float>& logits,
                                           const SamplingOptions& options, int draws) {
  std::map<std::int32_t, double> counts;
  for (int i = 0; i < draws; ++i)
    counts[sample_token(logits, options, static_cast<std::uint64_t>(i))] += 1.0 / draws;
  return counts;
}

TEST(Sample, FollowsTheSoftmaxAtEachTemperature) {
  const std::vector<float> logits = {0.0f, 1.0f, kNever, 2.0f, -1.0f};
  for (const double temperature : {0.5, 1.0, 2.0}) {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit / temperature);
    auto found = frequencies(logits, {temperature, 0, 4}, 20000);
    for (std::size_t i = 0; i < logits.size(); ++i)
      EXPECT_NEAR(found[static_cast<std::int32_t>(i)], std::exp(logits[i] / temperature) / sum,
                  0.015)
          << i;
    EXPECT_EQ(found.count(2) ? found[2] : 0.0, 0.0);
  }
}

TEST(Sample, TopKDrawsAmongTheMostLikely) {
  const std::vector<float> logits = {0.0f, 1.0f, 1.0f, 2.0f, 1.0f};
  auto found = frequencies(logits, {1.0, 2, 4}, 4000);
  EXPECT_EQ(found.size(), 2u);
  EXPECT_NEAR(found[3], std::exp(1.0) / (1 + std::exp(1.0)), 0.03);
  EXPECT_GT(found[1], 0) << "the lower token on a tie";
  EXPECT_EQ(frequencies(logits, {1.0, 100, 4}, 4000).size(), 5u);
}

TEST(Sample, TemperatureZeroIsTheMostLikely) {
  const std::vector<float> logits = {0.0f, 3.0f, 3.0f};
  for (std::uint64_t position = 0; position < 20; ++position)
    EXPECT_EQ(sample_token(logits, {0.0, 0, position}, position), 1);
}

TEST(Sample, BadInputIsRefused) {
  EXPECT_THROW(sample_token({}, {}, 0), Error);
  const std::vector<float> logits = {0.0f, 1.0f};
  EXPECT_THROW(sample_token(logits, {-1.0, 0, 0}, 0), Error);
  EXPECT_THROW(sample_token(logits, {std::nan(""), 0, 0}, 0), Error);
  EXPECT_THROW(sample_token(logits, {1.0, -1, 0}, 0), Error);
  EXPECT_THROW(sample_token(std::vector<float>{0.0f, std::nanf("")}, {}, 0), Error);
  EXPECT_THROW(sample_token(std::vector<float>{kNever, kNever}, {}, 0), Error);
  EXPECT_THROW(sample_token(std::vector<float>{0.0f, -kNever}, {}, 0), Error);
}

TEST(Generate, ASeedNamesOneText) {
  const auto model = [](std::span<const std::int32_t> tokens) {
    std::vector<float> logits(257);
    for (std::size_t i = 0; i < logits.size(); ++i)
      logits[i] = std::sin(static_cast<float>(tokens.back()) + static_cast<float>(i));
    return logits;
  };
  GenerateOptions options;
  options.max_new_tokens = 40;
  const auto prompt = tokens_from_bytes("zero\xff");
  EXPECT_EQ(prompt.back(), 255);
  const auto text = generate(prompt, options, model);
  EXPECT_EQ(text.size(), 45u);
  EXPECT_EQ(generate(prompt, options, model), text);
  options.sampling.seed = 1;
  EXPECT_NE(generate(prompt, options, model), text);
}

TEST(Generate, ContextIsBoundedAndTheEndTokenEnds) {
  std::size_t longest = 0;
  const auto model = [&](std::span<const std::int32_t> tokens) {
    longest = std::max(longest, tokens.size());
    std::vector<float> logits(10, 0.0f);
    logits[static_cast<std::size_t>((tokens.back() + 1) % 10)] = 9.0f;
    return logits;
  };
  GenerateOptions options;
  options.sampling.temperature = 0;
  options.max_new_tokens = 30;
  options.max_context = 4;
  const std::vector<std::int32_t> prompt = {1, 2};
  EXPECT_EQ(generate(prompt, options, model).size(), 32u);
  EXPECT_EQ(longest, 4u);
  options.end_token = 6;
  EXPECT_EQ(generate(prompt, options, model), (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_THROW(generate({}, options, model), Error);
  options.max_new_tokens = 0;
  EXPECT_EQ(generate(prompt, options, model), prompt);
}

TEST(Generate, TokensBeyondBytesAreLeftOutOfText) {
  EXPECT_EQ(bytes_from_tokens(std::vector<std::int32_t>{104, 256, 105, -1}), "hi");
}

}  // namespace
}  // namespace zero3d
