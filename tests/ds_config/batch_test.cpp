// The batch triple over the data-parallel degree.
#include <gtest/gtest.h>

#include <string>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/load.h"

namespace zero3d {
namespace {

/// A configuration of the numbers given; 0 leaves one out.
std::string triple(std::int64_t train, std::int64_t micro, std::int64_t accumulation) {
  std::string text = "{";
  if (train >= 0) text += concat("\"train_batch_size\": ", train, ",");
  if (micro >= 0) text += concat("\"train_micro_batch_size_per_gpu\": ", micro, ",");
  if (accumulation >= 0) text += concat("\"gradient_accumulation_steps\": ", accumulation, ",");
  return text + "}";
}

LoadResult load(const std::string& text, int ranks, int tp = 1, int pp = 1) {
  LoadOptions options;
  options.ranks = ranks;
  options.tp = tp;
  options.pp = pp;
  return load_config_text(text, "batch", options);
}

TEST(BatchTriple, DerivesWhatIsAbsent) {
  struct Row {
    int given[3];
    int resolved[3];
  };
  for (const Row& row :
       {Row{{8, -1, -1}, {8, 2, 1}}, Row{{-1, 2, -1}, {8, 2, 1}}, Row{{-1, 2, 3}, {24, 2, 3}},
        Row{{16, 2, -1}, {16, 2, 2}}, Row{{16, -1, 2}, {16, 2, 2}}, Row{{24, 2, 3}, {24, 2, 3}}}) {
    const LoadResult loaded = load(triple(row.given[0], row.given[1], row.given[2]), 4);
    ASSERT_TRUE(loaded.ok()) << loaded.errors[0].message;
    EXPECT_EQ(loaded.config.integer("train_batch_size"), row.resolved[0]);
    EXPECT_EQ(loaded.config.integer("train_micro_batch_size_per_gpu"), row.resolved[1]);
    EXPECT_EQ(loaded.config.integer("gradient_accumulation_steps"), row.resolved[2]);
  }
}

TEST(BatchTriple, SaysWhatDoesNotFit) {
  struct Row {
    int given[3];
    const char* words[3];
  };
  for (const Row& row :
       {Row{{16, 2, 3}, {"is 16", "= 24", "gradient_accumulation_steps to 2"}},
        Row{{18, 2, -1}, {"18 is not a multiple", "2 x dp 4", "16 or 24"}},
        Row{{4, 2, -1}, {"smaller", "gradient_accumulation_steps would be 0", "8"}},
        Row{{10, -1, -1}, {"10 is not divisible", "dp 4", "8 or 12"}},
        Row{{-1, -1, 2}, {"train_batch_size", "train_micro_batch_size_per_gpu", "alone"}},
        Row{{0, -1, -1}, {"> 0", "found 0", ""}}}) {
    const LoadResult loaded = load(triple(row.given[0], row.given[1], row.given[2]), 4);
    ASSERT_EQ(loaded.errors.size(), 1u);
    for (const char* word : row.words) {
      EXPECT_NE(loaded.errors[0].message.find(word), std::string::npos)
          << word << " in: " << loaded.errors[0].message;
    }
  }
}

TEST(BatchTriple, HoldsForEveryConsistentChoice) {
  for (int ranks = 1; ranks <= 7; ++ranks) {
    for (int micro = 1; micro <= 5; ++micro) {
      for (int accumulation = 1; accumulation <= 5; ++accumulation) {
        const int train = micro * accumulation * ranks;
        for (const std::string& text :
             {triple(train, micro, -1), triple(train, -1, accumulation),
              triple(-1, micro, accumulation), triple(train, micro, accumulation)}) {
          const LoadResult loaded = load(text, ranks);
          ASSERT_TRUE(loaded.ok()) << text;
          EXPECT_EQ(loaded.config.integer("train_batch_size"), train);
          EXPECT_EQ(loaded.config.integer("train_micro_batch_size_per_gpu"), micro);
          EXPECT_EQ(loaded.config.integer("gradient_accumulation_steps"), accumulation);
        }
        EXPECT_FALSE(load(triple(train + 1, micro, accumulation), ranks).ok());
      }
    }
  }
}

TEST(BatchTriple, CountsReplicasNotRanks) {
  const char* text =
      "{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 2, "
      "\"gradient_accumulation_steps\": null}";
  struct Row {
    int tp, pp, dp, accumulation;
  };
  for (const Row& row : {Row{1, 1, 4, 1}, Row{2, 1, 2, 2}, Row{1, 2, 2, 2}, Row{2, 2, 1, 4}}) {
    const LoadResult loaded = load(text, 4, row.tp, row.pp);
    ASSERT_TRUE(loaded.ok());
    EXPECT_EQ(loaded.config.degrees.dp, row.dp);
    EXPECT_EQ(loaded.config.integer("gradient_accumulation_steps"), row.accumulation);
  }
  EXPECT_FALSE(load(text, 4, 3).ok());
  const LoadResult wrong = load(triple(18, 4, -1), 8, 2, 2);
  ASSERT_EQ(wrong.errors.size(), 1u);
  EXPECT_NE(wrong.errors[0].message.find("dp is 2, not the 8 ranks: one replica takes tp 2 x pp 2"),
            std::string::npos)
      << wrong.errors[0].message;
}

TEST(BatchTriple, HugeNumbersDoNotWrap) {
  for (const char* text :
       {"{\"train_micro_batch_size_per_gpu\": 4611686018427387904}",
        "{\"train_batch_size\": 9223372036854775807, "
        "\"train_micro_batch_size_per_gpu\": 4611686018427387904, "
        "\"gradient_accumulation_steps\": 4611686018427387904}",
        "{\"train_batch_size\": 8, \"tensor_parallel\": {\"autotp_size\": "
        "4611686018427387904}, \"pipeline\": {\"stages\": 4611686018427387904}}"}) {
    LoadOptions options;
    options.ranks = 4;
    EXPECT_FALSE(load_config_text(text, "huge", options).ok()) << text;
  }
}

TEST(Degrees, ComeFromTheFileAndOptionsOverride) {
  const char* text =
      "{\"train_batch_size\": 8, \"tensor_parallel\": {\"autotp_size\": 2}, \"pipeline\": "
      "{\"stages\": 2}}";
  LoadOptions options;
  options.ranks = 8;
  LoadResult loaded = load_config_text(text, "degrees", options);
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded.config.degrees.tp, 2);
  EXPECT_EQ(loaded.config.degrees.pp, 2);
  EXPECT_EQ(loaded.config.degrees.dp, 2);
  options.tp = 4;
  options.pp = 1;
  loaded = load_config_text(text, "degrees", options);
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded.config.degrees.tp, 4);
  EXPECT_EQ(loaded.config.integer("tensor_parallel.autotp_size"), 4);
  EXPECT_EQ(loaded.config.degrees.dp, 2);
  EXPECT_EQ(loaded.provenance.at("tensor_parallel.autotp_size").source, ValueSource::command_line);
}

