#include "zero3d/parallel/comm/mpi_world.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/parallel/comm/call.h"

namespace zero3d::detail {
namespace {

constexpr int kFailureTag = 0;
constexpr std::size_t kReasonBytes = 2000;           // small enough that MPI sends it at once
constexpr std::chrono::milliseconds kOnTheWay{100};  // word of a failure, between two processes
constexpr std::chrono::seconds kFarewell{1};         // for what is under way when a world fails
constexpr std::size_t kLargest = 256u << 20;         // MPI counts bytes in an int

using Clock = std::chrono::steady_clock;

/// How a polling wait spends its time: at first it spins, then yields, then sleeps.
class Backoff {
 public:
  void pause() {
    ++polls_;
    if (polls_ < 100) return;
    if (polls_ < 2000) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  bool time_to_look() const { return polls_ % 32 == 31; }

 private:
  std::int64_t polls_ = 0;
};

}  // namespace

void check_mpi(int code, int rank, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CommError(rank, call, concat(call, " failed on rank ", rank, ": ", text));
}

MpiWorld::MpiWorld(std::chrono::milliseconds timeout, bool log_failures, bool compares)
    : timeout_(timeout), log_failures_(log_failures), compares_(compares) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (!initialized) throw_invalid("an MPI world needs an MpiSession to live in; make one first");
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), 0, "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
}

MpiWorld::~MpiWorld() {
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  Backoff backoff;
  while (!reap_sent() && !failure_.happened() && Clock::now() < deadline) backoff.pause();
  if (!failure_.happened() && sent_.empty()) {
    MPI_Comm_free(&comm_);
  } else {  // messages may still be under way: MPI keeps its communicator, and what it reads from
    static_cast<void>(new std::list<Pending>(std::move(sent_)));
  }
}

void MpiWorld::fail(const std::exception_ptr& cause) noexcept {
  try {
    if (!failure_.happened()) poll_failure();
  } catch (...) {  // then this one is the first that is known here
  }
  if (!failure_.set(rank_, cause)) return;
  try {
    const std::string reason = message_of(cause);
    if (log_failures_) log_error(concat("rank ", rank_, " failed: ", reason));
    const std::size_t length = std::min(reason.size(), kReasonBytes);
    std::vector<std::byte> text(length);
    std::memcpy(text.data(), reason.data(), length);
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_) post(text, peer, kFailureTag);
  } catch (...) {  // out of memory, or of MPI: the others find out by their time limit
  }
}

void MpiWorld::fail(const std::string& operation, const std::string& message) {
  const CommError error(rank_, operation, message);
  fail(std::make_exception_ptr(error));
  check();
  throw error;  // not reached: there is a failure
}

/// Whether there was word of a failure.
bool MpiWorld::poll_failure() {
  const std::lock_guard lock(poll_mutex_);
  int found = 0;
  MPI_Status status;
  check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, kFailureTag, comm_, &found, &status), rank_, "MPI_Iprobe");
  if (!found) return false;
  int length = 0;
  MPI_Get_count(&status, MPI_BYTE, &length);
  std::string reason(static_cast<std::size_t>(length), '\0');
  check_mpi(MPI_Recv(reason.data(), length, MPI_BYTE, status.MPI_SOURCE, kFailureTag, comm_,
                     MPI_STATUS_IGNORE),
            rank_, "MPI_Recv");
  const auto cause = std::make_exception_ptr(CommError(status.MPI_SOURCE, "failure", reason));
  if (!settled_) failure_.settle(status.MPI_SOURCE, cause);
  return true;
}

/// Of failures at once the lowest rank's is the first: before anybody reads it, a moment is given
/// to word of a lower one that is on its way.
void MpiWorld::settle() {
  if (settled_) return;
  const std::lock_guard lock(settle_mutex_);
  const auto deadline = Clock::now() + kOnTheWay;
  Backoff backoff;
  while (!settled_ && failure_.rank() > 0 && Clock::now() < deadline)
    if (!poll_failure()) backoff.pause();
  settled_ = true;
}

void MpiWorld::check() {
  if (!failure_.happened() && !poll_failure()) return;
  settle();
  failure_.check(rank_);
}

void MpiWorld::post(std::vector<std::byte> bytes, int peer, int tag) {
  const std::lock_guard lock(sent_mutex_);
  sent_.push_back({std::move(bytes), MPI_REQUEST_NULL});
  Pending& pending = sent_.back();
  const int code = MPI_Isend(pending.bytes.data(), static_cast<int>(pending.bytes.size()), MPI_BYTE,
                             peer, tag, comm_, &pending.request);
  if (code != MPI_SUCCESS) sent_.pop_back();
  check_mpi(code, rank_, "MPI_Isend");
}

