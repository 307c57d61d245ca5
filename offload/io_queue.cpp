#include "zero3d/offload/io_queue.h"
#include "zero3d/offload/io_port.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/device/event_state.h"
#include "zero3d/offload/io_driver.h"

namespace zero3d {
namespace {

/// For work that a drive which was given up still holds; more would hold up the end of the run.
constexpr std::chrono::seconds kGrace{2};
/// The same for who asks again.
constexpr std::chrono::milliseconds kLast{200};
using Clock = std::chrono::system_clock;

/// For messages of those who wait for it; outlives the queue.
class IoStatus final : public Recorder {
 public:
  IoStatus(std::string name, int rank) : name_(concat(name, " of rank ", rank)) {}
  std::string status() const override {
    return concat("I/O queue '", name_, "' after ", progress(), " submissions");
  }
  std::uint64_t progress() const override { return over_.load(); }
  void advance() { over_.fetch_add(1); }

 private:
  const std::string name_;
  std::atomic<std::uint64_t> over_{0};
};

}  // namespace

void require_in_range(const IoOptions& options) {
  const auto refuse = [](const char* key, auto found, const std::string& expected) {
    throw_invalid(concat("aio.", key, " is ", found, "; expected ", expected));
  };
  if (options.block_size < IoFile::kAlignment || options.block_size % IoFile::kAlignment != 0 ||
      options.block_size > IoOptions::kMostBlock)
    refuse("block_size", options.block_size, "a multiple of 4096 up to 1073741824");
  if (options.queue_depth < 1 || options.queue_depth > IoOptions::kMostUnderWay)
    refuse("queue_depth", options.queue_depth, "1 to 4096");
  if (options.intra_op_parallelism < 1 || options.intra_op_parallelism > IoOptions::kMostThreads)
    refuse("intra_op_parallelism", options.intra_op_parallelism, "1 to 1024");
  if (options.stall_limit < std::chrono::milliseconds(1))
    throw_invalid(concat("a drive's stall limit of ", options.stall_limit.count(),
                         " ms; expected 1 ms or more"));
}

/// What the queue, its thread and the events that it waits for share.
class IoQueue::Core : public std::enable_shared_from_this<IoQueue::Core> {
 public:
  Core(const std::string& name, IoOptions options, std::vector<std::shared_ptr<const IoFile>> files,
       std::span<const View> buffers)
      : options_(std::move(options)),
        files_(std::move(files)),
        status_(std::make_shared<IoStatus>(name, options_.rank)),
        port_(make_port(options_)),
        driver_(*port_, options_, files_, [this](const IoRequest& request) { over(request); }) {
    attach(buffers);
  }

  void start() {
    thread_ = std::thread([self = shared_from_this()] { self->work(); });
  }

  void submit(const std::shared_ptr<IoRequest>& request) {
    {
      const std::lock_guard lock(mutex_);
      ++outstanding_;
    }
    const auto passed = [self = shared_from_this(), request] {
      if (request->waits.fetch_sub(1) == 1) self->ready(request);
    };
    // A copy: the last call may start the request, which lets go of them.
    const std::vector<std::shared_ptr<EventState>> after = request->after;
    for (const std::shared_ptr<EventState>& event : after) event->then(passed);
    passed();
  }

  bool drain() {
    std::unique_lock lock(mutex_);
    const auto empty = [this] { return outstanding_ == 0; };
    const auto some = std::chrono::milliseconds(100);
    const bool failing = std::uncaught_exceptions() > 0;
    std::uint64_t seen = status_->progress();
    Clock::time_point since = Clock::now();
    while (!empty() && !broken_ && !left_) {
      changed_.wait_until(lock, Clock::now() + some);
      if (seen != status_->progress()) since = Clock::now();
      seen = status_->progress();
      // Another queue has ended the run: this one does not hold it up until it notices itself.
      left_ = failing && Clock::now() - since > kGrace;
    }
    return changed_.wait_until(lock, std::max(broken_at_ + kGrace, Clock::now() + kLast), empty);
  }

  /// Ends the thread, or leaves it to a drive that holds work back.
  void end() {
    const bool drained = drain();
    if (!drained)
      log_error(concat("I/O queue: the drive still holds work back; its memory is not given free"));
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    port_->wake();
    drained ? thread_.join() : thread_.detach();
  }

  std::exception_ptr error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  const std::vector<std::shared_ptr<const IoFile>>& files() const { return files_; }
  const std::shared_ptr<IoStatus>& status() const { return status_; }
  const IoPort& port() const { return *port_; }
  IoCounters counters() const { return driver_.counters(); }

 private:
  static std::unique_ptr<IoPort> make_port(const IoOptions& options) {
    const IoPortOptions port{options.queue_depth, options.intra_op_parallelism,
                             options.single_submit, options.rank == 0};
    return options.port ? options.port(port) : open_io_port(port);
  }

