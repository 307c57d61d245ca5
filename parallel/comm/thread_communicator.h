// Ranks as threads of one process. What ranks enqueue is compared when the last of them does; data
// moves on their streams by memory copy, once all streams are there; sums are computed by each rank
// for its own piece, in rank order.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "zero3d/parallel/comm/communicator.h"

namespace zero3d {

struct ThreadCommOptions {
  std::chrono::milliseconds timeout{300000};  ///< Communicator::set_timeout.
};

/// One communicator per rank, rank order; each may then be used from its own thread. A rank whose
/// communicator is destroyed has left: to wait for what it did not enqueue fails the world at once.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(
    int size, const ThreadCommOptions& options = {});

/// Runs body(communicator) on `size` threads, one per rank. A rank that throws fails the world; its
/// first failure is rethrown after all have ended.
void run_ranks(int size, const std::function<void(Communicator&)>& body,
               const ThreadCommOptions& options = {});

}  // namespace zero3d
