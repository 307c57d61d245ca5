// The JSON dialect of ds_config files.
#include "zero3d/formats/hjson.h"

#include <gtest/gtest.h>

#include <random>

namespace zero3d {
namespace {

std::string read(std::string_view text) {
  std::vector<HjsonProblem> duplicates;
  return parse_hjson(text, "file", duplicates).dump();
}

HjsonError error_of(std::string_view text) {
  std::vector<HjsonProblem> duplicates;
  try {
    const std::string read_as = parse_hjson(text, "file", duplicates).dump();
    ADD_FAILURE() << text << " was read as " << read_as;
  } catch (const HjsonError& error) {
    return error;
  }
  return HjsonError({}, "", "");
}

TEST(Hjson, ReadsTheDialect) {
  const std::pair<const char*, const char*> rows[] = {
      {"", "{}"},
      {"  # only a comment\n", "{}"},
      {"{}", "{}"},
      {"{\"a\": 1, \"b\": [true, false, null]}", R"({"a": 1, "b": [true, false, null]})"},
      {"{a: 1\n b: 2}", R"({"a": 1, "b": 2})"},
      {"a: 1\nb: {c: 2}\n", R"({"a": 1, "b": {"c": 2}})"},
      {"\xEF\xBB\xBF{\"a\": 1,}\r\n", R"({"a": 1})"},
      {"{ // one\n a: 1 # two\n /* three\n */ b: 2 }", R"({"a": 1, "b": 2})"},
      {"{'a': 'it''s'}", nullptr},
      {"{\"a\" 1}", nullptr},
      {"{'a': 'x\"y'}", R"({"a": "x\"y"})"},
      {"[1,2,]", "[1, 2]"},
      {"{a: [\"x\" \"y\"]}", R"({"a": ["x", "y"]})"},
      {"{a: some text, with } all\n}", R"({"a": "some text, with } all"})"},
      {"{a: True,\n}", R"({"a": "True,"})"},
      {"{a: true}", R"({"a": true})"},
      {"{a: true # yes\n}", R"({"a": true})"},
      {"{a: http://x/y\n}", R"({"a": "http://x/y"})"},
      {"{a: '''\n    one\n      two\n    '''\n}", R"({"a": "one\n  two"})"},
      {"{\n  a:\n    '''\n    one\n      two\n    '''\n}", R"({"a": "one\n  two"})"},
      {"{\"a\": \"\\u00e4\\ud83d\\ude00\\n\\/\"}", "{\"a\": \"\xC3\xA4\xF0\x9F\x98\x80\\n/\"}"},
      {"7", "7"},
      {"\"text\"", "\"text\""},
  };
  for (const auto& [text, expected] : rows) {
    if (expected == nullptr) {
      error_of(text);
    } else {
      EXPECT_EQ(read(text), expected) << text;
    }
  }
}

TEST(Hjson, ReadsNumbersAsThePythonPackage) {
  const std::pair<const char*, const char*> rows[] = {
      {"5e8", "500000000"},
      {"1.0", "1"},
      {"1e10", "1e+10"},
      {"9999999999.0", "9999999999"},
      {"0.5", "0.5"},
      {"1e-3", "0.001"},
      {"-0", "0"},
      {"-7", "-7"},
      {"1e-400", "0"},
      {"007", "\"007\""},
      {".5", "\".5\""},
      {"1.", "\"1.\""},
      {"+1", "\"+1\""},
      {"0x10", "\"0x10\""},
      {"1_000", "\"1_000\""},
      {"NaN", "\"NaN\""},
      {"9223372036854775807", "9223372036854775807"},
      {"9223372036854775808", "9223372036854775808.0"}};
  for (const auto& [text, expected] : rows) {
    EXPECT_EQ(read(std::string("{a: ") + text + "\n}"), std::string("{\"a\": ") + expected + "}");
  }
  EXPECT_NE(std::string(error_of("{a: 1e400}").what()).find("1.8e308"), std::string::npos);
}

TEST(Hjson, NamesThePlaceAndShowsTheLine) {
  const HjsonError error = error_of("{\n  \"a\": 1,\n  \"b\": \"open,\n}");
  EXPECT_EQ(error.position().line, 3);
  EXPECT_EQ(error.position().column, 8);
  const std::string text = error.what();
  EXPECT_EQ(text.substr(0, 10), "file:3:8: ");
  EXPECT_NE(text.find("\n      \"b\": \"open,\n           ^"), std::string::npos) << text;
  EXPECT_EQ(error_of("{\"\xC3\xA4\": ]}").position().column, 7);
  for (const char* broken : {"{",
                             "[",
                             "{a",
                             "{a:",
                             "{a:}",
                             "{a: 1",
                             "{:1}",
                             "{}}",
                             "{} {}",
                             "{a b: 1}",
                             "[1, 2",
                             "\"x",
                             "{a: \"\\u12\"}",
                             "{a: \"\\q\"}",
                             "{a: \"\t\"}",
                             "/*",
                             "{,}",
                             "\xff",
                             "\xED\xA0\x80",
                             "{a: '''x}"}) {
    EXPECT_FALSE(std::string(error_of(broken).what()).empty());
  }
}

TEST(Hjson, ReportsDuplicatesWithBothLines) {
  std::vector<HjsonProblem> duplicates;
  parse_hjson("{a: 1\nb: {c: 1\nc: 2}\n\"a\": 3}", "file", duplicates);
  ASSERT_EQ(duplicates.size(), 2u);
  EXPECT_EQ(duplicates[0].path, "b.c");
  EXPECT_NE(duplicates[0].message.find("lines 2 and 3"), std::string::npos);
  EXPECT_EQ(duplicates[1].path, "a");
  EXPECT_EQ(duplicates[1].position.line, 4);
}

TEST(Hjson, RemembersPositions) {
  std::vector<HjsonProblem> duplicates;
  const JsonValue root = parse_hjson("{\n  a: [1,\n    2]\n}", "file", duplicates);
  const JsonValue& list = *root.find("a");
  EXPECT_EQ(list.position().line, 2);
  EXPECT_EQ(list.items()[1].position().line, 3);
  EXPECT_EQ(list.items()[1].position().column, 5);
}

TEST(Hjson, FindsByDottedPaths) {
  std::vector<HjsonProblem> duplicates;
  JsonValue tree = parse_hjson("a: {b: {c: 1}, d: null}", "file", duplicates);
  EXPECT_EQ(*tree.find_path("a.b.c"), JsonValue(1));
  EXPECT_EQ(tree.find_path(""), &tree);
  for (const char* absent : {"b", "a.c", "a.b.c.d", "a.d.e", "."})
    EXPECT_EQ(tree.find_path(absent), nullptr) << absent;
}

TEST(Hjson, LimitsDepthAndSize) {
  std::vector<HjsonProblem> duplicates;
  for (const int depth : {1, 199, 200, 201, 1'000'000}) {
    const std::string text = std::string(static_cast<std::size_t>(depth), '[') +
                             std::string(static_cast<std::size_t>(depth), ']');
    if (depth <= 200) {
      EXPECT_NO_THROW(parse_hjson(text, "file", duplicates)) << depth;
    } else {
      EXPECT_THROW(parse_hjson(text, "file", duplicates), HjsonError) << depth;
    }
  }
  EXPECT_THROW(parse_hjson("{a: 1}", "file", duplicates, {.max_bytes = 5}), HjsonError);
}

JsonValue random_value(std::mt19937& random, int depth) {
  switch (random() % (depth > 3 ? 5u : 7u)) {
    case 0:
      return JsonValue();
    case 1:
      return JsonValue(random() % 2 == 0);
    case 2:
      return JsonValue(static_cast<std::int64_t>(random()) - (std::int64_t{1} << 31));
    case 3:
      return JsonValue(static_cast<double>(random()) * 1.37e-5);
    case 4: {
      std::string text;
      for (unsigned i = random() % 12; i > 0; --i)
        text.push_back(static_cast<char>(random() % 127 + 1));
      return JsonValue(text);
    }
    case 5: {
      JsonValue list = JsonValue::make_array();
      for (unsigned i = random() % 4; i > 0; --i) list.push_back(random_value(random, depth + 1));
      return list;
    }
    default: {
      JsonValue object = JsonValue::make_object();
      for (unsigned i = random() % 4; i > 0; --i) {
        object.set("k" + std::to_string(random() % 100), random_value(random, depth + 1));
      }
      return object;
    }
  }
}

TEST(Hjson, ReadsWhatItWrites) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    JsonValue object = JsonValue::make_object();
    object.set("root", random_value(random, 0));
    std::vector<HjsonProblem> duplicates;
    for (const int indent : {-1, 0, 2}) {
      EXPECT_TRUE(parse_hjson(object.dump(indent), "file", duplicates) == object)
          << object.dump(indent);
    }
  }
}

TEST(Hjson, DamagedTextIsAnErrorOrAValue) {
  const std::string text =
      "{ # c\n \"a\": [1, 2.5e3, {b: '''\n x\n '''}], /* d */ c: plain, \"e\": \"\\u00e4\\n\" }";
  std::mt19937 random(11);
  for (int i = 0; i < 20'000; ++i) {
    std::string damaged = text;
    for (unsigned k = random() % 4 + 1; k > 0; --k) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    std::vector<HjsonProblem> duplicates;
    try {
      const JsonValue value = parse_hjson(damaged, "file", duplicates);
      std::vector<HjsonProblem> none;
      EXPECT_TRUE(parse_hjson(value.dump(), "dump", none) == value) << damaged;
    } catch (const HjsonError&) {
    }
  }
}

}  // namespace
}  // namespace zero3d