  void attach(std::span<const View> buffers) {
    std::vector<int> descriptors;
    for (const auto& file : files_) descriptors.push_back(file->descriptor());
    if (const int code = port_->attach_files(descriptors))
      tell(LogLevel::info, "files are looked up each time", code, "");
    if (const int code = port_->attach_buffers(buffers))
      tell(LogLevel::warning, "buffers are locked each time", code,
           "; raise the limit of locked memory (ulimit -l) for less time a transfer");
  }

  /// Every queue of a run meets the same limit: one line in all.
  void tell(LogLevel level, const char* what, int code, const char* advice) const {
    if (options_.rank != 0) return;
    const IoError error(std::string(port_->name()), code, "does not register them", advice);
    log_once(level, concat("I/O: ", what, ": ", error.what()));
  }

  void ready(const std::shared_ptr<IoRequest>& request) {
    {
      const std::lock_guard lock(mutex_);
      ready_.push_back(request);
    }
    port_->wake();
  }

  void over(const IoRequest& request) {
    status_->advance();
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr) error_ = request.error;
    --outstanding_;
    changed_.notify_all();
  }

  void work() {
    set_log_rank(options_.rank);
    IoDriver::Requests taken;
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (ending_ && outstanding_ == 0) return;
        taken.swap(ready_);
      }
      for (std::shared_ptr<IoRequest>& request : taken) driver_.add(std::move(request));
      taken.clear();
      driver_.turn();
      if (driver_.broken() && !broken_) {
        const std::lock_guard lock(mutex_);
        broken_ = true;
        broken_at_ = Clock::now();
        if (error_ == nullptr) error_ = driver_.error();
        changed_.notify_all();
      }
    }
  }

  const IoOptions options_;
  const std::vector<std::shared_ptr<const IoFile>> files_;
  const std::shared_ptr<IoStatus> status_;
  const std::unique_ptr<IoPort> port_;
  IoDriver driver_;  ///< The thread's alone.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  IoDriver::Requests ready_;     ///< For the thread to take.
  std::size_t outstanding_ = 0;  ///< Requests that are not over.
  bool ending_ = false;
  bool broken_ = false;          ///< The drive was given up, ...
  Clock::time_point broken_at_;  ///< ... then.
  bool left_ = false;            ///< The run ended before that; nobody waits for the rest.
  std::exception_ptr error_;
  std::thread thread_;
};

IoQueue::IoQueue(Device& device, std::string name, IoOptions options,
                 std::vector<std::shared_ptr<const IoFile>> files, std::span<const View> buffers)
    : device_(device) {
  require_in_range(options);
  core_ = std::make_shared<Core>(name, std::move(options), std::move(files), buffers);
  core_->start();
}

IoQueue::~IoQueue() { core_->end(); }

Event IoQueue::submit(std::string what, std::vector<IoTransfer> transfers,
                      std::span<const Event> after) {
  std::vector<Access> accesses;
  for (const IoTransfer& transfer : transfers) {
    const auto file = static_cast<std::size_t>(transfer.file);
    ZERO3D_CHECK(transfer.file >= 0 && file < core_->files().size(), "a file of the queue");
    const auto fits = [](auto value) { return value % IoFile::kAlignment == 0; };
    const auto address = reinterpret_cast<std::uintptr_t>(transfer.memory.data());
    if (core_->files()[file]->direct() &&
        !(fits(transfer.offset) && fits(transfer.memory.bytes()) && fits(address)))
      throw_invalid(concat(core_->files()[file]->path(), ": direct I/O of ",
                           transfer.memory.bytes(), " bytes at offset ", transfer.offset,
                           " and address modulo 4096 of ", address % IoFile::kAlignment,
                           "; expected multiples of 4096, or a file opened without O_DIRECT"));
    accesses.push_back(transfer.write ? reads(transfer.memory) : writes(transfer.memory));
  }
  Event done;
  done.begin_record().set_recorder(core_->status());
  device_.declare(what, accesses, after, done);
  auto request = std::make_shared<IoRequest>();
  request->what = std::move(what);
  request->transfers = std::move(transfers);
  for (const Event& event : after) request->after.push_back(event.state());
  request->waits = request->after.size() + 1;
  request->state = done.state();
  core_->submit(request);
  return done;
}

std::exception_ptr IoQueue::error() const { return core_->error(); }
bool IoQueue::drain() { return core_->drain(); }
IoCounters IoQueue::counters() const { return core_->counters(); }
std::string_view IoQueue::port() const { return core_->port().name(); }

void keep_for_drives(Tensor memory) noexcept {
  struct Kept {
    Tensor memory;
    Kept* next = nullptr;
  };
  // Reachable to the end, so that no tool calls it a leak.
  static std::atomic<Kept*> first{nullptr};
  auto* const kept = new (std::nothrow) Kept{std::move(memory)};
  if (kept == nullptr) return;
  kept->next = first.load();
  while (!first.compare_exchange_weak(kept->next, kept)) {
  }
}

}  // namespace zero3d
