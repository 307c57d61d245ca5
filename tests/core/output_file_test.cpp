// Files that are written: what a path leads to, what stays after failures, and what killed runs
// leave.
#include "zero3d/core/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <set>
#include <thread>

#include "zero3d/core/error.h"
#include "zero3d/core/replace_path.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::read_file;
using test::TemporaryFolder;

std::set<std::string> names(const TemporaryFolder& folder) {
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder.path()))
    found.insert(entry.path().filename().string());
  return found;
}

/// No file may grow beyond `bytes` while it lives.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit small = {bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit old_ = {};
};

TEST(OutputFile, FollowsLinksToWhatIsThereAndToWhatIsNot) {
  TemporaryFolder folder;
  fs::create_directory(folder.path() / "far");
  folder.write("far/old", "old");
  fs::create_symlink("far/old", folder.file("link"));
  fs::create_symlink("link", folder.file("link_to_link"));
  fs::create_symlink(folder.file("far/new"), folder.file("dangling"));
  for (const char* name : {"link_to_link", "dangling"}) {
    write_text_file(folder.file(name), name);
    EXPECT_TRUE(fs::is_symlink(folder.file(name))) << name;
    EXPECT_EQ(read_file(folder.file(name)), name);
  }
  EXPECT_EQ(read_file(folder.file("far/old")), "link_to_link");
  LineFile(folder.file("dangling")).write("line");
  EXPECT_EQ(read_file(folder.file("far/new")), "line\n");
  fs::create_symlink("round", folder.file("round"));
  EXPECT_NE(message_of<IoError>([&] { OutputFile(folder.file("round")); }), "");
}

TEST(OutputFile, LeavesTheAccessOfAFileAsItIs) {
  TemporaryFolder folder;
  const std::string path = folder.write("private", "old");
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  write_text_file(path, "new");
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(OutputFile, WritesThroughDevicesAndPipes) {
  TemporaryFolder folder;
  fs::create_symlink("/dev/null", folder.file("null"));
  for (const std::string& path : {std::string("/dev/null"), folder.file("null")}) {
    write_text_file(path, "text");
    LineFile(path).write("line");
    EXPECT_TRUE(fs::is_character_file(path));
  }
  EXPECT_NE(message_of<IoError>([] { write_text_file("/dev/full", "text"); }).find("No space"),
            std::string::npos);
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { got = read_file(pipe); });
  {
    OutputFile file(pipe);
    file.write("text");
    file.commit();
  }
  reader.join();
  EXPECT_EQ(got, "text");
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_EQ(names(folder), (std::set<std::string>{"null", "pipe"}));
}

TEST(OutputFile, RefusesWhatIsNoPlaceForBytes) {
  TemporaryFolder folder;
  const std::string path = folder.file("socket");
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_NE(message_of<IoError>([&] { OutputFile{path}; }).find("a socket"), std::string::npos);
  EXPECT_NE(message_of<IoError>([&] { LineFile{folder.path().string()}; }).find("a folder"),
            std::string::npos);
  ::close(socket);
  EXPECT_TRUE(fs::is_socket(path));
}

