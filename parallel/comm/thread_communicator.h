// Ranks as threads of one process. A world is made once and shared; each rank takes its
// communicator from it. Data moves by memory copy between rendezvous; sums are computed by each
// rank for its own piece, in rank order.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "zero3d/parallel/comm/communicator.h"
#include "zero3d/parallel/comm/decorators.h"

namespace zero3d {

struct ThreadCommOptions {
  std::chrono::milliseconds timeout{
      300000};  ///< A rank that waits longer aborts the world and names who is missing.
  bool check = checks_by_default();  ///< Wrap each communicator with make_checked.
};

/// One communicator per rank, rank order; each may then be used from its own thread. A rank whose
/// communicator is destroyed and whose tasks have run has left: to wait for it in that group is
/// CommAborted at once.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(
    int size, const ThreadCommOptions& options = {});

/// Runs body(communicator) on `size` threads, one per rank. A rank that throws aborts the others;
/// the first root cause (not an echo of an abort) is rethrown after all have ended.
void run_ranks(int size, const std::function<void(Communicator&)>& body,
               const ThreadCommOptions& options = {});

}  // namespace zero3d
