// Sizes as people write them, and the suggestion of near names.
#include "zero3d/core/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "zero3d/core/error.h"
#include "zero3d/core/printable.h"

namespace zero3d {
namespace {

TEST(Concat, ANaNHasNoSign) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(concat(nan, " ", -nan, " ", std::copysign(nan, -1.0)), "nan nan nan");
}

TEST(Text, ConcatWritesWhatAStreamWrites) {
  const auto expect_same = [](const auto&... args) {
    std::ostringstream stream;
    (void)(stream << ... << args);
    EXPECT_EQ(concat(args...), stream.str());
  };
  expect_same();
  expect_same("rank ", 3, std::string(" of "), std::string_view("4"), '!', true, false);
  expect_same(std::numeric_limits<long long>::min(), ' ', std::numeric_limits<long>::max(), ' ',
              std::numeric_limits<unsigned long long>::max(), ' ', short{-7}, ' ', 7u);
  for (const double value :
       {0.0, -0.0, 1.0, 100000.0, 1e6, 123456.7, 1234567.0, 1e-4, 1e-5, 1.0 / 3, -1.23456789e-300,
        1.7e308, 5e-324, double{INFINITY}, -double{INFINITY}, double{NAN}})
    expect_same(value, ' ', static_cast<float>(value));
}

TEST(Printable, ShowsWhatATerminalWouldObey) {
  using namespace std::string_literals;
  EXPECT_EQ(printable("a\x1b[31m\a\n\x7f\0z"s, 100), "a\\x1b[31m\\x07\\x0a\\x7f\\x00z");
  EXPECT_EQ(printable("two\nlines\r", 100, true), "two\nlines\\x0d");
  EXPECT_EQ(printable("\u00e4", 100), "\u00e4");
  EXPECT_EQ(printable(std::string(5000, 'x'), 10), "xxxxxxxxxx... (5000 bytes)");
}

TEST(Text, ParsesSizes) {
  EXPECT_EQ(parse_bytes("512MiB"), 512ll << 20);
  EXPECT_EQ(parse_bytes("1.5 GiB"), 3ll << 29);
  EXPECT_EQ(parse_bytes("2GB"), 2000000000ll);
  EXPECT_EQ(parse_bytes("64k"), 65536);
  EXPECT_EQ(parse_bytes("1000"), 1000);
}

TEST(Text, RefusesWhatIsNoSize) {
  for (const char* text : {"", "MiB", "-1", "0", "12 parsecs", "1e300GiB", "nan"}) {
    EXPECT_THROW(parse_bytes(text), Error) << text;
  }
}

TEST(Text, FormatsBytesAndCounts) {
  EXPECT_EQ(format_bytes(1610612736), "1.50 GiB");
  EXPECT_EQ(format_bytes(17), "17 B");
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(-1234), "-1,234");
  EXPECT_EQ(format_count(999), "999");
}

TEST(Text, JoinsItemsAndMakesLettersSmall) {
  EXPECT_EQ(joined(std::vector<int>{1, 2, 3}, ", "), "1, 2, 3");
  EXPECT_EQ(joined(std::vector<int>{}, ", "), "");
  std::string list;
  append_item(list, "; ", "a ", 1);
  append_item(list, "; ", "b");
  EXPECT_EQ(list, "a 1; b");
  EXPECT_EQ(lower_case("AdamW_2"), "adamw_2");
}

TEST(Text, SuggestsTheNearestName) {
  const std::string_view names[] = {"gradient_clipping", "optimizer", "scheduler"};
  EXPECT_EQ(nearest_name("gradient_cliping", names), "gradient_clipping");
  EXPECT_EQ(nearest_name("zzz", names), "");
}

}  // namespace
}  // namespace zero3d
