// Ranks as processes under an MPI launcher. MPI carries bytes only; sums are those of the other
// communicators, in rank order, so that results are the same bits. A build without MPI has the same
// functions: launched_by_mpi() still answers, the others throw Error(kInvalid) and say how to
// build.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "zero3d/parallel/comm/communicator.h"

namespace zero3d {

/// The place of this process among those of an MPI launcher, from its environment, before any call
/// of MPI. Not launched by one: rank 0 of 1.
struct MpiLaunch {
  bool launched = false;
  int rank = 0;
  int size = 1;
};
MpiLaunch mpi_launch();
inline bool launched_by_mpi() { return mpi_launch().launched; }
bool built_with_mpi();

/// Initialises MPI for calls from many threads, and finalises it. One in a process, alive as long
/// as any MPI communicator. Destroyed by an exception it ends all processes (MPI_Abort, exit code
/// 1) instead: others may wait for this one in vain.
class MpiSession {
 public:
  /// MPI itself waits without a limit for processes that do not come: after `timeout` this one says
  /// so and exits with 1, whereupon the launcher ends the others.
  explicit MpiSession(std::chrono::milliseconds timeout = std::chrono::milliseconds{300'000});
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

 private:
  int exceptions_ = 0;
};

struct MpiCommOptions {
  std::chrono::milliseconds timeout{300000};  ///< Communicator::set_timeout.
  /// Compares the ranks' operations, as threads always do: one small exchange more for each, on its
  /// stream.
  bool check = checks_by_default();
  bool log_failures = true;  ///< fail() logs its cause; off where the caller tells of it.

  /// True when the environment has ZERO3D_CHECK=1 or the build turned ZERO3D_HAZARD_CHECKS on.
  static bool checks_by_default();
};

/// All processes as one world; collective. Each call makes a world with a failure of its own.
/// fail() logs the cause, then tells the others, who see it in whatever wait of the world they are
/// in or enter. Of what two ranks fail of at once, the lower one's is the first.
std::unique_ptr<Communicator> make_mpi_world(const MpiCommOptions& options = {});

/// Runs body as this process's rank of a new world, by fail_together; let what it throws end the
/// MpiSession.
void run_mpi_rank(const std::function<void(Communicator&)>& body,
                  const MpiCommOptions& options = {});

}  // namespace zero3d
