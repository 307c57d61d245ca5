// A short busy wait before a thread goes to sleep: waking a sleeping thread costs more than most
// waits between streams last. Internal to the device layer.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace zero3d {

inline void spin_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// No more threads than cores spin at a time: with many streams to a core, spinning would take time
/// from the work that is waited for. (Half the cores would be too few: on two cores a stream and
/// the host that feeds it wait for each other in turn, 18 us instead of 2 for a launch and its
/// end.)
class SpinPermit {
 public:
  SpinPermit() : granted_(spinning_.fetch_add(1, std::memory_order_relaxed) < most()) {}
  ~SpinPermit() { spinning_.fetch_sub(1, std::memory_order_relaxed); }
  SpinPermit(const SpinPermit&) = delete;
  SpinPermit& operator=(const SpinPermit&) = delete;
  bool granted() const { return granted_; }

 private:
  static int most() {
    static const int cores = static_cast<int>(std::thread::hardware_concurrency());
    return std::max(2, cores);
  }
  static inline std::atomic<int> spinning_{0};
  bool granted_;
};

/// True as soon as ready() holds, false after some 2,000 pauses without: 30 to 100 us.
template <typename Ready>
bool spin(const Ready& ready) {
  for (int i = 0; i < 2000; ++i) {
    if (ready()) return true;
    spin_pause();
  }
  return ready();
}

/// True as soon as ready() holds, false after about `limit` without,
/// or at once when enough threads spin.
template <typename Ready>
bool spin_until(const Ready& ready,
                std::chrono::microseconds limit = std::chrono::microseconds(20)) {
  if (ready()) return true;
  const SpinPermit permit;
  if (!permit.granted()) return false;
  const auto end = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < 16; ++i) {
      spin_pause();
      if (ready()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace zero3d
