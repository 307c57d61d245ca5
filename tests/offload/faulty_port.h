// A port that fails, cuts short, repeats or holds back what passes, as a test says, and counts it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/offload/io_port.h"

namespace zero3d::test {

/// What shall happen; shared with the ports, which the test does not own.
struct Faults {
  std::atomic<int> code{0};  ///< Nonzero: pieces from the one numbered `from` on fail so, ...
  std::atomic<int> from{0};
  std::atomic<bool> reads{true};  ///< ... those of reads, and of writes.
  std::atomic<bool> writes{true};
  std::atomic<int> repeats{0};       ///< So many pieces end with EINTR and EAGAIN in turn.
  std::atomic<bool> cut{false};      ///< Pieces move about half of what is asked.
  std::atomic<int> unaligned{0};     ///< So many report a few bytes less than they moved.
  std::atomic<bool> hold{false};     ///< Those are not started until it is false again.
  std::atomic<int> registration{0};  ///< The errno of attaching files and buffers.

  std::atomic<int> pieces{0};
  std::atomic<int> most_under_way{0};
  std::atomic<std::int64_t> largest{0};
  std::atomic<int> largest_batch{0};
};

class FaultyPort final : public IoPort {
 public:
  FaultyPort(std::unique_ptr<IoPort> inner, std::shared_ptr<Faults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}

  std::string_view name() const override { return inner_->name(); }
  int attach_files(std::span<const int> descriptors) override {
    const int code = faults_->registration;
    return code != 0 ? code : inner_->attach_files(descriptors);
  }
  int attach_buffers(std::span<const View> buffers) override {
    const int code = faults_->registration;
    return code != 0 ? code : inner_->attach_buffers(buffers);
  }

  void start(std::span<const IoPiece> pieces) override {
    std::vector<IoPiece> passed;
    under_way_ += static_cast<int>(pieces.size());
    raise(faults_->most_under_way, under_way_);
    raise(faults_->largest_batch, static_cast<int>(pieces.size()));
    for (IoPiece piece : pieces) {
      raise(faults_->largest, static_cast<std::int64_t>(piece.bytes));
      const int number = faults_->pieces++;
      const bool chosen = piece.write ? faults_->writes : faults_->reads;
      if (faults_->hold && chosen && number >= faults_->from) {
        held_.push_back(piece);
      } else if (faults_->code != 0 && chosen && number >= faults_->from) {
        over_.push_back({piece.tag, -faults_->code});
      } else if (faults_->repeats > 0) {
        over_.push_back({piece.tag, faults_->repeats-- % 2 == 0 ? -EINTR : -EAGAIN});
      } else {
        if (faults_->cut && piece.bytes > 4096)
          piece.bytes = piece.bytes / 2 / 4096 * 4096 + (piece.bytes < 8192 ? 4096 : 0);
        passed.push_back(piece);
      }
    }
    if (!passed.empty()) inner_->start(passed);
  }

  void wait(std::vector<IoDone>& done, std::chrono::milliseconds limit) override {
    if (!held_.empty() && !faults_->hold) inner_->start(std::exchange(held_, {}));
    if (!held_.empty()) limit = std::min(limit, std::chrono::milliseconds(5));
    const std::size_t before = done.size();
    done.insert(done.end(), over_.begin(), over_.end());
    if (!std::exchange(over_, {}).empty()) limit = std::chrono::milliseconds(0);
    const std::size_t real = done.size();
    inner_->wait(done, limit);
    for (std::size_t i = real; i < done.size(); ++i) {
      if (done[i].result > 4096 && faults_->unaligned > 0) {
        --faults_->unaligned;
        done[i].result -= 100;
      }
    }
    under_way_ -= static_cast<int>(done.size() - before);
  }
  void wake() override { inner_->wake(); }

 private:
  template <typename T>
  static void raise(std::atomic<T>& most, T value) {
    if (value > most) most = value;
  }

  std::unique_ptr<IoPort> inner_;
  std::shared_ptr<Faults> faults_;
  std::vector<IoPiece> held_;
  std::vector<IoDone> over_;
  int under_way_ = 0;
};

/// Such ports around those of `inner`.
inline IoPortFactory faulty(std::shared_ptr<Faults> faults, IoPortFactory inner) {
  return [faults = std::move(faults), inner = std::move(inner)](const IoPortOptions& options) {
    return std::make_unique<FaultyPort>(inner(options), faults);
  };
}

/// Whether this system and build have io_uring.
inline bool has_ring() {
  try {
    make_ring_port({});
    return true;
  } catch (const IoError&) {
    return false;
  }
}

}  // namespace zero3d::test
