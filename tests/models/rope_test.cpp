// Rotary frequencies against those that transformers 5.24 computed (LlamaRotaryEmbedding.inv_freq).
#include <gtest/gtest.h>

#include <algorithm>
#include <numbers>

#include "zero3d/models/rope.h"

namespace zero3d {
namespace {

void expect_frequencies(const RopeConfig& rope, std::int64_t seq,
                        const std::vector<float>& expected) {
  const std::vector<float> found = rope_inverse_frequencies(rope, 16, 128, seq);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 3e-7 * expected[i]) << i;
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
