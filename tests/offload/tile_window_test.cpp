// What the window asks of a store.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "zero3d/core/text.h"
#include "zero3d/offload/tile_window.h"

namespace zero3d {
namespace {

/// Writes down what it is asked, as "open 0:2048 in 1".
class ScriptStore final : public StateStore {
 public:
  explicit ScriptStore(int slots) : slots_(slots) {}
  int slots() const override { return slots_; }
  View open(int slot, const Tile& tile, Event&, bool contents) override {
    EXPECT_TRUE(contents);
    log.push_back(concat("open ", tile.unit, ":", tile.begin, " in ", slot));
    return {};
  }
  void close(int slot, const Tile& tile, const Event& used, bool changed) override {
    EXPECT_TRUE(used.recorded());
    EXPECT_TRUE(changed);
    log.push_back(concat("close ", tile.unit, ":", tile.begin, " in ", slot));
  }
  std::vector<std::string> log;

 private:
  int slots_;
};

std::vector<std::string> script(int slots, const std::vector<Tile>& tiles, int most = INT_MAX) {
  const std::unique_ptr<Device> device = make_cpu_device({});
  const std::unique_ptr<Stream> stream = device->create_stream("update");
  ScriptStore store(slots);
  TileWindow window(store, tiles, *stream, most);
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    window.acquire();
    store.log.push_back("use");
    window.release();
  }
  return store.log;
}

using Log = std::vector<std::string>;

TEST(TileWindow, ReadsAheadAsFarAsThereAreSlots) {
  const std::vector<Tile> tiles = {{0, 0, 1024}, {0, 1024, 1024}, {1, 0, 1024}};
  EXPECT_EQ(script(1, tiles),
            (Log{"open 0:0 in 0", "use", "close 0:0 in 0", "open 0:1024 in 0", "use",
                 "close 0:1024 in 0", "open 1:0 in 0", "use", "close 1:0 in 0"}));
  EXPECT_EQ(script(2, tiles),
            (Log{"open 0:0 in 0", "open 0:1024 in 1", "use", "close 0:0 in 0", "open 1:0 in 0",
                 "use", "close 0:1024 in 1", "use", "close 1:0 in 0"}));
}

TEST(TileWindow, OpensNoMoreThanItMay) {
  const std::vector<Tile> tiles = {{0, 0, 1024}, {0, 1024, 1024}, {1, 0, 1024}};
  EXPECT_EQ(script(3, tiles, 1),
            (Log{"open 0:0 in 0", "use", "close 0:0 in 0", "open 0:1024 in 1", "use",
                 "close 0:1024 in 1", "open 1:0 in 2", "use", "close 1:0 in 2"}));
}

TEST(TileWindow, DoesNotReadATileThatIsStillToBeWrittenBefore) {
  const std::vector<Tile> twice = {{0, 0, 2048}, {1, 0, 1024}, {0, 1024, 1024}};
  EXPECT_EQ(script(3, twice),
            (Log{"open 0:0 in 0", "open 1:0 in 1", "use", "close 0:0 in 0", "open 0:1024 in 2",
                 "use", "close 1:0 in 1", "use", "close 0:1024 in 2"}));
}

}  // namespace
}  // namespace zero3d
