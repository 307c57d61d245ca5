// Token files of every format, alone and one after the other, and what is refused of each.
#include "zero3d/formats/token_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "zero3d/core/error.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d {
namespace {

using test::message_of;
using test::TemporaryFolder;
using Tokens = std::vector<std::int32_t>;

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

Tokens all(const TokenFile& file) {
  Tokens tokens(static_cast<std::size_t>(file.tokens()));
  file.read(0, file.tokens(), tokens.data());
  return tokens;
}

template <typename T>
std::string llmc(std::int32_t magic, std::int32_t version, const std::vector<T>& tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<std::int32_t>(tokens.size());
  return bytes_of(header) + bytes_of(tokens);
}

struct MegatronSet {
  std::uint64_t version = 1;
  std::uint8_t code = 8;
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> pointers;
  std::vector<std::int64_t> documents;

  std::string index() const {
    const std::uint64_t counts[] = {lengths.size(), documents.size()};
    return std::string("MMIDIDX\0\0", 9) + std::string(reinterpret_cast<const char*>(&version), 8) +
           static_cast<char>(code) + std::string(reinterpret_cast<const char*>(counts), 16) +
           bytes_of(lengths) + bytes_of(pointers) + bytes_of(documents);
  }
};

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' not in: " << text;
}

TEST(TokenFile, ReadsEveryFormat) {
  TemporaryFolder folder;
  EXPECT_EQ(all(TokenFile(folder.write("a.txt", "h\xc3\xa9\n"))), (Tokens{'h', 0xc3, 0xa9, '\n'}));
  EXPECT_TRUE(TokenFile(folder.file("a.txt")).is_text());
  const std::vector<std::uint16_t> shorts = {0, 65535, 7};
  EXPECT_EQ(all(TokenFile(folder.write("a.bin", bytes_of(shorts)))), (Tokens{0, 65535, 7}));
  EXPECT_FALSE(TokenFile(folder.file("a.bin")).is_text());
  EXPECT_EQ(all(TokenFile(folder.write("b.bin", llmc(20240520, 1, shorts)))),
            (Tokens{0, 65535, 7}));
  const std::vector<std::uint32_t> longs = {128255, 1};
  EXPECT_EQ(all(TokenFile(folder.write("c", llmc(20240801, 7, longs)))), (Tokens{128255, 1}));
  const TokenFile golden("tests/golden/runs/tokens-61.u16");
  EXPECT_EQ(golden.tokens(), 40000);
  for (const std::int32_t token : all(golden)) ASSERT_LT(token, 61);
}

TEST(TokenFile, ReadsMegatronDocumentsInOrder) {
  TemporaryFolder folder;
  const std::vector<std::uint16_t> data = {1, 2, 3, 4, 5, 6, 7};
  MegatronSet set{1, 8, {2, 3, 0, 2}, {0, 4, 10, 10}, {0, 1, 4}};
  folder.write("set.bin", bytes_of(data));
  folder.write("set.idx", set.index());
  for (const std::string name : {"set", "set.bin", "set.idx"}) {
    EXPECT_EQ(detect_token_format(folder.file(name)), TokenFormat::megatron);
    EXPECT_EQ(all(TokenFile(folder.file(name))), (Tokens{1, 2, 3, 4, 5, 6, 7})) << name;
  }
  // Sequences may lie anywhere in the file; the index gives their order.
  set.pointers = {10, 4, 14, 0};
  folder.write("set.idx", set.index());
  const TokenFile file(folder.file("set"));
  EXPECT_EQ(all(file), (Tokens{6, 7, 3, 4, 5, 1, 2}));
  EXPECT_EQ(file.place(5), folder.file("set.bin") + ", token 5");
  Tokens part(3);
  file.read(1, 3, part.data());
  EXPECT_EQ(part, (Tokens{7, 3, 4}));
  // Multimodal sets append one byte a sequence.
  folder.write("set.idx", set.index() + std::string(4, '\0'));
  EXPECT_EQ(TokenFile(folder.file("set")).tokens(), 7);
}

template <typename T>
void expect_megatron_dtype(std::uint8_t code) {
  TemporaryFolder folder;
  const auto largest = static_cast<std::int32_t>(
      std::min<std::uint64_t>(std::uint64_t{std::numeric_limits<T>::max()}, INT32_MAX));
  const std::vector<T> data = {static_cast<T>(5), static_cast<T>(largest), static_cast<T>(0)};
  folder.write("s.bin", bytes_of(data));
  folder.write("s.idx", MegatronSet{1, code, {3}, {0}, {0, 1}}.index());
  EXPECT_EQ(all(TokenFile(folder.file("s"))), (Tokens{5, largest, 0})) << int{code};
}

