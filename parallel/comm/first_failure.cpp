#include "zero3d/parallel/comm/first_failure.h"

#include "zero3d/core/text.h"
#include "zero3d/parallel/comm/communicator.h"

namespace zero3d::detail {

bool FirstFailure::set(int rank, const std::exception_ptr& cause) noexcept {
  const std::lock_guard lock(mutex_);
  if (happened()) return false;
  keep(rank, cause);
  return true;
}

void FirstFailure::settle(int rank, const std::exception_ptr& cause) noexcept {
  const std::lock_guard lock(mutex_);
  if (!happened() || rank < rank_) keep(rank, cause);
}

void FirstFailure::keep(int rank, const std::exception_ptr& cause) noexcept {
  rank_ = rank;
  cause_ = cause;
  try {
    echo_ = std::make_exception_ptr(
        CommAborted(rank, "abort", concat("rank ", rank, " failed: ", message_of(cause))));
  } catch (...) {
    echo_ = cause;  // out of memory for the words
  }
  happened_.store(true, std::memory_order_release);
}

void FirstFailure::check(int rank) const {
  if (happened()) std::rethrow_exception(rank == rank_ ? cause_ : echo_);
}

}  // namespace zero3d::detail
