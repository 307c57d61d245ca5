// Ranks as threads: starts them, aborts all when one fails, and finds the failure to report.
#include <exception>
#include <mutex>
#include <thread>

#include "zero3d/core/log.h"
#include "zero3d/parallel/comm/thread_communicator.h"

namespace zero3d {
namespace {

/// The failures of all ranks. The first that is no echo of an abort is the one to rethrow.
class Failures {
 public:
  void add(const std::exception_ptr& error, bool echo) {
    const std::lock_guard lock(mutex_);
    if (!echo && !cause_) cause_ = error;
    if (!first_) first_ = error;
  }
  void rethrow() const {
    if (cause_) std::rethrow_exception(cause_);
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr cause_;
  std::exception_ptr first_;
};

void run_rank(std::unique_ptr<Communicator> owned, const std::function<void(Communicator&)>& body,
              Failures& failures) {
  Communicator& communicator = *owned;
  set_log_rank(communicator.rank());
  try {
    body(communicator);
    owned.reset();  // who waits for this rank from here on waits in vain, and is told so
  } catch (const CommAborted& error) {
    failures.add(std::current_exception(), true);
    communicator.abort(error.what());
  } catch (const std::exception& error) {
    failures.add(std::current_exception(), false);
    communicator.abort(error.what());
  } catch (...) {
    failures.add(std::current_exception(), false);
    communicator.abort("an exception of unknown type");
  }
}

}  // namespace

void run_ranks(int size, const std::function<void(Communicator&)>& body,
               const ThreadCommOptions& options) {
  auto communicators = make_thread_communicators(size, options);
  Failures failures;
  std::vector<std::thread> threads;
  threads.reserve(communicators.size());
  try {
    for (auto& communicator : communicators)
      threads.emplace_back(
          [&body, &failures, &communicator] { run_rank(std::move(communicator), body, failures); });
  } catch (
      ...) {  // the system refused a thread, at the latest to the last rank: end those that run
    communicators.back()->abort("the system refused to start a thread per rank");
    for (std::thread& thread : threads) thread.join();
    throw;
  }
  for (std::thread& thread : threads) thread.join();
  failures.rethrow();
}

}  // namespace zero3d
