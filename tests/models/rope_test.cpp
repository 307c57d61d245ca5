// Rotary frequencies against those that transformers 5.24 computed (LlamaRotaryEmbedding.inv_freq).
#include <gtest/gtest.h>

#include <algorithm>
#include <numbers>

#include "zero3d/models/rope.h"

namespace zero3d {
namespace {

void expect_frequencies(const RopeConfig& rope, std::int64_t seq,
                        const std::vector<float>& expected, float tolerance = 3e-7f) {
  const std::vector<float> found = rope_inverse_frequencies(rope, 16, 128, seq);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], tolerance * expected[i]) << i;
}

const std::vector<float> kStandard = {1.0f,           0.316227764f,   0.100000001f,
                                      0.0316227786f,  0.00999999978f, 0.00316227786f,
                                      0.00100000005f, 0.000316227786f};

TEST(Rope, Standard) {
  expect_frequencies({}, 20, kStandard);
  RopeConfig far;
  far.theta = 5e5;
  expect_frequencies(far, 20,
                     {1.0f, 0.193922758f, 0.0376060307f, 0.00729266508f, 0.00141421345f,
                      0.000274248188f, 5.31829573e-05f, 1.03133852e-05f});
}

TEST(Rope, Linear) {
  expect_frequencies({RopeConfig::Type::linear, 1e4, 2.5}, 500,
                     {0.400000006f, 0.1264911f, 0.0399999991f, 0.0126491114f, 0.00399999972f,
                      0.00126491114f, 0.000400000019f, 0.000126491112f});
}

TEST(Rope, DynamicStretchesOnlyBeyondTheTrainedLength) {
  const RopeConfig dynamic{RopeConfig::Type::dynamic, 1e4, 2.0};
  expect_frequencies(dynamic, 100, kStandard);
  expect_frequencies(dynamic, 128, kStandard);
  expect_frequencies(dynamic, 300,
                     {1.0f, 0.262445003f, 0.0688773692f, 0.0180765223f, 0.004744092f,
                      0.00124506326f, 0.000326760637f, 8.57566847e-05f});
}

TEST(Rope, Llama3) {
  expect_frequencies({RopeConfig::Type::llama3, 5e5, 8.0, 1.0, 4.0, 32}, 100,
                     {1.0f, 0.0242403448f, 0.00470075384f, 0.000911583134f, 0.000176776681f,
                      3.42810235e-05f, 6.64786967e-06f, 1.28917316e-06f});
}

// From the formulas of YaRN (arXiv 2309.00071, section 3.2) in fp64.
TEST(Rope, Yarn) {
  RopeConfig yarn{RopeConfig::Type::yarn, 1e4, 4.0};
  yarn.original_max_positions = 32;
  const std::vector<float> expected = {1.0f,    0.197642354f,    0.025f,   0.00790569415f,
                                       0.0025f, 0.000790569415f, 0.00025f, 7.90569415e-05f};
  for (const std::int64_t seq : {1, 500}) expect_frequencies(yarn, seq, expected, 1e-6f);
  EXPECT_FLOAT_EQ(rope_attention_factor(yarn), 1.138629436f);
  yarn.factor = 8;
  yarn.original_max_positions = 256;
  yarn.beta_fast = 16;
  yarn.beta_slow = 2;
  yarn.truncate = false;
  expect_frequencies(yarn, 9,
                     {1.0f, 0.287408596f, 0.0424417935f, 0.00395284708f, 0.00125f, 0.000395284708f,
                      0.000125f, 3.95284708e-05f},
                     1e-6f);
}

TEST(Rope, YarnsAttentionFactorMayBeStatedOrScaled) {
  RopeConfig yarn{RopeConfig::Type::yarn, 1e4, 40.0};
  yarn.mscale = 0.707;
  EXPECT_FLOAT_EQ(rope_attention_factor(yarn), 1.368887945f) << "both are needed";
  yarn.mscale_all_dim = 1.2;
  EXPECT_FLOAT_EQ(rope_attention_factor(yarn), 0.8739404576f);
  yarn.attention_factor = 1.5;
  EXPECT_FLOAT_EQ(rope_attention_factor(yarn), 1.5f);
  EXPECT_FLOAT_EQ(rope_attention_factor({RopeConfig::Type::linear, 1e4, 40.0}), 1.0f);
}

TEST(Rope, LongropeDividesBySetsOfFactors) {
  RopeConfig rope{RopeConfig::Type::longrope, 1e4, 8.0};
  rope.original_max_positions = 16;
  rope.short_factor = {1, 1, 1, 1, 2, 2, 2, 2};
  rope.long_factor = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> few = kStandard, many = kStandard;
  for (std::size_t i = 0; i < few.size(); ++i) {
    few[i] /= static_cast<float>(rope.short_factor[i]);
    many[i] /= static_cast<float>(rope.long_factor[i]);
  }
  expect_frequencies(rope, 16, few);
  expect_frequencies(rope, 17, many);
  EXPECT_FLOAT_EQ(rope_attention_factor(rope), 1.322875656f);
  rope.factor = 1;
  EXPECT_FLOAT_EQ(rope_attention_factor(rope), 1.0f);
}

TEST(Rope, ProportionalTurnsTheFirstAngles) {
  RopeConfig rope{RopeConfig::Type::proportional, 1e4, 2.0};
  rope.rotated = 0.3;  // of eight angles
  std::vector<float> expected(8, 0.0f);
  for (std::size_t i = 0; i < 2; ++i) expected[i] = kStandard[i] / 2;
  expect_frequencies(rope, 9, expected);
}

/// Between context / high and context / low the two are blended by where context / wavelength lies
/// between low and high (Llama 3.1, 2024).
TEST(Rope, Llama3BlendsWavelengthsWithinTheBand) {
  const double context = 200, low = 1.0, high = 4.0, factor = 8.0;
  std::vector<float> expected;
  int within = 0;
  for (const float standard : kStandard) {
    const double wavelength = 2 * std::numbers::pi / standard;
    const double blend = std::clamp((context / wavelength - low) / (high - low), 0.0, 1.0);
    within += blend > 0 && blend < 1;
    expected.push_back(static_cast<float>(standard * (blend + (1 - blend) / factor)));
  }
  EXPECT_EQ(within, 2);
  expect_frequencies({RopeConfig::Type::llama3, 1e4, factor, low, high, 200}, 100, expected);
}

}  // namespace
}  // namespace zero3d
