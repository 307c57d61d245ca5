// A short busy wait before a thread goes to sleep: waking a sleeping thread costs more than most
// waits between streams last. Internal to the device layer.
#pragma once

#include <chrono>

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

/// True as soon as ready() holds, false after about `limit` without.
template <typename Ready>
bool spin_until(const Ready& ready,
                std::chrono::microseconds limit = std::chrono::microseconds(20)) {
  if (ready()) return true;
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