bool MpiWorld::reap_sent() {
  const std::lock_guard lock(sent_mutex_);
  std::erase_if(sent_, [](Pending& pending) {
    int done = 0;
    return MPI_Test(&pending.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  });
  return sent_.empty();
}

void MpiWorld::send_buffered(std::vector<std::byte> head, std::vector<std::byte> body, int peer,
                             int tag) {
  check();
  reap_sent();
  post(std::move(head), peer, tag);
  for (std::size_t begin = 0; begin < body.size(); begin += kLargest) {
    if (body.size() <= kLargest) return post(std::move(body), peer, tag);
    const std::size_t end = std::min(body.size(), begin + kLargest);
    post({body.begin() + static_cast<std::ptrdiff_t>(begin),
          body.begin() + static_cast<std::ptrdiff_t>(end)},
         peer, tag);
  }
}

void MpiWorld::saw_group(int id) {
  int next = next_group_.load();
  while (next <= id && !next_group_.compare_exchange_weak(next, id + 1)) {
  }
}

MpiBatch::~MpiBatch() {
  // Only after an error; the memory is about to go. A receive is cancelled, a send cannot be in MPI
  // practice. What sender and receiver have begun goes through while both are here; what nobody
  // receives MPI does not read any more.
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (receives_[i] && requests_[i] != MPI_REQUEST_NULL) MPI_Cancel(&requests_[i]);
  const auto deadline = Clock::now() + kFarewell;
  Backoff backoff;
  int done = 0;
  while (MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                     MPI_STATUSES_IGNORE) == MPI_SUCCESS &&
         !done && Clock::now() < deadline)
    backoff.pause();
  for (MPI_Request& request : requests_)
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
}

void MpiBatch::receive(void* data, std::size_t bytes, int peer, int tag) {
  auto* to = static_cast<std::byte*>(data);
  std::size_t begin = 0;
  do {
    const std::size_t part = std::min(bytes - begin, kLargest);
    requests_.push_back(MPI_REQUEST_NULL);
    peers_.push_back(peer);
    receives_.push_back(true);
    check_mpi(MPI_Irecv(to + begin, static_cast<int>(part), MPI_BYTE, peer, tag, world_.comm(),
                        &requests_.back()),
              world_.rank(), "MPI_Irecv");
    begin += part;
  } while (begin < bytes);
}

void MpiBatch::send(const void* data, std::size_t bytes, int peer, int tag) {
  const auto* from = static_cast<const std::byte*>(data);
  std::size_t begin = 0;
  do {
    const std::size_t part = std::min(bytes - begin, kLargest);
    requests_.push_back(MPI_REQUEST_NULL);
    peers_.push_back(peer);
    receives_.push_back(false);
    check_mpi(MPI_Isend(from + begin, static_cast<int>(part), MPI_BYTE, peer, tag, world_.comm(),
                        &requests_.back()),
              world_.rank(), "MPI_Isend");
    begin += part;
  } while (begin < bytes);
}

bool MpiBatch::test() {
  if (requests_.empty()) return true;
  int done = 0;
  check_mpi(
      MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
      world_.rank(), "MPI_Testall");
  return done != 0;
}

void MpiBatch::wait(const std::string& operation) {
  const auto begun = Clock::now();
  bool told = false;
  Backoff backoff;
  while (!test()) {
    if (backoff.time_to_look()) {
      world_.check();
      const std::chrono::milliseconds limit = world_.timeout();
      const auto waited = Clock::now() - begun;
      if (waited > limit)
        world_.fail(operation, describe_wait(world_.rank(), limit, operation, unfinished_peers()));
      if (limit >= kLimitToTell && waited > limit / kWaitToTell && !std::exchange(told, true))
        log_warning(
            describe_wait(world_.rank(), limit / kWaitToTell, operation, unfinished_peers()));
    }
    backoff.pause();
  }
  requests_.clear();
  peers_.clear();
  receives_.clear();
}

std::string MpiBatch::unfinished_peers() {
  std::set<int> late;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    int done = 0;
    MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE);
    if (!done) late.insert(peers_[i]);
  }
  std::string names;
  for (const int peer : late) names += concat(names.empty() ? "rank " : ", rank ", peer);
  return names;
}

}  // namespace zero3d::detail
