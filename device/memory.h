// Where bytes come from: memory resources, the budget that bounds them, and the owners of what they
// hand out.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "zero3d/core/view.h"

namespace zero3d {

class MemoryResource {
 public:
  virtual ~MemoryResource() = default;
  /// At least `bytes` aligned to 64; `category` ("parameters", "gradients", "activations", ...) is
  /// for accounting. Throws OutOfMemory. Zero bytes give a valid, unique, unreadable pointer.
  virtual void* allocate(std::size_t bytes, const char* category) = 0;
  virtual void deallocate(void* data, std::size_t bytes, const char* category) noexcept = 0;
};

/// Bytes in use now and at the highest point, in all and per category.
struct MemoryUse {
  std::int64_t current = 0;
  std::int64_t peak = 0;
  struct Category {
    std::int64_t current = 0;
    std::int64_t peak = 0;
  };
  std::map<std::string, Category> categories;
};

/// Counts and bounds what passes to `upstream`. An allocation past the budget is OutOfMemory and
/// names what was asked, what is in use by category and the largest holders. Thread-safe.
class TrackingResource final : public MemoryResource {
 public:
  static constexpr std::int64_t kUnlimited = -1;
  /// `tier` names the memory in messages: "device of rank 0". The upstream must outlive this.
  TrackingResource(MemoryResource& upstream, std::string tier,
                   std::int64_t budget_bytes = kUnlimited);
  ~TrackingResource() override;

  void* allocate(std::size_t bytes, const char* category) override;
  void deallocate(void* data, std::size_t bytes, const char* category) noexcept override;

  MemoryUse use() const;
  void reset_peak();
  std::int64_t budget() const;
  std::int64_t available() const;  ///< Budget less current use; the largest int64 when unlimited.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Owns bytes of a resource; move-only.
class Buffer {
 public:
  Buffer() = default;
  /// `category` must be a literal (it is kept as a pointer).
  Buffer(MemoryResource& resource, std::size_t bytes, const char* category);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  bool defined() const { return data_ != nullptr; }
  void reset();

 private:
  MemoryResource* resource_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  const char* category_ = "";
};

/// A buffer with dtype and shape: owns a dense row-major tensor; move-only.
class Tensor {
 public:
  Tensor() = default;
  Tensor(MemoryResource& resource, DType dtype, const Shape& shape, const char* category);

  bool defined() const { return buffer_.defined(); }
  View view() const { return View(buffer_.data(), dtype_, shape_); }
  operator View() const { return view(); }       // NOLINT(google-explicit-constructor)
  operator ConstView() const { return view(); }  // NOLINT(google-explicit-constructor)
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t numel() const { return shape_.numel(); }
  /// The same bytes in another shape of equal numel.
  void reshape(const Shape& shape);
  void reset() { buffer_.reset(); }

 private:
  Buffer buffer_;
  DType dtype_ = DType::f32;
  Shape shape_;
};

}  // namespace zero3d
