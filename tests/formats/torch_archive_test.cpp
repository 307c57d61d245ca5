// Reading what torch.save writes: what it means is read exactly, whatever else a file holds is
// refused with a message that names it or kept as a name, and nothing is executed.
#include "zero3d/formats/torch_archive.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <numeric>
#include <thread>

#include "zero3d/core/error.h"
#include "zero3d/core/half.h"
#include "zero3d/formats/pickle_machine.h"
#include "zero3d/tests/formats/torch_writer.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d {
namespace {

using test::message_of;
using test::P;
using test::TemporaryFolder;
using test::TorchWriter;
using test::ZipWriter;

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' not in: " << text;
}

template <typename T>
View view_of(std::vector<T>& values) {
  return View(reinterpret_cast<std::byte*>(values.data()), dtype_of<T>::value,
              Shape{static_cast<std::int64_t>(values.size())});
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

class TorchArchiveTest : public testing::Test {
 protected:
  std::unique_ptr<TorchArchive> open(const std::string& bytes) {
    return std::make_unique<TorchArchive>(folder_.write("file.pt", bytes));
  }
  std::string refusal(const std::string& bytes) {
    return message_of<IoError>([&] { open(bytes); });
  }
  template <typename T>
  static std::vector<T> values(const TorchArchive& archive, PickleValue value,
                               std::int64_t first = 0, std::int64_t count = -1) {
    if (value.tensor() == nullptr) throw_invalid(value.describe());
    if (count < 0) count = value.tensor()->numel() - first;
    std::vector<T> out(static_cast<std::size_t>(count));
    archive.read(*value.tensor(), first, view_of(out));
    return out;
  }
  TemporaryFolder folder_;
  TorchWriter writer_;
};

using Floats = std::vector<float>;

TEST_F(TorchArchiveTest, ReadsTensorsByRanges) {
  Floats numbers(300);
  std::iota(numbers.begin(), numbers.end(), 0.5f);
  const auto archive = open(writer_.archive(
      P::ordered({{"a", writer_.floats(numbers, {30, 10})}, {"b", writer_.floats({7}, {})}})));
  const PickleValue a = archive->root().find("a");
  EXPECT_EQ(archive->root().size(), 2u);
  EXPECT_EQ(a.describe(), "a tensor F32 [30, 10]");
  EXPECT_EQ(values<float>(*archive, a), numbers);
  for (const std::int64_t first : {0, 1, 150, 299, 300})
    EXPECT_EQ(values<float>(*archive, a, first), Floats(numbers.begin() + first, numbers.end()));
  EXPECT_EQ(values<float>(*archive, archive->root().find("b")), Floats{7});
  EXPECT_FALSE(archive->root().find("c"));
  EXPECT_THROW(values<float>(*archive, a, 1, 300), Error);
  EXPECT_THROW(values<float>(*archive, a, -1, 2), Error);
  EXPECT_EQ(values<bf16>(*archive, a, 3, 1)[0].bits, to_bf16(3.5f).bits);
  archive->verify();
}

TEST_F(TorchArchiveTest, FollowsOffsetsAndStrides) {
  const Floats numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const P storage = TorchWriter::storage_id(writer_.storage(bytes_of(numbers)), "FloatStorage", 12);
  const auto archive =
      open(writer_.archive(P::list({TorchWriter::tensor(storage, 2, {2, 3}, {1, 3}),
                                    TorchWriter::tensor(storage, 5, {2, 2}, {0, 1}),
                                    TorchWriter::tensor(storage, 12, {0, 3}, {3, 1}),
                                    TorchWriter::tensor(storage, 3, {1, 4, 1}, {99, 1, 5})})));
  const auto root = archive->root();
  EXPECT_EQ(values<float>(*archive, root[0]), (Floats{2, 5, 8, 3, 6, 9}));
  EXPECT_EQ(values<float>(*archive, root[0], 1, 3), (Floats{5, 8, 3}));
  EXPECT_EQ(values<double>(*archive, root[0], 4, 2), (std::vector<double>{6, 9}));
  EXPECT_EQ(values<float>(*archive, root[1]), (Floats{5, 6, 5, 6}));
  EXPECT_TRUE(values<float>(*archive, root[2]).empty());
  EXPECT_EQ(values<float>(*archive, root[3]), (Floats{3, 4, 5, 6}));
}

TEST_F(TorchArchiveTest, KnowsTypesOfElements) {
  const auto add = [&](const std::string& bytes, const char* type, std::int64_t numel) {
    return TorchWriter::tensor(TorchWriter::storage_id(writer_.storage(bytes), type, numel), 0,
                               {numel}, {1});
  };
  const std::string untyped = writer_.storage(bytes_of(Floats{1, 2}));
  const P third = P::call(P::global("torch._utils", "_rebuild_tensor_v3"),
                          {TorchWriter::storage_id(untyped, "UntypedStorage", 8), P::integer(1),
                           P::tuple({P::integer(1)}), P::tuple({P::integer(1)}), P::boolean(false),
                           P::ordered({}), P::global("torch", "float32")});
  const auto archive = open(writer_.archive(
      P::list({add(bytes_of(std::vector<bf16>{to_bf16(1.5f)}), "BFloat16Storage", 1),
               add(bytes_of(std::vector<f16>{to_f16(2.5f)}), "HalfStorage", 1),
               add(bytes_of(std::vector<double>{3.5}), "DoubleStorage", 1),
               add(bytes_of(std::vector<std::int64_t>{-4}), "LongStorage", 1),
               add("\1", "BoolStorage", 1), third, add("\1", "QInt8Storage", 1)})));
  const auto root = archive->root();
  EXPECT_EQ(values<float>(*archive, root[0]), Floats{1.5f});
  EXPECT_EQ(values<float>(*archive, root[1]), Floats{2.5f});
  EXPECT_EQ(values<float>(*archive, root[2]), Floats{3.5f});
  EXPECT_EQ(values<std::int64_t>(*archive, root[3]), std::vector<std::int64_t>{-4});
  expect_has(message_of<IoError>([&] { values<float>(*archive, root[3]); }), "I64 cannot be read");
  expect_has(message_of<IoError>([&] { values<float>(*archive, root[4]); }), "BOOL cannot be read");
  EXPECT_EQ(values<float>(*archive, root[5]), Floats{2});
  EXPECT_EQ(root[6].kind(), PickleKind::object);
}

TEST_F(TorchArchiveTest, UnwrapsParametersAndSubclasses) {
  const P data = writer_.floats({1, 2}, {2});
  const P parameter = P::call(P::global("torch._utils", "_rebuild_parameter"),
                              {data, P::boolean(true), P::ordered({})});
  const P storage = TorchWriter::storage_id("0", "FloatStorage", 2);
  const P subclass =
      P::call(P::global("torch._tensor", "_rebuild_from_type_v2"),
              {P::global("torch._utils", "_rebuild_tensor_v2"), P::global("torch", "Tensor"),
               P::tuple({storage, P::integer(0), P::tuple({P::integer(2)}),
                         P::tuple({P::integer(1)}), P::boolean(true), P::ordered({})}),
               P::dict({{"ds_id", P::text("0_27")}})});
  const auto archive = open(writer_.archive(P::list({parameter, subclass})));
  for (std::size_t i : {0u, 1u})
    EXPECT_EQ(values<float>(*archive, archive->root()[i]), (Floats{1, 2}));
}

TEST_F(TorchArchiveTest, KeepsWhatItDoesNotKnowAsNames) {
  const P numpy = P::call(
      P::global("numpy.core.multiarray", "scalar"),
      {P::call(P::global("numpy", "dtype"), {P::text("f8"), P::boolean(false), P::boolean(true)}),
       P::call(P::global("_codecs", "encode"),
               {P::text(std::string("\0\0\0\0\0\0\xc3\xb8?", 9)), P::text("latin1")})});
  const auto archive = open(writer_.archive(P::dict(
      {{"run", P::call(P::global("os", "system"), {P::text("touch /tmp/zero3d-was-here")})},
       {"stage",
        P::call(P::global("deepspeed.runtime.zero.config", "ZeroStageEnum"), {P::integer(3)})},
       {"scaler", P::object("some.module", "Scaler", {{"cur_scale", P::number(4096)}})},
       {"lr", numpy},
       {"counts", P::call(P::global("collections", "defaultdict"), {P::global("builtins", "int")})},
       {"big", P::raw("\x8a\x09" + std::string(9, '\1'))},
       {"pairs", P::call(P::global("collections", "OrderedDict"),
                         {P::list({P::list({P::text("k"), P::integer(5)})})})}})));
  const auto root = archive->root();
  EXPECT_EQ(root.find("run").describe(), "an object of 'os.system'");
  EXPECT_FALSE(std::filesystem::exists("/tmp/zero3d-was-here"));
  EXPECT_EQ(root.find("stage").integer(), 3);
  EXPECT_EQ(root.find("scaler").find("cur_scale").number(), 4096.0);
  EXPECT_EQ(root.find("scaler").name(), "some.module.Scaler");
  EXPECT_EQ(root.find("lr").number(), 1.5);
  EXPECT_EQ(root.find("counts").kind(), PickleKind::dict);
  EXPECT_EQ(root.find("big").kind(), PickleKind::bytes);
  EXPECT_EQ(root.find("pairs").find("k").integer(), 5);
}

TEST_F(TorchArchiveTest, ReadsTheFormFromBeforeZip) {
  const P tensor =
      TorchWriter::tensor(TorchWriter::storage_id("94", "FloatStorage", 3), 1, {2}, {1});
  std::string bytes("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
  bytes += P::integer(1001).pickle() + P::dict({{"little_endian", P::boolean(true)}}).pickle() +
           P::dict({{"w", tensor}}).pickle() + P::list({P::text("94")}).pickle() +
           test::little_endian<std::int64_t>(3) + bytes_of(Floats{1, 2, 3});
  EXPECT_EQ(values<float>(*open(bytes), open(bytes)->root().find("w")).size(), 2u);
  const auto archive = open(bytes);
  EXPECT_EQ(values<float>(*archive, archive->root().find("w")), (Floats{2, 3}));
  for (std::size_t size = 0; size < bytes.size(); size += 3)
    EXPECT_NE(refusal(bytes.substr(0, size)), "") << size;
}

TEST_F(TorchArchiveTest, ReadsWideArchivesAndComments) {
  ZipWriter::Options options;
  options.zip64 = true;
  options.comment = "PK\x05\x06 is what a comment may hold";
  const P tensor = writer_.floats({1, 2, 3}, {3});
  const auto archive = open(writer_.archive(tensor, ZipWriter(options)));
  EXPECT_EQ(values<float>(*archive, archive->root()), (Floats{1, 2, 3}));
}

TEST_F(TorchArchiveTest, RefusesOtherFiles) {
  ZipWriter none, script, big, twice;
  none.add("archive/other", "x");
  expect_has(refusal(none.finish()), "no data.pkl in it");
  script.add("archive/data.pkl", P::none().pickle()).add("archive/constants.pkl", "");
  expect_has(refusal(script.finish()), "TorchScript");
  big.add("archive/data.pkl", P::none().pickle()).add("archive/byteorder", "big");
  expect_has(refusal(big.finish()), "big-endian");
  twice.add("archive/data.pkl", P::none().pickle()).add("archive/data.pkl", P::none().pickle());
  expect_has(refusal(twice.finish()), "is there twice");
  expect_has(refusal("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull");
  expect_has(refusal("hello, world"), "no file of torch.save");
  expect_has(refusal(""), "no file of torch.save");
  ZipWriter::Options packed, secret;
  packed.method = 8;
  secret.flags = 1;
  expect_has(refusal(writer_.archive(P::none(), ZipWriter(packed))), "is compressed (method 8)");
  expect_has(refusal(writer_.archive(P::none(), ZipWriter(secret))), "is encrypted");
}

TEST_F(TorchArchiveTest, EntriesLieApart) {
  // The directory of an archive whose second entry is said to begin where the first one does.
  ZipWriter zip;
  zip.add("archive/data.pkl", P::none().pickle()).add("archive/version", "3");
  std::string bytes = zip.finish();
  const std::size_t second = bytes.rfind("PK\x01\x02");
  bytes.replace(second + 42, 4, std::string(4, '\0'));
  expect_has(refusal(bytes), "reaches into the next one");
  bytes.replace(second + 42, 4, test::little_endian<std::uint32_t>(0x7fffffff));
  expect_has(refusal(bytes), "does not fit before the directory");
}

TEST_F(TorchArchiveTest, FindsDamage) {
  const std::string bytes = writer_.archive(P::dict({{"w", writer_.floats({1, 2, 3, 4}, {2, 2})}}));
  for (std::size_t size = 0; size < bytes.size(); size += 1 + size / 40)
    EXPECT_NE(refusal(bytes.substr(0, size)), "") << size;
  // A wrong byte is found, or changes what it says; it never does harm.
  int found = 0, tried = 0;
  for (std::size_t at = 0; at < bytes.size(); at += 5, ++tried) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x41);
    try {
      const auto archive = open(damaged);
      archive->verify();
      if (archive->root().find("w").tensor() != nullptr)
        values<float>(*archive, archive->root().find("w"));
    } catch (const IoError&) {
      ++found;
    }
  }
  EXPECT_GT(found, tried / 2);
  std::string pickle = bytes;
  pickle[pickle.find("_rebuild")] = 'x';
  expect_has(refusal(pickle), "data.pkl' has the checksum");
  std::string data = bytes;
  data[data.find(bytes_of(Floats{3, 4}))] ^= 1;
  expect_has(message_of<IoError>([&] { open(data)->verify(); }), "data/0' is damaged");
}

TEST_F(TorchArchiveTest, NoticesAnotherFileInItsPlace) {
  const auto archive = open(writer_.archive(writer_.floats({1, 2}, {2})));
  const std::string path = archive->path();
  const TorchArchive again(path);  // has it open
  folder_.write("other", "short");
  std::filesystem::rename(folder_.file("other"), path);
  EXPECT_EQ(values<float>(again, again.root()), (Floats{1, 2}));
  const auto files = std::make_shared<OpenFiles>(1);
  folder_.write("a.pt", writer_.archive(P::tuple({P::none()})));
  const TorchArchive closed(folder_.write("b.pt", writer_.archive(writer_.floats({3}, {1}))),
                            files);
  files->open(folder_.file("a.pt"));
  folder_.write("b.pt", "short");
  expect_has(message_of<IoError>([&] { values<float>(closed, closed.root()); }), "has changed");
}

TEST_F(TorchArchiveTest, HoldsTensorsToTheirStorages) {
  const std::string key = writer_.storage(bytes_of(Floats{1, 2, 3, 4}));
  const auto refused = [&](std::int64_t numel, std::int64_t offset,
                           const std::vector<std::int64_t>& shape,
                           const std::vector<std::int64_t>& strides) {
    return refusal(writer_.archive(TorchWriter::tensor(
        TorchWriter::storage_id(key, "FloatStorage", numel), offset, shape, strides)));
  };
  EXPECT_EQ(refused(4, 0, {4}, {1}), "");
  EXPECT_EQ(refused(4, 0, {2, 2}, {1, 2}), "");
  expect_has(refused(4, 1, {4}, {1}), "reaches past its storage");
  expect_has(refused(4, 0, {2, 2}, {2, 2}), "reaches past its storage");
  expect_has(refused(4, 0, {1 << 30, 1 << 30, 1 << 30}, {0, 0, 0}), "reaches past");
  expect_has(refused(4, 0, {2}, {std::int64_t{1} << 62}), "reaches past");
  expect_has(refused(4, -1, {1}, {1}), "without an offset");
  expect_has(refused(4, 0, {-1}, {1}), "without an offset");
  expect_has(refused(4, 0, {2}, {-1}), "without an offset");
  expect_has(refused(4, 0, {2}, {}), "without an offset");
  expect_has(refused(5, 0, {1}, {1}), "expected 20 bytes, found 16");
  expect_has(refused(-1, 0, {1}, {1}), "something else than a storage");
  expect_has(refused(std::int64_t{1} << 60, 0, {1}, {1}), "beyond every file");
  expect_has(refusal(writer_.archive(TorchWriter::tensor(
                 TorchWriter::storage_id("9", "FloatStorage", 1), 0, {1}, {1}))),
             "storage '9' is missing");
}

TEST_F(TorchArchiveTest, SeveralThreadsRead) {
  Floats numbers(10'000);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  const auto archive = open(writer_.archive(writer_.floats(numbers, {10'000})));
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const auto part = values<float>(*archive, archive->root(), 100 * t + i, 1000);
        good += part.front() == static_cast<float>(100 * t + i) && part.size() == 1000 ? 1 : 0;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 200);
}

