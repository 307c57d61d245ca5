// Where bytes come from: memory resources, the budget that bounds them, and the owners of what they
// hand out. Memory is ordered by streams: an allocation names the stream that uses it, and a use
// elsewhere is said with used_on(); so that the host may give memory back while work on it is still
// enqueued, and whoever gets the bytes next comes after that work.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zero3d/core/view.h"
#include "zero3d/device/event.h"
#include "zero3d/device/memory_kind.h"
#include "zero3d/device/stream.h"

namespace zero3d {

/// Raw memory, in the order of the calls alone.
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;
  /// At least `bytes`, in whole lines of 64 bytes. Throws OutOfMemory. Zero bytes give a valid,
  /// unique, unreadable pointer.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* data, std::size_t bytes) noexcept = 0;
};

/// Memory of no stream: the host's, or set up once and used by several streams under events. The
/// host waits until the bytes are free before it gets them, and when it gives them back it has
/// waited for all work on them, or says with used_on() what is left.
struct NoStream {};
inline constexpr NoStream kNoStream;

/// In whose order memory is used.
class MemoryOrder {
 public:
  MemoryOrder(NoStream) {}  // NOLINT(google-explicit-constructor)
  MemoryOrder(const Stream& stream)
      : stream_(stream.handle()) {}  // NOLINT(google-explicit-constructor)

  /// Null for no stream.
  const std::shared_ptr<const StreamHandle>& stream() const { return stream_; }

 private:
  std::shared_ptr<const StreamHandle> stream_;
};

/// What the host has allocated: in the order of its calls, however far ahead of the streams it is.
struct MemoryUse {
  struct Count {
    std::int64_t current = 0;
    std::int64_t peak = 0;
  };
  std::int64_t current = 0;
  std::int64_t peak = 0;
  PerCategory<Count> categories;
  /// Given back, and held until the events it was used on are done. Counts against the budget.
  std::int64_t parked = 0;
};

/// A bound shared by one or more resources. `advice` ends the message of a refusal: which option
/// raises it, and how to need less.
class MemoryBudget;
inline constexpr std::int64_t kUnlimitedMemory = -1;
std::shared_ptr<MemoryBudget> make_memory_budget(std::int64_t bytes, std::string advice);

/// Counts, bounds and orders what passes to `upstream`. Bytes given back in the order of a stream
/// may be handed out again at once: to the same stream for nothing, to another one once that waits
/// for the first. Bytes with events are parked: kept back until those are done, or until the budget
/// is needed; then whoever gets them waits. Thread-safe, but the streams of one device are fed by
/// one host thread, which is the one that allocates.
class TrackingResource {
 public:
  static constexpr std::int64_t kUnlimited = kUnlimitedMemory;
  /// `name` is for messages: "device memory of rank 0". The upstream must outlive this.
  TrackingResource(MemoryResource& upstream, std::string name,
                   std::shared_ptr<MemoryBudget> budget = make_memory_budget(kUnlimited, ""));
  /// All work on its memory is over.
  ~TrackingResource();
  TrackingResource(const TrackingResource&) = delete;
  TrackingResource& operator=(const TrackingResource&) = delete;

  /// Throws OutOfMemory, naming what was asked, what is in use by category and the largest holders,
  /// when the budget does not have the bytes.
  void* allocate(std::size_t bytes, Category category, const MemoryOrder& order);
  /// `uses`: events of work on the bytes outside `order`.
  void deallocate(void* data, std::size_t bytes, Category category, const MemoryOrder& order,
                  std::vector<Event> uses) noexcept;

  MemoryUse use() const;
  void reset_peak();
  std::int64_t budget() const;
  std::int64_t available() const;  ///< Budget less current use; the largest int64 when unlimited.

 private:
  friend class MemoryBudget;
  struct State;
  std::unique_ptr<State> state_;
};

/// Owns bytes of a resource; move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(TrackingResource& resource, const MemoryOrder& order, std::size_t bytes,
         Category category);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  bool defined() const { return data_ != nullptr; }
  /// Work outside the buffer's own order uses the bytes until `event`.
  void used_on(const Event& event);
  void reset();

 private:
  TrackingResource* resource_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Category category_ = Category::other;
  MemoryOrder order_ = kNoStream;
  std::vector<Event> uses_;
};

/// A buffer with dtype and shape: owns a dense row-major tensor; move-only.
class Tensor {
 public:
  Tensor() = default;
  Tensor(TrackingResource& resource, const MemoryOrder& order, DType dtype, const Shape& shape,
         Category category);

  bool defined() const { return buffer_.defined(); }
  View view() const { return View(buffer_.data(), dtype_, shape_); }
  operator View() const { return view(); }       // NOLINT(google-explicit-constructor)
  operator ConstView() const { return view(); }  // NOLINT(google-explicit-constructor)
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t numel() const { return shape_.numel(); }
  /// The same bytes in another shape of equal numel.
  void reshape(const Shape& shape);
  void used_on(const Event& event) { buffer_.used_on(event); }
  void reset() { buffer_.reset(); }

 private:
  Buffer buffer_;
  DType dtype_ = DType::f32;
  Shape shape_;
};

}  // namespace zero3d