TEST(Degrees, OfTheOwnSectionTakePrecedenceAndContradictionsAreOneLineEach) {
  const std::string batch = "{\"train_batch_size\": 8, ";
  LoadOptions options;
  options.ranks = 8;
  const auto load = [&](const std::string& members) {
    return load_config_text(batch + members + "}", "degrees", options);
  };
  LoadResult loaded = load("\"zero3d\": {\"tp\": 2, \"pp\": 2, \"sp\": 2}");
  ASSERT_TRUE(loaded.ok());
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_EQ(
      loaded.config.degrees.tp * 100 + loaded.config.degrees.pp * 10 + loaded.config.degrees.sp,
      222);
  EXPECT_EQ(loaded.config.degrees.dp, 1);

  const char* both = "\"zero3d\": {\"tp\": 2}, \"tensor_parallel\": {\"autotp_size\": 4}";
  loaded = load(both);
  EXPECT_EQ(loaded.config.degrees.tp, 2);
  ASSERT_EQ(loaded.warnings.size(), 1u);
  EXPECT_EQ(loaded.warnings[0].text(),
            "tensor_parallel.autotp_size: is 4, and zero3d.tp says 2: zero3d.tp is heeded");
  options.tp = 8;
  loaded = load(both);
  EXPECT_EQ(loaded.config.degrees.tp, 8);
  EXPECT_EQ(loaded.warnings.size(), 2u);
  // What a run writes down loads again to the same degrees, without the options.
  options.tp.reset();
  const LoadResult again = load_config_text(loadable_json(loaded.config).dump(), "again", options);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again.config.degrees.tp, 8);
  EXPECT_EQ(config_fingerprint(again.config), config_fingerprint(loaded.config));

  options.sp = 4;
  EXPECT_EQ(load("\"sequence_parallel_size\": 4").warnings.size(), 0u);
  EXPECT_EQ(load("\"sequence_parallel_size\": 2").config.degrees.sp, 4);
  EXPECT_TRUE(load("\"data_parallel_size\": 2").ok());
  const LoadResult other = load("\"data_parallel_size\": 4");
  ASSERT_EQ(other.errors.size(), 1u);
  EXPECT_EQ(
      other.errors[0].text(),
      "data_parallel_size: is 4, but 8 ranks with sp 4 have dp 2: state 2, or remove the key");
}

}  // namespace
}  // namespace zero3d
