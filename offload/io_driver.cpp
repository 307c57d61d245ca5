#include "zero3d/offload/io_driver.h"

#include <algorithm>
#include <cerrno>
#include <thread>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/offload/checksum.h"

namespace zero3d {
namespace {

constexpr int kRepeatsAtOnce = 8;   // before a piece that does not move waits a little
constexpr int kMostEmptyEnds = 8;   // before one that ends with nothing is an error
constexpr int kMostRepeats = 2000;  // some two seconds

std::int64_t now_ms() { return now_ns() / 1'000'000; }

}  // namespace

std::int64_t IoRequest::bytes() const {
  std::int64_t sum = 0;
  for (const IoTransfer& transfer : transfers)
    sum += static_cast<std::int64_t>(transfer.memory.bytes());
  return sum;
}

void IoRequest::complete() {
  if (const std::shared_ptr<EventState> done = std::exchange(state, nullptr)) done->complete(error);
}

IoDriver::IoDriver(IoPort& port, const IoOptions& options,
                   const std::vector<std::shared_ptr<const IoFile>>& files,
                   std::function<void(const IoRequest&)> over)
    : port_(port),
      options_(options),
      files_(files),
      over_(std::move(over)),
      pieces_(static_cast<std::size_t>(options.queue_depth)) {
  for (std::size_t place = pieces_.size(); place-- > 0;) free_.push_back(place);
}

void IoDriver::add(std::shared_ptr<IoRequest> request) {
  request->begin_ns = now_ns();
  for (const std::shared_ptr<EventState>& before : request->after) {
    if (request->error == nullptr) request->error = before->error();
  }
  request->after.clear();
  if (request->error == nullptr) request->error = broken_;
  if (request->error == nullptr && !request->transfers.empty())
    pending_.push_back(std::move(request));
  else
    settle(request);
}

void IoDriver::turn() {
  try {
    fill();
    const bool busy = free_.size() < pieces_.size();
    done_.clear();
    // Woken now and then while pieces are under way, to see whether they get anywhere.
    port_.wait(done_, busy && !broken()
                          ? std::max(options_.stall_limit / 4, std::chrono::milliseconds(1))
                          : std::chrono::milliseconds(60'000));
    for (const IoDone& done : done_) finish(done);
    watch(!done_.empty() || !busy);
  } catch (...) {
    break_down(std::current_exception());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void IoDriver::fill() {
  const bool rests = free_.size() == pieces_.size();
  if (rests) last_end_ns_ = now_ns();
  starting_.clear();
  for (const std::size_t place : again_) starting_.push_back(describe(place));
  again_.clear();
  if (options_.overlap_events || rests) {
    while (!free_.empty() && start_next(free_.back())) {
      starting_.push_back(describe(free_.back()));
      free_.pop_back();
    }
  }
  if (!starting_.empty()) port_.start(starting_);
}

/// Makes the next block of the oldest request the piece of that place; false if there is none.
bool IoDriver::start_next(std::size_t place) {
  while (!pending_.empty()) {
    const std::shared_ptr<IoRequest> request = pending_.front();
    if (request->error != nullptr || request->next == request->transfers.size()) {
      pending_.pop_front();
      settle(request);
      continue;
    }
    const IoTransfer& transfer = request->transfers[request->next];
    const auto bytes = static_cast<std::int64_t>(transfer.memory.bytes());
    const std::int64_t count = std::min(options_.block_size, bytes - request->at);
    if (count > 0) {
      pieces_[place] = {request, request->next, request->at, count, 0, 0};
      ++request->under_way;
      if (transfer.write && transfer.checksums != nullptr)
        checksum_pages(transfer.memory.flat(request->at, count), transfer.offset + request->at,
                       transfer.checksums + request->at / IoTransfer::kPage);
      request->at += count;
    }
    if (request->at == bytes) {
      ++request->next;
      request->at = 0;
    }
    if (count > 0) return true;
  }
  return false;
}

IoPiece IoDriver::describe(std::size_t place) const {
  const Piece& piece = pieces_[place];
  const IoTransfer& transfer = piece.request->transfers[piece.transfer];
  const std::int64_t at = piece.begin + piece.moved;
  return {place,
          transfer.write,
          transfer.file,
          files_[static_cast<std::size_t>(transfer.file)]->descriptor(),
          transfer.memory.data() + at,
          static_cast<std::uint32_t>(piece.bytes - piece.moved),
          transfer.offset + at};
}

void IoDriver::finish(const IoDone& done) {
  pieces_over_.fetch_add(1, std::memory_order_relaxed);
  const auto place = static_cast<std::size_t>(done.tag);
  if (broken())
    end_piece(place);
  else if (done.result == -EINTR || done.result == -EAGAIN)
    repeat(place, -done.result);
  else if (done.result < 0)
    fail(place, -done.result, "");
  else
    move_on(place, done.result);
}

void IoDriver::move_on(std::size_t place, std::int64_t moved) {
  Piece& piece = pieces_[place];
  const IoTransfer& transfer = piece.request->transfers[piece.transfer];
  // A direct transfer goes on at a page only.
  if (moved < piece.bytes - piece.moved &&
      files_[static_cast<std::size_t>(transfer.file)]->direct())
    moved -= moved % IoFile::kAlignment;
  if (moved == 0) return repeat(place, 0);
  piece.repeats = 0;
  piece.moved += moved;
  (transfer.write ? written_bytes_ : read_bytes_) += moved;
  if (piece.moved < piece.bytes) {
    again_.push_back(place);
    return;
  }
  if (!transfer.write && transfer.checksums != nullptr) verify(piece);
  end_piece(place);
}

void IoDriver::repeat(std::size_t place, int code) {
  Piece& piece = pieces_[place];
  ++piece.repeats;
  if (code == 0 && piece.repeats > kMostEmptyEnds) {
    const bool write = piece.request->transfers[piece.transfer].write;
    return fail(place, write ? ENOSPC : 0,
                write ? "the file takes no more" : "the file ends there");
  }
  if (piece.repeats > kMostRepeats)
    return fail(place, code, concat("the system has asked ", kMostRepeats, " times to repeat it"));
  if (piece.repeats > kRepeatsAtOnce) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  again_.push_back(place);
}

void IoDriver::end_piece(std::size_t place) {
  const std::shared_ptr<IoRequest> request = std::exchange(pieces_[place].request, nullptr);
  free_.push_back(place);
  --request->under_way;
  settle(request);
}

void IoDriver::fail(std::size_t place, int code, const std::string& why) {
  Piece& piece = pieces_[place];
  if (piece.request->error == nullptr)
    piece.request->error = std::make_exception_ptr(error_at(piece, code, why));
  end_piece(place);
}

void IoDriver::settle(const std::shared_ptr<IoRequest>& request) {
  const bool started = request->error != nullptr || request->next == request->transfers.size();
  if (!started || request->under_way > 0) return;
  if (request->state != nullptr && request->error == nullptr && Tracer::enabled())
    Tracer::add(
        {request->what, "I/O", options_.rank, request->begin_ns, now_ns(), request->bytes()});
  // A request that failed before all of it was started is still listed.
  const auto listed = std::find(pending_.begin(), pending_.end(), request);
  const std::shared_ptr<IoRequest> kept = request;
  if (listed != pending_.end()) pending_.erase(listed);
  kept->complete();
  over_(*kept);
}

void IoDriver::verify(const Piece& piece) {
  const IoTransfer& transfer = piece.request->transfers[piece.transfer];
  const std::int64_t begin = transfer.offset + piece.begin;
  const std::int64_t bad = first_damaged_page(transfer.memory.flat(piece.begin, piece.bytes), begin,
                                              transfer.checksums + piece.begin / IoTransfer::kPage);
  if (bad < 0 || piece.request->error != nullptr) return;
  const std::string& path = files_[static_cast<std::size_t>(transfer.file)]->path();
  piece.request->error = std::make_exception_ptr(
      IoError(path, 0,
              concat("the ", IoTransfer::kPage, " bytes at offset ", bad,
                     " are not those that were written there: their checksum differs; the drive or "
                     "what lies between has damaged them, or another process wrote to the file; "
                     "test the drive or name another path")));
}

/// Ends everything when nothing has ended for too long.
void IoDriver::watch(bool ended) {
  if (ended) {
    last_end_ns_ = now_ns();
    return;
  }
  const std::int64_t waited = now_ms() - last_end_ns_ / 1'000'000;
  if (broken() || waited < options_.stall_limit.count()) return;
  const auto stalled = std::find_if(pieces_.begin(), pieces_.end(),
                                    [](const Piece& piece) { return piece.request != nullptr; });
  if (stalled == pieces_.end()) return;
  break_down(std::make_exception_ptr(
      error_at(*stalled, ETIMEDOUT,
               concat("nothing that was asked of the drive has ended for ", waited, " ms"))));
}

void IoDriver::break_down(const std::exception_ptr& error) {
  if (!broken()) broken_ = error;
  const auto give_up = [this](const std::shared_ptr<IoRequest>& request) {
    if (request->error == nullptr) request->error = broken_;
    // Who waits must not wait for the drive; over_ follows when its memory is free.
    request->complete();
  };
  const auto pending = std::exchange(pending_, {});
  for (const std::shared_ptr<IoRequest>& request : pending) {
    give_up(request);
    settle(request);
  }
  for (Piece& piece : pieces_) {
    if (piece.request != nullptr) give_up(piece.request);
  }
  for (const std::size_t place : std::exchange(again_, {})) end_piece(place);
}

IoError IoDriver::error_at(const Piece& piece, int code, const std::string& why) const {
  const IoTransfer& transfer = piece.request->transfers[piece.transfer];
  return IoError(files_[static_cast<std::size_t>(transfer.file)]->path(), code,
                 concat("cannot ", transfer.write ? "write " : "read ", piece.bytes - piece.moved,
                        " bytes at offset ", transfer.offset + piece.begin + piece.moved, " for '",
                        piece.request->what, "'"),
                 why.empty() ? "" : concat(": ", why));
}

}  // namespace zero3d
