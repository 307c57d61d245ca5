#include "zero3d/parallel/comm/comm_world.h"

#include <thread>
#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/parallel/comm/communicator.h"

namespace zero3d::detail {

bool CommWorld::abort(int rank, const std::string& reason) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (aborted()) return false;
    rank_ = rank;
    reason_ = reason;
    aborted_.store(true, std::memory_order_seq_cst);
    for (WaitPoint* point : points_) {
      // Taking the mutex puts the flag before or after a waiter's check, never between it and the
      // sleep.
      { const std::lock_guard wake(point->mutex_); }
      point->condition_.notify_all();
    }
    return true;
  } catch (...) {  // out of memory for the reason: the flag alone still ends the waits
    aborted_.store(true, std::memory_order_seq_cst);
    return true;
  }
}

void CommWorld::throw_aborted(const std::string& operation) const {
  const std::lock_guard lock(mutex_);
  throw CommAborted(rank_, operation,
                    concat(operation, ": ended because rank ", rank_, " failed: ", reason_));
}

WaitPoint::WaitPoint(CommWorld& world) : world_(world) {
  const std::lock_guard lock(world.mutex_);
  world.points_.insert(this);
}

WaitPoint::~WaitPoint() {
  const std::lock_guard lock(world_.mutex_);
  world_.points_.erase(this);
}

namespace {
constexpr std::uint64_t kWithdrawn = 1u << 15;
constexpr std::uint64_t kCountMask = kWithdrawn - 1;
std::uint64_t generation_of(std::uint64_t word) { return word >> 16; }
}  // namespace

Rendezvous::Rendezvous(CommWorld& world, std::vector<int> members)
    : WaitPoint(world),
      members_(std::move(members)),
      arrivals_(members_.size()),
      left_(members_.size()) {}

bool Rendezvous::passed(std::uint64_t generation) const {
  return generation_of(word_.load()) != generation;
}

bool Rendezvous::arrive(int rank, std::uint64_t& generation) {
  std::uint64_t word = word_.load();
  bool last = false;
  do {
    if (word & kWithdrawn) return false;
    generation = generation_of(word);
    last = (word & kCountMask) + 1 == members_.size();
  } while (!word_.compare_exchange_weak(word, last ? (generation + 1) << 16 : word + 1));
  arrivals_[static_cast<std::size_t>(rank)].store(generation + 1);
  if (last && sleepers_.load() > 0) {
    { const std::lock_guard lock(mutex_); }
    condition_.notify_all();
  }
  return true;
}

bool Rendezvous::spin(std::uint64_t generation) const {
  // A peer on another core is often a few microseconds away; with fewer cores than ranks a spin
  // only keeps it from running.
  static const unsigned cores = std::thread::hardware_concurrency();
  const int limit = members_.size() <= cores ? 2000 : 50;
  for (int i = 0; i < limit; ++i) {
    if (passed(generation)) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  return passed(generation);
}

bool Rendezvous::withdraw(std::uint64_t generation) {
  std::uint64_t word = word_.load();
  do {
    if (generation_of(word) != generation) return false;
  } while (!word_.compare_exchange_weak(word, word | kWithdrawn));
  return true;
}

void Rendezvous::enter(int rank, const std::string& operation) {
  world().check(operation);
  std::uint64_t generation = 0;
  if (!arrive(rank, generation)) world().throw_aborted(operation);
  if (spin(generation)) return;
  const auto deadline = std::chrono::steady_clock::now() + world().timeout();
  {
    std::unique_lock lock(mutex_);
    ++sleepers_;
    condition_.wait_until(lock, deadline, [&] {
      return passed(generation) || world().aborted() || gone(generation) >= 0;
    });
    --sleepers_;
  }
  if (passed(generation)) return;
  const int self = members_[static_cast<std::size_t>(rank)];
  const int absent = gone(generation);
  std::string late;
  // Abort first: whoever finds the rendezvous withdrawn then also finds the reason.
  if (!world().aborted() && absent >= 0) {
    world().abort(members_[static_cast<std::size_t>(absent)],
                  concat("it ended while rank ", self, " waited for it in ", operation));
  } else if (!world().aborted()) {
    late = concat(operation, ": rank ", self, " waited ", world().timeout().count(), " ms for ",
                  missing(generation));
    world().abort(self, late);
  }
  if (!withdraw(generation)) return;  // the last member arrived after all
  if (!late.empty()) throw CommError(self, operation, late);
  world().throw_aborted(operation);
}

int Rendezvous::gone(std::uint64_t generation) const {
  for (std::size_t i = 0; i < left_.size(); ++i)
    if (left_[i].load() && arrivals_[i].load() <= generation) return static_cast<int>(i);
  return -1;
}

void Rendezvous::leave(int rank) noexcept {
  left_[static_cast<std::size_t>(rank)].store(true);
  { const std::lock_guard lock(mutex_); }
  condition_.notify_all();
}

void Rendezvous::meet(int rank) noexcept {
  std::uint64_t generation = 0;
  arrive(rank, generation);
  if (spin(generation)) return;
  std::unique_lock lock(mutex_);
  ++sleepers_;
  condition_.wait(lock, [&] { return passed(generation); });
  --sleepers_;
}

std::string Rendezvous::missing(std::uint64_t generation) const {
  std::string names;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (arrivals_[i].load() > generation) continue;
    names += (names.empty() ? "rank " : ", rank ") + std::to_string(members_[i]);
  }
  return names;
}

}  // namespace zero3d::detail
