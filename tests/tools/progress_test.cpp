// The loss curve, and text made fit for a terminal.
#include "progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace zero3d::tools {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

TEST(DrawCurve, PlacesOnePointAColumn) {
  for (const int count : {1, 2, 7, 69, 70, 71, 1000}) {
    std::vector<double> values;
    for (int i = 0; i < count; ++i) values.push_back(10.0 - i * 9.0 / count);
    const std::string chart = draw_curve(values, 10, 70);
    EXPECT_EQ(std::count(chart.begin(), chart.end(), '*'), std::min(count, 70));
    const std::vector<std::string> lines = lines_of(chart);
    ASSERT_EQ(lines.size(), 13u);
    if (count > 1) {
      EXPECT_EQ(lines[0].find('*'), 10u) << chart;  // the highest comes first
    }
    EXPECT_NE(lines[11].find("step 1 to " + std::to_string(count)), std::string::npos);
  }
}

TEST(DrawCurve, LeavesOutWhatIsNotFinite) {
  const double nan = std::nan("");
  const std::string chart = draw_curve({nan, 2, INFINITY, 1}, 3, 10);
  EXPECT_EQ(std::count(chart.begin(), chart.end(), '*'), 2);
  EXPECT_EQ(draw_curve({nan, nan}, 3, 10), "");
  EXPECT_EQ(draw_curve({}, 3, 10), "");
}

TEST(Printable, KeepsTextAndMarksTheRest) {
  const std::string mark = "\xEF\xBF\xBD";
  for (const char* text : {"", "plain\n\ttext", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"})
    EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a" + mark + "b");
  EXPECT_EQ(printable("\x1B[2J"), mark + "[2J");
  EXPECT_EQ(printable("\xA5"), mark);
  EXPECT_EQ(printable("\xC3"), mark);
  EXPECT_EQ(printable("\xC0\x80"), mark + mark);             // longer than needed
  EXPECT_EQ(printable("\xED\xA0\x80"), mark + mark + mark);  // a surrogate
  EXPECT_EQ(printable("\xE2\x82"), mark + mark);
}

}  // namespace
}  // namespace zero3d::tools
