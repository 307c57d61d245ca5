// Fills device memory with NaN bytes when it is handed out and when it is released, so that a value
// read before its first write or after its release spoils the result. Bytes that enqueued work may
// still use are left alone.
#pragma once

#include <cstring>

#include "zero3d/device/hazard.h"
#include "zero3d/device/memory.h"

namespace zero3d {

class PoisonResource final : public MemoryResource {
 public:
  PoisonResource(MemoryResource& upstream, HazardChecker& checker)
      : upstream_(upstream), checker_(checker) {}

  void* allocate(std::size_t bytes) override {
    void* data = upstream_.allocate(bytes);
    poison(data, bytes);
    return data;
  }
  void deallocate(void* data, std::size_t bytes) noexcept override {
    poison(data, bytes);
    upstream_.deallocate(data, bytes);
  }

 private:
  void poison(void* data, std::size_t bytes) noexcept {
    if (data != nullptr && checker_.idle(data, bytes)) std::memset(data, 0xFF, bytes);
  }

  MemoryResource& upstream_;
  HazardChecker& checker_;
};

}  // namespace zero3d
