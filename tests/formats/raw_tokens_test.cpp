// Raw tokens and NumPy arrays: what is read, and what is refused because it looks like something
// else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/token_file.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d {
namespace {

using test::message_of;
using test::TemporaryFolder;

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

/// `count` tokens below `vocabulary`, none of them special.
template <typename T>
std::string tokens_below(std::uint32_t vocabulary, std::size_t count) {
  std::vector<T> values(count);
  std::uint32_t state = 1;
  for (T& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<T>((state >> 8) % vocabulary);
  }
  return bytes_of(values);
}

/// Tokens some of which are masked, as labels are.
template <typename T>
std::string labels_of(std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = i % 3 == 1 ? T{-100} : static_cast<T>(i * 97);
  return bytes_of(values);
}

/// The bytes of each 4 the other way round.
std::string swapped(std::string bytes) {
  for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4)
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(i),
                 bytes.begin() + static_cast<std::ptrdiff_t>(i + 4));
  return bytes;
}

std::string npy(const std::string& dictionary, const std::string& data, int version = 1) {
  const std::string text = dictionary + std::string(20, ' ') + "\n";
  std::string header = std::string("\x93NUMPY") + static_cast<char>(version) + std::string(1, '\0');
  header += static_cast<char>(text.size() & 255);
  header += static_cast<char>(text.size() >> 8);
  if (version > 1) header += std::string(2, '\0');
  return header + text + data;
}

std::string npy_of(const std::string& type, std::size_t count, const std::string& data) {
  return npy(concat("{'descr': '", type, "', 'fortran_order': False, 'shape': (", count, ",), }"),
             data);
}

std::vector<std::int32_t> all(const TokenFile& file) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(file.tokens()));
  file.read(0, file.tokens(), tokens.data());
  return tokens;
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' not in: " << text;
}

struct Odd {
  std::string name;
  std::string bytes;
  TokenFormat format;
  std::string told;
};