TEST(TokenFile, ReadsMegatronsDTypes) {
  expect_megatron_dtype<std::uint8_t>(1);
  expect_megatron_dtype<std::int8_t>(2);
  expect_megatron_dtype<std::int16_t>(3);
  expect_megatron_dtype<std::int32_t>(4);
  expect_megatron_dtype<std::int64_t>(5);
  expect_megatron_dtype<std::uint16_t>(8);
  // DeepSpeed's own codes: the size of the .bin tells which is meant.
  expect_megatron_dtype<std::uint16_t>(6);
  expect_megatron_dtype<std::uint32_t>(7);
  expect_megatron_dtype<std::uint64_t>(8);
}

TEST(TokenFile, FilesFollowOneAnother) {
  TemporaryFolder folder;
  std::vector<std::uint16_t> shorts(5000);
  Tokens expected = {'a', 'b', 'c'};
  for (std::size_t i = 0; i < shorts.size(); ++i) {
    shorts[i] = static_cast<std::uint16_t>(i * 31);
    expected.push_back(shorts[i]);
  }
  expected.insert(expected.end(), {128000, 2});
  const TokenFile file(
      {folder.write("a.txt", "abc"), folder.write("b.bin", bytes_of(shorts)),
       folder.write("c.bin", llmc(20240801, 7, std::vector<std::uint32_t>{128000, 2}))});
  EXPECT_EQ(file.tokens(), 5005);
  EXPECT_FALSE(file.is_text());
  EXPECT_EQ(all(file), expected);
  for (const std::int64_t first : {0, 1, 2, 3, 4, 2999, 5002, 5003, 5004, 5005}) {
    for (std::int64_t count = 0; count <= std::min<std::int64_t>(5005 - first, 7); ++count) {
      Tokens part(static_cast<std::size_t>(count) + 1, -1);
      file.read(first, count, part.data());
      EXPECT_TRUE(std::equal(part.begin(), part.end() - 1, expected.begin() + first));
      EXPECT_EQ(part.back(), -1);
    }
  }
  EXPECT_EQ(file.place(2), folder.file("a.txt") + ", token 2");
  EXPECT_EQ(file.place(3), folder.file("b.bin") + ", token 0");
  EXPECT_EQ(file.place(5004), folder.file("c.bin") + ", token 1");
  expect_has(file.description(), "b.bin (u16, 5,000 tokens), ");
  std::int32_t one = 0;
  EXPECT_THROW(file.read(5005, 1, &one), Error);
  EXPECT_THROW(file.read(-1, 1, &one), Error);
}

TEST(TokenFile, DetectsAsDocumented) {
  TemporaryFolder folder;
  const auto detected = [&](const std::string& name, const std::string& bytes) {
    return detect_token_format(folder.write(name, bytes));
  };
  EXPECT_EQ(detected("a.u16", "ab"), TokenFormat::u16);
  EXPECT_EQ(detected("a.bin", "ab"), TokenFormat::u16);
  EXPECT_EQ(detected("a.u32", "abcd"), TokenFormat::u32);
  EXPECT_EQ(detected("a.bin", "\x93NUMPY"), TokenFormat::npy);
  EXPECT_EQ(detected("a", "plain"), TokenFormat::text);
  EXPECT_EQ(detected("b.txt", std::string(65535, 'x') + "\xc3\xa9"), TokenFormat::text);
  EXPECT_EQ(detected("a.u16", llmc(20240520, 1, std::vector<std::uint16_t>{1})), TokenFormat::llmc);
  for (const std::string& bytes : {std::string("a\0b", 3), std::string("\x93NUMPx"),
                                   std::string("\xff\xfe"), std::string("a\xc3(")}) {
    const std::string path = folder.write("odd.npz", bytes);
    expect_has(message_of<IoError>([&] { detect_token_format(path); }), "name the format");
  }
  EXPECT_EQ(parse_token_format("llmc"), TokenFormat::llmc);
  expect_has(message_of<Error>([] { parse_token_format("json"); }), "expected one of auto, text");
  for (const TokenFormat format :
       {TokenFormat::automatic, TokenFormat::text, TokenFormat::u16, TokenFormat::u32,
        TokenFormat::npy, TokenFormat::llmc, TokenFormat::megatron}) {
    EXPECT_EQ(parse_token_format(name_of(format)), format);
  }
}

TEST(TokenFile, RefusesDamagedFiles) {
  TemporaryFolder folder;
  const auto refused = [&](const std::string& bytes, TokenFormat format) {
    const std::string path = folder.write("damaged", bytes);
    return message_of<IoError>([&] { TokenFile file(path, format); });
  };
  expect_has(refused("", TokenFormat::text), "holds no tokens, expected some");
  expect_has(refused("", TokenFormat::u16), "holds no tokens");
  expect_has(refused("abc", TokenFormat::u16), "found 3 bytes");
  const std::vector<std::uint16_t> tokens = {1, 2};
  expect_has(refused("abc", TokenFormat::llmc), "header of 1024 bytes, found 3");
  expect_has(refused(llmc(20240520, 7, tokens), TokenFormat::llmc), "version 7");
  expect_has(refused(llmc(20240801, 1, tokens), TokenFormat::llmc), "version 1");
  expect_has(refused(llmc(1, 1, tokens), TokenFormat::llmc), "magic 1 version");
  expect_has(refused(llmc(20240520, 1, tokens) + "x", TokenFormat::llmc), "promises 2 tokens");
  expect_has(refused(llmc(20240801, 7, tokens), TokenFormat::llmc), "promises 2 tokens of 4");
  std::string negative = llmc(20240520, 1, tokens);
  std::memset(negative.data() + 8, 0xff, 4);
  expect_has(refused(negative, TokenFormat::llmc), "promises -1 tokens");
  expect_has(message_of<IoError>([&] { TokenFile file(folder.file("absent.bin")); }),
             "No such file");
  EXPECT_THROW(TokenFile(std::vector<std::string>{}), Error);
}

