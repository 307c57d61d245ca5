// Another program that does the same work, kept running beside ours so that both can be timed in
// turns. It reads a command a line from its standard input and answers each with one number.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

namespace zero3d::bench {

class Peer {
 public:
  /// Starts it and waits for its "ready". `environment` adds NAME=value entries. Throws Error when
  /// it does not start.
  Peer(const std::vector<std::string>& command, const std::vector<std::string>& environment = {});
  /// Ends its input, and waits for it.
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  /// Throws Error when it ends or answers with no number.
  double ask(const std::string& command);

 private:
  std::string read_line();

  std::string name_;
  pid_t process_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
};

}  // namespace zero3d::bench
