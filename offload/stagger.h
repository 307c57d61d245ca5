// Where the arrays begin that an update reads and writes side by side. Arrays that lie a power of
// two apart, as large allocations do, compete for the same sets of the caches and the same banks of
// memory: a loop over four of them runs at a third of its speed. So each kind of array has a
// colour, and no two colours are equal modulo a page, whatever the allocator does.
#pragma once

#include <cstdint>

#include "zero3d/device/device.h"

namespace zero3d {

/// The parts of a record take the colours from 0 to 3.
enum class ArrayColour { parameter = 4, gradient = 5 };

struct Stagger {
  static constexpr std::int64_t kPage = 4096;
  static constexpr std::int64_t kLines = 640;  ///< Bytes between colours, modulo a page: more than
                                               ///< the stores that a core has under way at a time.
  static constexpr std::int64_t kSmall = 64 << 10;  ///< Bytes; below, an array stays in the cache.
  static constexpr std::int64_t kLarge = 1 << 20;   ///< From here on pages differ as well, ...
  static constexpr std::int64_t kPeriod = 8 * kPage;  ///< ... modulo this.

  /// What an array of `bytes` is allocated with beyond them, to begin where its colour wants it.
  static std::int64_t slack(std::int64_t bytes);
  /// The first byte at or after `at` where an array of `bytes` may begin.
  static std::int64_t place(std::int64_t at, std::int64_t bytes, int colour);
};

/// A flat tensor that begins where its colour wants it, of no stream; allocates slack() with it.
/// Move-only.
class StaggeredTensor {
 public:
  StaggeredTensor() = default;
  StaggeredTensor(TrackingResource& resource, DType dtype, std::int64_t elements, Category category,
                  ArrayColour colour);

  bool defined() const { return storage_.defined(); }
  View view() const { return view_; }
  std::int64_t numel() const { return view_.numel(); }

  /// Its bytes go to memory of another tier, and what they had is given up: nothing that is
  /// enqueued uses it. Views of it end. Blocks the host. Throws OutOfMemory and is as it was.
  void move_to(Device& device, Stream& stream, Tier tier);

 private:
  Tensor storage_;
  View view_;
  Category category_ = Category::other;
  ArrayColour colour_ = ArrayColour::parameter;
};

}  // namespace zero3d
