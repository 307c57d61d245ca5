// The manifest as text: read back it is the same, and whatever else is refused by its place.
#include <gtest/gtest.h>

#include <random>

#include "zero3d/core/text.h"
#include "zero3d/engine/checkpoint/file_sums.h"
#include "zero3d/engine/checkpoint/manifest.h"
#include "zero3d/engine/checkpoint/merge_manifests.h"

namespace zero3d {
namespace {

CheckpointManifest example() {
  CheckpointManifest manifest;
  manifest.run.state.steps = 12;
  manifest.run.state.seed = UINT64_MAX;
  manifest.run.state.scaler.scale = 1.0 / 3;
  manifest.run.scale = SavedScale::dynamic;
  manifest.run.mesh = {2, 3, 1, 1};
  manifest.run.settings = "micro-batch 2; accumulation 3";
  manifest.run.client_state.set("mine", JsonValue(1.5));
  manifest.files = {{"rank-00000.bin", 5000, {7}}, {"rank-00001.bin", 400, {UINT64_MAX}}};
  SavedParameter parameter{"a \"name\"", Shape{10, 6}, false, "AdamW", {}};
  parameter.tensors.emplace("weight", DType::bf16);
  parameter.tensors.emplace("exp_avg", DType::f32);
  manifest.parameters = {parameter, {"frozen", Shape{}, true, "", {}}};
  manifest.pieces.resize(2);
  manifest.pieces[0]["weight"] = {{0, 0, 0, 60}};
  manifest.pieces[0]["exp_avg"] = {{0, 120, 0, 3, 10, 6, 3}, {1, 0, 3, 3, 10, 6, 4}};
  return manifest;
}

TEST(Manifest, ReadBackIsTheSame) {
  const std::string text = to_text(example());
  const CheckpointManifest read = parse_manifest("there", text);
  EXPECT_EQ(to_text(read), text);
  EXPECT_EQ(read.pieces, example().pieces);
  EXPECT_EQ(read.run.state, example().run.state);
}

/// Without the blanks that separate.
std::string compact(std::string text) {
  for (const char* blank : {": ", ", "})
    for (std::size_t at; (at = text.find(blank)) != std::string::npos;) text.erase(at + 1, 1);
  return text;
}

std::string refusal(const std::string& from, const std::string& to) {
  std::string text = compact(to_text(example()));
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  try {
    parse_manifest("there", text);
  } catch (const IoError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Manifest, WhatIsNoneIsRefusedByItsPlace) {
  const struct {
    const char* from;
    const char* to;
    const char* says;
  } rows[] = {{"zero3d checkpoint", "other", "format"},
              {"\"version\":1", "\"version\":2", "use a newer one"},
              {"\"version\":1", "\"version\":0", "version is 0"},
              {"\"steps\":12", "\"steps\":-1", "steps"},
              {"\"steps\":12", "\"steps\":1.5", "state.'steps'"},
              {"\"steps\":12", "\"step\":12", "step"},
              {"\"dynamic\"", "\"dynamical\"", "loss_scale"},
              {"\"dp\":2", "\"dp\":0", "mesh.dp"},
              {"\"files\"", "\"file\"", "files is missing"},
              {"rank-00000.bin", "../rank", "files[0].name"},
              {"\"bytes\":5000", "\"bytes\":5000000000", "checksums"},
              {"\"bytes\":5000", "\"bytes\":100", "from 0 to 100"},
              {"[0,0,0,60]", "[0,4990,0,60]", "outside its file"},
              {"0000000000000007", "000000000000000g", "no checksum"},
              {"[10,6]", "[10,6,1,1,1,1]", "dims"},
              {"[10,6]", "[4611686018427387904,6]", "too many"},
              {"\"bf16\"", "\"bf17\"", "dtype"},
              {"\"frozen\":false", "\"frozen\":0", "frozen"},
              {"[0,0,0,60]", "[2,0,0,60]", "expected a number from 0 to 1"},
              {"[0,0,0,60]", "[0,0,0,61]", "expected a number from 1 to 60"},
              {"[0,0,0,60]", "[0,0,0]", "4 or 7"},
              {"[0,120,0,3,10,6,3]", "[0,120,0,3,10,7,3]", "expected a number"},
              {"[0,120,0,3,10,6,3]", "[0,120,0,3,10,6,1000]", "expected a number"},
              {"[0,120,0,3,10,6,3]", "[0,120,0,3,10,6,0]", "from 3 to"},
              {"\"name\":\"frozen\"", "\"name\":\"a \\\"name\\\"\"", "twice"},
              {"\"frozen\":false", "\"frozen\":false,\"frozen\":false", "twice"}};
  for (const auto& row : rows) {
    const std::string message = refusal(row.from, row.to);
    EXPECT_NE(message.find(row.says), std::string::npos) << row.to << ": " << message;
    EXPECT_NE(message.find("there"), std::string::npos) << message;
  }
}

TEST(Manifest, AnyDamageIsAnErrorOrAManifest) {
  const std::string whole = to_text(example());
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    std::string text = whole;
    for (int change = 0; change < 2; ++change) {
      const std::size_t at = random() % text.size();
      if (random() % 2 == 0)
        text[at] = static_cast<char>(random() % 127 + 1);
      else
        text.erase(at, random() % 8);
    }
    try {
      parse_manifest("there", text);
    } catch (const IoError&) {
    }
  }
}

TEST(Manifest, PartsOfRanksBecomeOne) {
  CheckpointManifest first = example();
  first.files.resize(1);
  first.pieces[0]["exp_avg"].pop_back();
  CheckpointManifest second = example();
  second.files.erase(second.files.begin());
  second.pieces[0] = {{"exp_avg", {{0, 0, 3, 3, 10, 6, 4}}}};
  drop_without_pieces(second);
  EXPECT_EQ(second.parameters.size(), 1u);
  const CheckpointManifest whole = merge_manifests(
      {concat(kOfPart, to_text(second)), concat(kLeadsPart, to_text(first))}, example().run);
  EXPECT_EQ(whole.files.size(), 2u);
  EXPECT_EQ(whole.parameters[0].name, example().parameters[0].name);
  EXPECT_EQ(whole.pieces, example().pieces);
  second.parameters[0].shape = Shape{60};
  EXPECT_THROW(
      merge_manifests({concat(kLeadsPart, to_text(first)), concat(kOfPart, to_text(second))},
                      example().run),
      Error);
}

TEST(PieceMap, RunsAndRepetitions) {
  const std::vector<GlobalRun> runs = {{0, 4, 0}, {10, 4, 4}, {20, 4, 8}, {29, 4, 12}, {40, 2, 16}};
  const std::vector<Piece> pieces = pieces_of(runs, 3, 100, 2);
  EXPECT_EQ(pieces,
            (std::vector<Piece>{
                {3, 100, 0, 4, 3, 10, 4}, {3, 124, 29, 4, 1, 0, 0}, {3, 132, 40, 2, 1, 0, 0}}));
  const auto placed = [](std::vector<Piece> all, std::int64_t numel) {
    return placed_runs(all, numel, 2, "it").size();
  };
  EXPECT_EQ(placed({{0, 0, 0, 2, 3, 4, 2}, {0, 50, 2, 2, 3, 4, 2}}, 12), 6u);
  EXPECT_EQ(placed({}, 0), 0u);
  EXPECT_THROW(placed({{0, 0, 0, 2, 3, 4, 2}}, 12), Error) << "a gap";
  EXPECT_THROW(placed({{0, 0, 0, 12}, {0, 0, 5, 1}}, 12), Error) << "twice";
  EXPECT_THROW(placed({{0, 0, 0, 8}, {0, 0, 7, 4}}, 12), Error) << "an overlap";
  EXPECT_THROW(placed({{0, 0, 1, 11}}, 12), Error) << "the first is missing";
  EXPECT_THROW(placed({{0, 0, 0, 11}}, 12), Error) << "the last is missing";
}

TEST(FileSums, DoNotDependOnHowTheyAreTaken) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(FileSums::kChunkBytes + 12345));
  std::mt19937 random(1);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const auto size = static_cast<std::int64_t>(bytes.size());
  const ConstView all(bytes.data(), DType::u8, Shape{size});
  FileSums whole;
  whole.add(all);
  EXPECT_EQ(whole.chunks().size(), 2u);
  for (const std::int64_t step : {4096, 40960, 1 << 20}) {
    FileSums parts;
    for (std::int64_t at = 0; at < size; at += step)
      parts.add(all.flat(at, std::min(step, size - at)));
    EXPECT_EQ(parts.chunks(), whole.chunks()) << step;
  }
  EXPECT_EQ(chunk_sum(all.flat(0, FileSums::kChunkBytes), 0), whole.chunks()[0]);
  EXPECT_EQ(chunk_sum(all.flat(FileSums::kChunkBytes, 12345), 1), whole.chunks()[1]);
  EXPECT_EQ(sums_from_text(sums_to_text(whole.chunks())), whole.chunks());
}

}  // namespace
}  // namespace zero3d
