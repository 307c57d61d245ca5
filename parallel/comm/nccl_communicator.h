// Collectives on streams of GPUs through NCCL. It carries bytes only; sums are those of the other
// communicators, by a kernel in rank order, so that results are the same bits. A build without NCCL
// has the same functions: make_nccl() throws Error(kInvalid) and says how to build.
#pragma once

#include <memory>

#include "zero3d/parallel/comm/communicator.h"

namespace zero3d {

bool built_with_nccl();

/// `inner`, with all_gather, reduce_scatter, all_reduce, broadcast and all_to_all of streams of GPU
/// `device` through NCCL. All else is still the inner one's: what hosts exchange, failures and time
/// limits, barriers, messages, and operations on streams of the CPU. What travels of a sum needs as
/// much device memory again for the time of the call. Collective and host-blocking. Every rank
/// brings a GPU of its own: throws Error(kInvalid) on all ranks, naming two that do not.
std::unique_ptr<Communicator> make_nccl(std::unique_ptr<Communicator> inner, int device);

}  // namespace zero3d