TEST(TokenFile, RefusesDamagedMegatronSets) {
  TemporaryFolder folder;
  const std::vector<std::uint16_t> data = {1, 2, 3};
  folder.write("s.bin", bytes_of(data));
  const auto refused = [&](const std::string& index) {
    folder.write("s.idx", index);
    return message_of<IoError>([&] { TokenFile file(folder.file("s")); });
  };
  const MegatronSet good{1, 8, {1, 2}, {0, 2}, {0, 1, 2}};
  EXPECT_EQ(refused(good.index()), "");
  for (std::size_t size = 0; size < good.index().size(); ++size) {
    EXPECT_NE(refused(good.index().substr(0, size)), "") << size;
  }
  const auto changed = [&](auto change) {
    MegatronSet set = good;
    change(set);
    return refused(set.index());
  };
  expect_has(changed([](MegatronSet& s) { s.version = 2; }), "found 2");
  expect_has(changed([](MegatronSet& s) { s.code = 0; }), "code 0");
  expect_has(changed([](MegatronSet& s) { s.code = 9; }), "code 9");
  expect_has(
      changed([](MegatronSet& s) { s.code = 7; }),
      "3 tokens of dtype code 7 take the bytes 12 as uint32 (DeepSpeed), and the .bin has 6");
  expect_has(
      changed([](MegatronSet& s) { s.lengths[1] = 3; }),
      "take the bytes 8 as uint16 (Megatron) or 32 as uint64 (DeepSpeed), and the .bin has 6");
  expect_has(changed([](MegatronSet& s) { s.lengths[1] = 1; }), "the .bin has 6");
  expect_has(changed([](MegatronSet& s) { s.lengths[0] = -1; }), "length -1");
  expect_has(changed([](MegatronSet& s) { s.pointers[1] = 7; }), "s.bin: sequence 1");
  expect_has(changed([](MegatronSet& s) { s.pointers[1] = -2; }), "pointer -2");
  expect_has(changed([](MegatronSet& s) { s.documents = {1, 2}; }), "boundary 0 is 1");
  expect_has(changed([](MegatronSet& s) { s.documents = {0, 2, 1}; }), "is 1 after 2");
  expect_has(changed([](MegatronSet& s) { s.documents = {0, 1}; }), "from 0 to 2");
  expect_has(changed([](MegatronSet& s) { s.documents = {}; }), "from 0 to 2");
  std::string huge = good.index();
  std::memset(huge.data() + 18, 0xff, 16);
  expect_has(refused(huge), "do not fit its size");
  expect_has(refused("MMIDIDXx" + good.index().substr(8)), "start with MMIDIDX");
  std::filesystem::remove(folder.file("s.bin"));
  expect_has(refused(good.index()), "s.bin: cannot open");
}

TEST(TokenFile, RefusesAMegatronSetOfFloats) {
  TemporaryFolder folder;
  folder.write("s.bin", bytes_of(std::vector<double>{1, 2, 3}));
  folder.write("s.idx", MegatronSet{1, 6, {3}, {0}, {0, 1}}.index());
  expect_has(message_of<IoError>([&] { TokenFile file(folder.file("s")); }), "float64");
}

TEST(TokenFile, NamesTokensThatAreNone) {
  TemporaryFolder folder;
  const std::vector<std::int64_t> data = {5, 6, -100, std::int64_t{1} << 40};
  folder.write("s.bin", bytes_of(data));
  folder.write("s.idx", MegatronSet{1, 5, {1, 3}, {0, 8}, {0, 2}}.index());
  const TokenFile file({folder.write("a.txt", "ab"), folder.file("s.bin")});
  Tokens tokens(6);
  file.read(0, 4, tokens.data());
  expect_has(message_of<IoError>([&] { file.read(0, 6, tokens.data()); }),
             "s.bin: token 2 is -100");
  expect_has(message_of<IoError>([&] { file.read(5, 1, tokens.data()); }),
             "s.bin: token 3 is 1099511627776");
  const std::vector<std::uint32_t> large = {0x80000000u};
  const TokenFile unsigned_file(folder.write("u.bin", llmc(20240801, 7, large)));
  EXPECT_THROW(unsigned_file.read(0, 1, tokens.data()), IoError);
}

}  // namespace
}  // namespace zero3d