std::string refused_pickle(const std::string& text, PickleLimits limits = {}) {
  return message_of<IoError>([&] { PickleMachine("pickle", limits).run(text); });
}

TEST(Pickle, ReadsEveryProtocolsInstructions) {
  const std::pair<std::string, std::string> cases[] = {
      {"N.", "None"},
      {"I01\n.", "True"},
      {"I-12\n.", "-12"},
      {"L-12L\n.", "-12"},
      {"F1.5\n.", "1.5"},
      {"S'ab'\n.", "'ab'"},
      {"Vab\n.", "'ab'"},
      {"U\2ab.", "'ab'"},
      {std::string("T\2\0\0\0ab.", 8), "'ab'"},
      {std::string("B\2\0\0\0ab.", 8), "2 bytes"},
      {"C\2ab.", "2 bytes"},
      {std::string("\x8e\2\0\0\0\0\0\0\0ab.", 12), "2 bytes"},
      {"\x8c\2ab.", "'ab'"},
      {std::string("\x8d\2\0\0\0\0\0\0\0ab.", 12), "'ab'"},
      {"\x8a\1\xff.", "-1"},
      {std::string("\x8a\0.", 3), "0"},
      {std::string("\x8b\1\0\0\0\x7f.", 7), "127"},
      {"J\xff\xff\xff\xff.", "-1"},
      {"M\1\2.", "513"},
      {"(I1\nI2\nl.", "a list of 2"},
      {"(K\1K\2d.", "a dict of 1"},
      {"NN\x86.", "a list of 2"},
      {"NNN\x87.", "a list of 3"},
      {"]Na.", "a list of 1"},
      {"N20.", "None"},
      {"\x8f(NN\x90.", "a list of 2"},
      {"(NN\x91.", "a list of 2"},
      {"}Np0\n0g0\nNs.", "a dict of 1"},
      {"N\x94\x94h\1.", "None"},
      {"(N1K\7.", "7"},
      {"(ia\nb\n.", "an object of 'a.b'"},
      {"(ca\nb\nNo.", "an object of 'a.b'"},
      {"\x8c\1a\x8c\1b\x93.", "'a.b'"},
      {"ca\nb\n)}\x92.", "an object of 'a.b'"},
      {std::string("\x80\4\x95\2\0\0\0\0\0\0\0N.", 13), "None"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(PickleMachine("pickle").run(text).root().describe(), expected) << text;
  }
  PickleMachine machine("pickle");
  machine.run("K\1.rest");
  EXPECT_EQ(machine.consumed(), 3u);
}

TEST(Pickle, RefusesWhatIsDamaged) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "ends where 1 bytes more"},
      {".", "more values than there are"},
      {"N", "ends where 1 bytes more"},
      {"t.", "a mark that is not there"},
      {"(a.", "more values than there are"},
      {"N(\x85.", "more values than there are"},
      {"h\7.", "did not keep"},
      {"NNa.", "elements of what is no list"},
      {")Na.", "elements of what is no list"},
      {"NNNs.", "entries of what is no dict"},
      {"}(Nu.", "a key without a value"},
      {"(Nd.", "a key without a value"},
      {"K\1Nb.", "a state for what has none"},
      {"Nr\xff\xff\xff\xff.", "beyond the limits"},
      {"Pid\n.", "has no place"},
      {"\x82\1.", "has no place"},
      {"\x97.", "has no place"},
      {"\x80\6.", "protocol 6"},
      {"NQ.", "something else than a storage"},
      {"]Q.", "something else than a storage"},
      {"NN\x93.", "whose name is no text"},
      {"X\xff\xff\xff\xff.", "ends where 4294967295 bytes more"},
      {"T\xff\xff\xff\xff.", "negative number of bytes"},
      {"I12x\n.", "no number"},
      {"Fx\n.", "no number"},
      {"S'ab\n.", "without its quotes"},
      {"cab", "ends within a line"},
      {"(o.", "without a class"},
      {"ccollections\nOrderedDict\n](NNe\x85R.", "what are no pairs"},
  };
  for (const auto& [text, part] : cases) expect_has(refused_pickle(text), part);
}

TEST(Pickle, BoundsWhatAHostileOneCosts) {
  PickleLimits few;
  few.values = 100;
  expect_has(refused_pickle(std::string(200, '}'), few), "more than 100 values");
  few = {};
  few.nesting = 10;
  expect_has(refused_pickle(std::string(20, '(') + ".", few), "nested deeper than 10");
  few = {};
  few.work = 1000;
  // A long list of pairs, made into a dict again and again.
  std::string text = "](";
  for (int i = 0; i < 100; ++i) text += "NN\x86";
  text += "eq\1";
  for (int i = 0; i < 100; ++i) text += "ccollections\nOrderedDict\nh\1\x85R";
  expect_has(refused_pickle(text + ".", few), "more than 1000 items are copied");
  // A value that contains itself is no trouble: who walks it bounds the walk.
  const PickleTree tree = PickleMachine("pickle").run("]q\1h\1a.");
  EXPECT_EQ(tree.root()[0][0][0].size(), 1u);
}

}  // namespace
}  // namespace zero3d
