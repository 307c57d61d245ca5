#include "peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

extern char** environ;

namespace zero3d::bench {
namespace {

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

Peer::Peer(const std::vector<std::string>& command, const std::vector<std::string>& environment)
    : name_(command.front()) {
  std::signal(SIGPIPE, SIG_IGN);  // a peer that ended is an error of its next answer
  int input[2], output[2];
  if (pipe2(input, O_CLOEXEC) != 0 || pipe2(output, O_CLOEXEC) != 0)
    throw IoError("pipe", errno, "cannot talk to a peer");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  std::vector<std::string> words = command, variables = environment;
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  const int error = posix_spawnp(&process_, name_.c_str(), &actions, nullptr,
                                 pointers(words).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  close(input[0]);
  close(output[1]);
  to_ = fdopen(input[1], "w");
  from_ = fdopen(output[0], "r");
  if (error != 0) {
    process_ = -1;
    throw IoError(name_, error, "cannot start the peer");
  }
  const std::string line = read_line();
  if (line != "ready") throw_invalid(concat(name_, " said '", line, "' instead of 'ready'"));
}

Peer::~Peer() {
  std::fclose(to_);
  std::fclose(from_);
  if (process_ > 0) waitpid(process_, nullptr, 0);
}

std::string Peer::read_line() {
  char buffer[256];
  if (std::fgets(buffer, sizeof buffer, from_) == nullptr)
    throw_invalid(concat("the peer ", name_, " ended; its own messages are on stderr"));
  std::string line = buffer;
  while (!line.empty() && line.back() == '\n') line.pop_back();
  return line;
}

double Peer::ask(const std::string& command) {
  std::fprintf(to_, "%s\n", command.c_str());
  std::fflush(to_);
  const std::string line = read_line();
  char* end = nullptr;
  const double value = std::strtod(line.c_str(), &end);
  if (line.empty() || *end != '\0')
    throw_invalid(concat(name_, " answered '", line, "' to '", command, "', not a number"));
  return value;
}

}  // namespace zero3d::bench
