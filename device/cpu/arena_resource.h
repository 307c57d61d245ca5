// Memory of a device: blocks of large ranges, best fit first. On the CPU a range is reserved
// address space, and a freed block is handed out again with its pages in place, so that a training
// step costs page faults only when it is the first of its kind, and the pages touched stay close to
// the highest use. Nothing here touches the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "zero3d/device/memory.h"

namespace zero3d {

/// Where an arena gets its ranges.
class RangeSource {
 public:
  virtual ~RangeSource() = default;
  /// Null when refused.
  virtual void* map(std::size_t bytes) = 0;
  virtual void unmap(void* data, std::size_t bytes) noexcept = 0;
  /// What a refusal means: where the bytes would have been, and how to have more.
  virtual std::string place() const = 0;
  virtual std::string advice() const = 0;
};
/// Address space without pages: the kernel supplies each at its first touch.
std::unique_ptr<RangeSource> address_space();

/// Thread-safe. Nothing is written to a block on release, nor are its pages given back: work
/// enqueued before the release may still use it.
class ArenaResource final : public MemoryResource {
 public:
  static constexpr std::size_t kAlignment = 64;
  /// From this size on blocks start at a page, as direct I/O wants them.
  static constexpr std::size_t kPageBlock = std::size_t{64} << 10;
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kLargestPiece = std::size_t{1} << 30;

  /// Address space is reserved in pieces: the first of `piece_bytes`, each further one of as much
  /// as all before it, at most kLargestPiece (or of one larger block). Others need address space
  /// too, and it may be limited.
  explicit ArenaResource(std::size_t piece_bytes = std::size_t{64} << 20,
                         std::unique_ptr<RangeSource> source = address_space());
  ~ArenaResource() override;

  void* allocate(std::size_t bytes) override;
  void deallocate(void* data, std::size_t bytes) noexcept override;

  /// Whether the byte lies in memory of this arena, handed out or not.
  bool contains(const void* data) const;

  /// Free blocks, each bordered by blocks in use or the end of a reserved range; for tests.
  std::size_t free_blocks() const;
  std::size_t reserved_bytes() const;
  /// The bytes between the first and the highest byte ever handed out, over all ranges.
  std::size_t touched_bytes() const;

 private:
  struct Range {
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
    std::uintptr_t touched_end = 0;
  };

  std::uintptr_t take(std::size_t bytes, std::size_t alignment);  ///< 0 when nothing fits.
  void reserve(std::size_t bytes);
  std::size_t reserved() const;
  using FreeBlock = std::map<std::uintptr_t, std::size_t>::iterator;
  void add_free(std::uintptr_t begin, std::size_t bytes);
  /// Moves an end of a free block; without allocating, which its caller may have no way to report.
  void change_free(FreeBlock block, std::uintptr_t begin, std::size_t bytes);
  void remove_free(FreeBlock block);
  Range* range_of(std::uintptr_t address);

  const std::size_t piece_bytes_;
  const std::unique_ptr<RangeSource> source_;
  mutable std::mutex mutex_;
  std::vector<Range> ranges_;
  std::map<std::uintptr_t, std::size_t> free_;                ///< By address.
  std::set<std::pair<std::size_t, std::uintptr_t>> by_size_;  ///< The same blocks.
};

}  // namespace zero3d