TEST(OutputFile, LeavesNothingOfAFileThatIsNotWhole) {
  TemporaryFolder folder;
  const std::string path = folder.write("file", "old");
  {
    OutputFile file(path);
    file.write("new");
    EXPECT_EQ(names(folder).size(), 2u);
  }
  {
    const SizeLimit limit(4);
    OutputFile file(path);
    EXPECT_THROW(file.write("too long"), IoError);
    EXPECT_NE(message_of<IoError>([&] { file.commit(); }).find("not whole"), std::string::npos);
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(names(folder), std::set<std::string>{"file"});
}

TEST(LineFile, HoldsWholeLinesWhenTheDiskIsFull) {
  TemporaryFolder folder;
  const std::string path = folder.file("lines");
  const SizeLimit limit(16);
  LineFile lines(path);
  lines.write("0123456789");
  EXPECT_NE(message_of<IoError>([&] { lines.write("0123456789"); }).find("File too large"),
            std::string::npos);
  EXPECT_EQ(read_file(path), "0123456789\n");
  lines.write("0123");
  EXPECT_EQ(read_file(path), "0123456789\n0123\n");
}

TEST(LineFile, IsOfOneRunAtATime) {
  TemporaryFolder folder;
  const std::string path = folder.file("metrics.jsonl");
  {
    LineFile first(path);
    first.write("mine");
    EXPECT_THROW(LineFile second(path), IoError);
  }
  LineFile later(path);
  later.write("later");
  EXPECT_EQ(read_file(path), "later\n");
}

TEST(LineFile, ReplacesWhatWasThereWithItsFirstLine) {
  TemporaryFolder folder;
  const std::string path = folder.write("lines", "old\n");
  {
    LineFile lines(path);
    LineFile absent(folder.file("absent"));
    EXPECT_TRUE(lines.is_regular());
  }
  EXPECT_EQ(read_file(path), "old\n");
  EXPECT_EQ(names(folder), std::set<std::string>{"lines"});
  LineFile lines(path);
  lines.write("a");
  lines.write("b");
  EXPECT_EQ(read_file(path), "a\nb\n");
}

TEST(TemporaryPath, SweepsWhatKilledRunsOfThisHostHaveLeft) {
  TemporaryFolder folder;
  const std::string target = folder.file("model");
  std::string start;  // up to the process
  {
    const TemporaryPath temporary(target, TemporaryPath::Kind::folder);
    start = temporary.path().substr(0, temporary.path().rfind('-'));
    start = start.substr(0, start.rfind('-') + 1);
  }
  const std::string host = start.substr(target.size());
  fs::create_directories(start + "1-0/below");
  std::ofstream(start + "1-1") << "killed";
  const std::set<std::string> kept = {"model" + host + "1-2", "model.tmp-elsewhere-1-0",
                                      "model" + host + "1-x", "other" + host + "1-0"};
  for (const std::string& name : kept) folder.write(name, "kept");
  const int held = ::open((start + "1-2").c_str(), O_RDONLY);
  ASSERT_EQ(::flock(held, LOCK_EX | LOCK_NB), 0);
  const TemporaryPath first(target, TemporaryPath::Kind::file);
  const TemporaryPath second(target, TemporaryPath::Kind::folder);
  std::set<std::string> expected = kept;
  for (const TemporaryPath* temporary : {&first, &second})
    expected.insert(fs::path(temporary->path()).filename().string());
  EXPECT_EQ(names(folder), expected);
  ::close(held);
}

TEST(TemporaryPath, TellsWhatKilledRunsHaveLeftOfAnyTarget) {
  const TemporaryFolder folder;
  const std::string target = folder.file("target");
  const TemporaryPath held(target, TemporaryPath::Kind::folder);
  std::string left = held.path();
  left.replace(left.find("target"), 6, "other");
  fs::create_directory(left);
  folder.write("target.tmp-notes", "mine");
  EXPECT_EQ(TemporaryPath::abandoned_in(folder.path().string()), std::vector<std::string>{left});
  TemporaryPath::remove_abandoned(held.path());
  TemporaryPath::remove_abandoned(left);
  EXPECT_TRUE(fs::exists(held.path()));
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(folder.file("target.tmp-notes")));
}

TEST(LineFile, KeepsTheLinesThatItIsAskedTo) {
  const TemporaryFolder folder;
  const std::string path = folder.write("lines", "first\nsecond\nthird\n");
  {
    LineFile lines(path);
    lines.keep(6);
  }
  EXPECT_EQ(read_file(path), "first\nsecond\nthird\n") << "without a line all stays";
  LineFile lines(path);
  lines.keep(6);
  lines.write("other");
  lines.write("last");
  EXPECT_EQ(read_file(path), "first\nother\nlast\n");
}

TEST(ReplacePath, PutsOneInThePlaceOfTheOther) {
  const TemporaryFolder folder;
  for (const char* name : {"fresh", "target"}) {
    fs::create_directory(folder.file(name));
    folder.write(std::string(name) + "/content", name);
  }
  replace_path(folder.file("fresh"), folder.file("target"));
  EXPECT_EQ(read_file(folder.file("target/content")), "fresh");
  EXPECT_EQ(read_file(folder.file("fresh/content")), "target");
  EXPECT_THROW(replace_path(folder.file("none"), folder.file("target")), IoError);
  EXPECT_EQ(read_file(folder.file("target/content")), "fresh");
}

TEST(TemporaryPath, TakesNamesOfAnyLength) {
  TemporaryFolder folder;
  const std::string path = folder.file(std::string(255, 'n'));
  write_text_file(path, "text");
  EXPECT_EQ(read_file(path), "text");
}

}  // namespace
}  // namespace zero3d
