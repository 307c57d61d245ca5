// Communicators around communicators: counts what travels, slows it down.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "zero3d/parallel/comm/communicator.h"

namespace zero3d {

/// Elements and bytes that this rank put through each operation, in the convention of the ZeRO
/// papers: an all_gather or reduce_scatter of a full tensor of n elements counts n, an all_reduce
/// 2n, a broadcast, send or recv n, an all_to_all what this rank has for all (for itself too); a
/// group of one rank counts calls only. Bytes are those of the
/// dtype that travels (ReduceOptions::wire where given).
struct CommVolume {
  struct Entry {
    std::int64_t calls = 0;
    std::int64_t elements = 0;
    std::int64_t bytes = 0;
  };
  std::map<std::string, Entry> operations;  ///< "all_gather", "reduce_scatter", ...
  std::int64_t elements() const;            ///< The sums over all operations.
  std::int64_t bytes() const;
};
/// Counts into `volume` (shared with splits; guarded inside), which may end before the
/// communicator.
class CommCounter {
 public:
  CommCounter();
  ~CommCounter();
  CommVolume volume() const;
  void reset();

 private:
  friend std::unique_ptr<Communicator> make_counting(std::unique_ptr<Communicator>, CommCounter&);
  struct State;
  std::shared_ptr<State> state_;
};
std::unique_ptr<Communicator> make_counting(std::unique_ptr<Communicator> inner,
                                            CommCounter& counter);

/// An artificial network: each operation takes at least latency + bytes / bandwidth (bytes that
/// this rank would send on a ring), slept on the stream without using the CPU.
struct NetworkModel {
  std::chrono::microseconds latency{0};
  double bytes_per_second = 0;  ///< 0: unlimited.
};
std::unique_ptr<Communicator> make_delayed(std::unique_ptr<Communicator> inner,
                                           const NetworkModel& network);

}  // namespace zero3d