TEST(RawTokens, WhatLooksLikeSomethingElseIsRefused) {
  using enum TokenFormat;
  std::string prose, json;
  for (int i = 0; i < 20; ++i) {
    prose += "It was a bright cold day in April, and the clocks were striking.\n";
    json += R"({"text": "It was a bright cold day"})"
            "\n";
  }
  const std::string noise = tokens_below<std::uint8_t>(256, 120);
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 1048576\n";
  const Odd odds[] = {
      {"a.bin", tokens_below<std::uint32_t>(50257, 40), automatic, "--data-format u32"},
      {"a.bin", tokens_below<std::uint32_t>(50257, 5000), u16, "--data-format u32"},
      {"a.bin", tokens_below<std::uint32_t>(128256, 5000), u16, "--data-format u32"},
      {"a.bin", tokens_below<std::int64_t>(50257, 40), automatic, "int64"},
      {"a.bin", tokens_below<std::int64_t>(151936, 5000), u32, "int64"},
      {"a.u32", tokens_below<std::uint16_t>(50257, 5000), automatic, "--data-format u16"},
      {"a.bin", pointer, automatic, "git-lfs pointer"},
      {"a.txt", pointer, automatic, "git-lfs pointer"},
      {"a.txt", pointer, text, "git-lfs pointer"},
      {"a.u32", pointer + std::string(4 - pointer.size() % 4, '\n'), u32, "git-lfs pointer"},
      {"a.bin", "\x1f\x8b\x08" + tokens_below<std::uint8_t>(256, 101), automatic, "gunzip"},
      {"a.txt", "\x1f\x8b\x08" + tokens_below<std::uint8_t>(256, 101), automatic, "gunzip"},
      {"a", "\x28\xb5\x2f\xfd" + tokens_below<std::uint8_t>(256, 100), text, "zstd"},
      {"a.bin", std::string("PK\x03\x04\x14\0", 6) + tokens_below<std::uint8_t>(256, 100), u16,
       "zip"},
      {"a.bin", "PAR1" + tokens_below<std::uint8_t>(256, 100), u16, "Parquet"},
      {"a.bin", npy_of("<u2", 40, tokens_below<std::uint16_t>(300, 40)), u16, "--data-format npy"},
      {"a.bin", std::string(8000, '\0'), u16, "zeros alone"},
      {"a.u32", std::string(200000, '\0'), automatic, "zeros alone"},
      {"a.txt", tokens_below<std::uint16_t>(50257, 40), text, "--data-format u16"},
      {"a.txt", tokens_below<std::uint32_t>(50257, 40), text, "--data-format u32"},
      {"a.txt", npy_of("<u2", 40, tokens_below<std::uint16_t>(300, 40)), text, "--data-format npy"},
      {"a.txt", prose + std::string(1, '\0'), text, "zero bytes"},
      {"a.bin", prose, automatic, "--data-format text"},
      {"a.u16", prose, u16, "plain text"},
      {"a.bin", json, automatic, "JSON lines"},
      {"a.bin", labels_of<std::int32_t>(40), automatic, "below 0"},
      {"a.bin", labels_of<std::int64_t>(40), u16, "below 0"},
      {"a.u32", labels_of<std::int32_t>(40), u32, "below 0"},
      {"a.u32", swapped(tokens_below<std::uint32_t>(50257, 40)), u32, "big-endian"},
      {"a.bin", swapped(tokens_below<std::uint32_t>(50257, 40)), u16, "big-endian"},
      {"a.bin", tokens_below<float>(50257, 40), u16, "floating-point"},
      {"a.u32", tokens_below<float>(50257, 40), u32, "floating-point"},
      {"a.bin", tokens_below<double>(257, 40), u16, "floating-point"},
      {"a.bin", "\x80\x04\x95" + std::string("\x20\1\0\0\0\0\0\0", 8) + noise, u16, "pickled"},
      {"a", "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19" + noise, automatic,
       "PyTorch"},
      {"a.bin", std::string("\x40\0\0\0\0\0\0\0", 8) + "{\"t\":{}}" + noise, u16, "safetensors"},
      {"a.bin", std::string(257, 'x') + "ustar" + std::string(40, '\0'), u16, "tar -xf"},
      {"a", "\x04\x22\x4d\x18" + noise, automatic, "lz4"},
      {"a.bin", "7z\xbc\xaf\x27\x1c" + noise, u16, "7z"},
      {"a.bin", "GGUF" + noise, u16, "llama.cpp"},
      {"a.bin", "%PDF-1.4\n%\xe2\xe3" + noise, u16, "PDF"},
      {"a.txt",
       std::string("\xff\xfe"
                   "I\0t\0 \0w\0",
                   10) +
           noise,
       automatic, "UTF-16"},
      {"a.npy", std::string("PK\x03\x04\x14\0", 6) + noise, npy, "zip"},
      {"a.npy", prose, npy, "--data-format text"},
      {"a.bin", npy_of("<u2", 2000, tokens_below<std::uint16_t>(300, 2000)), llmc,
       "--data-format npy"},
  };
  TemporaryFolder folder;
  for (const Odd& odd : odds) {
    const std::string path = folder.write(odd.name, odd.bytes);
    const std::string message = message_of<IoError>([&] { TokenFile file(path, odd.format); });
    expect_has(message, odd.told);
    expect_has(message, odd.name);
  }
}

TEST(RawTokens, WhatTheyAreIsTaken) {
  using enum TokenFormat;
  TemporaryFolder folder;
  const auto tokens = [&](const char* name, const std::string& bytes, TokenFormat format) {
    return TokenFile(folder.write(name, bytes), format).tokens();
  };
  for (const std::uint32_t vocabulary : {2u, 16u, 65u, 257u, 50257u, 65535u}) {
    for (const std::size_t count : {std::size_t{4}, std::size_t{40}, std::size_t{5000}}) {
      const auto expected = static_cast<std::int64_t>(count);
      EXPECT_EQ(tokens("a.bin", tokens_below<std::uint16_t>(vocabulary, count), u16), expected);
      EXPECT_EQ(tokens("a.bin", tokens_below<std::uint32_t>(vocabulary, count), u32), expected)
          << vocabulary;
    }
  }
  EXPECT_EQ(tokens("a.bin", std::string(16, '\0'), u16), 8);
  EXPECT_EQ(tokens("a.bin", std::string(200000, '\0') + "\1" + std::string(1, '\0'), u16), 100001);
  EXPECT_EQ(tokens("a.txt", "caf\xe9, not of UTF-8", text), 18);
  EXPECT_EQ(tokens("a.u32", tokens_below<std::uint32_t>(151936, 5000), automatic), 5000);
  EXPECT_FALSE(TokenFile(folder.write("a.txt", "{} is no JSON line"), text).looks_like_json());
  EXPECT_TRUE(TokenFile(folder.write("a.jsonl", R"({"text": "so it is"})")).looks_like_json());
  EXPECT_EQ(tokens("a", "PAR1 is how Parquet files begin", automatic), 31);
  expect_has(message_of<IoError>([&] { tokens("a.u32", "abcde", u32); }), "4-byte tokens, found 5");
}

