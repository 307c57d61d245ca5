// The fuzzer's entry on its seeds and on damaged copies of them, without libFuzzer: a short run in
// every build. The entry aborts on what must never happen.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

int run(const std::string& input) {
  return LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

TEST(ConfigFuzz, SeedsAndDamagedSeeds) {
  std::mt19937 random(3);
  int seeds = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/fuzz/seeds/config")) {
    std::stringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    const std::string seed = text.str();
    ASSERT_FALSE(seed.empty());
    ++seeds;
    EXPECT_EQ(run(seed), 0);
    for (int i = 0; i < 300; ++i) {
      std::string damaged = seed;
      for (unsigned k = random() % 3 + 1; k > 0; --k) {
        const std::size_t at = random() % damaged.size();
        switch (random() % 3) {
          case 0:
            damaged[at] = static_cast<char>(random());
            break;
          case 1:
            damaged.insert(at, seed.substr(random() % seed.size(), random() % 20));
            break;
          default:
            damaged.erase(at, random() % 8);
            if (damaged.empty()) damaged = seed;
        }
      }
      run(damaged);
    }
  }
  EXPECT_GE(seeds, 6);
}

}  // namespace