TEST(RawTokens, OnlySixteenBitsLimitTheVocabulary) {
  TemporaryFolder folder;
  const auto limit = [&](TokenFormat format, const std::string& bytes) {
    return TokenFile(folder.write("a", bytes), format).raw_limit();
  };
  EXPECT_EQ(limit(TokenFormat::u16, "abcd"), 65536);
  EXPECT_EQ(limit(TokenFormat::u32, "abcd"), INT64_MAX);
  EXPECT_EQ(limit(TokenFormat::text, "abcd"), INT64_MAX);
}

template <typename T>
void expect_npy(const std::string& type) {
  TemporaryFolder folder;
  const std::vector<T> data = {5, 127, 0};
  const std::string path = folder.write("a.npy", npy_of(type, 3, bytes_of(data)));
  EXPECT_EQ(detect_token_format(path), TokenFormat::npy);
  EXPECT_EQ(all(TokenFile(path)), (std::vector<std::int32_t>{5, 127, 0})) << type;
}

TEST(Npy, ReadsIntegersOfOneDimension) {
  expect_npy<std::uint8_t>("|u1");
  expect_npy<std::int8_t>("|i1");
  expect_npy<std::uint16_t>("<u2");
  expect_npy<std::int16_t>("<i2");
  expect_npy<std::uint32_t>("<u4");
  expect_npy<std::int32_t>("<i4");
  expect_npy<std::uint64_t>("<u8");
  expect_npy<std::int64_t>("<i8");
  TemporaryFolder folder;
  for (const int version : {2, 3}) {
    const std::string path =
        folder.write("a.npy", npy(R"({"shape": (1,), "fortran_order": True, "descr": "<u2"})",
                                  std::string("\x07\0", 2), version));
    EXPECT_EQ(all(TokenFile(path)), std::vector<std::int32_t>{7});
  }
  const std::vector<std::uint64_t> large = {std::uint64_t{1} << 63};
  const TokenFile file(folder.write("a.npy", npy_of("<u8", 1, bytes_of(large))));
  EXPECT_THROW(all(file), IoError);
}

TEST(Npy, RefusesWhatIsNone) {
  TemporaryFolder folder;
  const auto refused = [&](const std::string& bytes) {
    const std::string path = folder.write("a.npy", bytes);
    return message_of<IoError>([&] { TokenFile file(path, TokenFormat::npy); });
  };
  const std::string two = std::string("\1\0\2\0", 4);
  const auto with = [&](const char* dictionary) { return refused(npy(dictionary, two)); };
  const std::string good = npy_of("<u2", 2, two);
  EXPECT_EQ(refused(good), "");
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_NE(refused(good.substr(0, size)), "") << size;
  expect_has(refused(good + "x"), "promises 2 tokens of 2 bytes, the file has 5");
  expect_has(refused(npy_of("<f4", 1, two)), "type <f4");
  expect_has(refused(npy_of(">u2", 2, two)), "little-endian");
  expect_has(refused(npy_of("<u2", std::size_t{1} << 63, two)), "promises");
  expect_has(refused("plain"), "found 5 bytes");
  expect_has(refused("plain text here"), "NUMPY");
  expect_has(refused(npy("{}", two, 9)), "version 1, 2 or 3");
  expect_has(with("{'descr': '<u2', 'fortran_order': False, 'shape': (1, 2), }"), "2; save it");
  expect_has(with("{'descr': '<u2', 'fortran_order': False, 'shape': (), }"), "0; save it");
  expect_has(with("{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (2,), }"),
             "type [('a'");
  for (const char* dictionary :
       {"", "{", "[]", "{'descr'", "{'descr': '<u2', 'shape': (2,)", "{'shape': (2,), }",
        "{'descr': '<u2', }", "{'other': 1}", "{'descr': '<u2' 'shape': (2,)}",
        "{'descr': '<u2', 'shape': (-2,)}", "{'descr': '<u2', 'shape': (99999999999999999999,)}",
        "{'fortran_order': no}"}) {
    expect_has(with(dictionary), "damaged NumPy file");
  }
}

}  // namespace
}  // namespace zero3d
