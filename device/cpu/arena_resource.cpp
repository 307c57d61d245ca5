#include "zero3d/device/cpu/arena_resource.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/multiples.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kSmallUse = std::size_t{8} << 20;

std::size_t block_bytes(std::size_t bytes) {
  return round_up(std::max<std::size_t>(bytes, 1), ArenaResource::kAlignment);
}

class AddressSpace final : public RangeSource {
 public:
  void* map(std::size_t bytes) override {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    // Large pages where much memory is used; a small device would pay for zeroing its first one. A
    // refusal costs speed only.
    const std::size_t small = std::exchange(first_, false) ? kSmallUse : 0;
    if (bytes > small) madvise(static_cast<std::byte*>(data) + small, bytes - small, MADV_HUGEPAGE);
    return data;
  }
  void unmap(void* data, std::size_t bytes) noexcept override { munmap(data, bytes); }
  std::string place() const override { return "address space"; }
  /// Whose limit it is, and how to raise it.
  std::string advice() const override {
    rlimit limit{};
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
      return concat("the process may have ",
                    format_bytes(static_cast<std::int64_t>(limit.rlim_cur)),
                    " in all (ulimit -v); raise that");
    }
    return "look at vm.overcommit_memory and the memory limit of the container";
  }

 private:
  bool first_ = true;
};

}  // namespace

std::unique_ptr<RangeSource> address_space() { return std::make_unique<AddressSpace>(); }

ArenaResource::ArenaResource(std::size_t piece_bytes, std::unique_ptr<RangeSource> source)
    : piece_bytes_(round_up(piece_bytes, kHugePage)), source_(std::move(source)) {}

ArenaResource::~ArenaResource() {
  for (const Range& range : ranges_)
    source_->unmap(reinterpret_cast<void*>(range.begin), range.bytes);
}

void* ArenaResource::allocate(std::size_t bytes) {
  const std::size_t block = block_bytes(bytes);
  const std::size_t alignment = bytes >= kPageBlock ? kPage : kAlignment;
  std::lock_guard lock(mutex_);
  std::uintptr_t begin = take(block, alignment);
  if (begin == 0) {
    reserve(block);
    begin = take(block, alignment);
  }
  Range* range = range_of(begin);
  range->touched_end = std::max(range->touched_end, begin + block);
  return reinterpret_cast<void*>(begin);
}

void ArenaResource::deallocate(void* data, std::size_t bytes) noexcept {
  if (data == nullptr) return;
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(data);
  std::size_t size = block_bytes(bytes);
  std::lock_guard lock(mutex_);
  const Range* range = range_of(begin);
  if (range == nullptr) {
    log_error("memory was returned to an arena it did not come from; it is lost");
    return;
  }
  const auto above = free_.lower_bound(begin);
  const auto below = above == free_.begin() ? free_.end() : std::prev(above);
  const bool joins_above = above != free_.end() && above->first == begin + size &&
                           above->first < range->begin + range->bytes;
  const bool joins_below =
      below != free_.end() && below->first >= range->begin && below->first + below->second == begin;
  if (joins_above) size += above->second;
  if (joins_below) {
    if (joins_above) remove_free(above);
    change_free(below, below->first, below->second + size);
  } else if (joins_above) {
    change_free(above, begin, size);
  } else {
    add_free(begin, size);
  }
}

std::uintptr_t ArenaResource::take(std::size_t bytes, std::size_t alignment) {
  // The smallest block that fits. Its untouched rest is the largest of all, so it is taken last.
  for (auto fit = by_size_.lower_bound({bytes, 0}); fit != by_size_.end(); ++fit) {
    const auto [size, begin] = *fit;
    const std::uintptr_t start = round_up(begin, alignment);
    if (start + bytes > begin + size) continue;
    const auto block = free_.find(begin);
    const std::size_t rest = begin + size - start - bytes;
    if (start > begin) {
      change_free(block, begin, start - begin);
      if (rest > 0) add_free(start + bytes, rest);
    } else if (rest > 0) {
      change_free(block, start + bytes, rest);
    } else {
      remove_free(block);
    }
    return start;
  }
  return 0;
}

void ArenaResource::reserve(std::size_t bytes) {
  const std::size_t least = round_up(bytes + kPage, kHugePage);
  std::size_t size = std::max({piece_bytes_, std::min(reserved(), kLargestPiece), least});
  void* data = source_->map(size);
  if (data == nullptr) data = source_->map(size = least);
  if (data == nullptr) {
    throw OutOfMemory(
        static_cast<std::int64_t>(bytes), source_->place(),
        concat("the system refused ", format_bytes(static_cast<std::int64_t>(least)), " of ",
               source_->place(), ", beside ", format_bytes(static_cast<std::int64_t>(reserved())),
               " that this arena has: ", source_->advice()));
  }
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(data);
  ranges_.push_back({begin, size, begin});
  add_free(begin, size);
}

void ArenaResource::add_free(std::uintptr_t begin, std::size_t bytes) {
  free_.emplace(begin, bytes);
  by_size_.emplace(bytes, begin);
}

void ArenaResource::change_free(FreeBlock block, std::uintptr_t begin, std::size_t bytes) {
  auto sized = by_size_.extract({block->second, block->first});
  sized.value() = {bytes, begin};
  by_size_.insert(std::move(sized));
  if (block->first == begin) {
    block->second = bytes;
    return;
  }
  auto placed = free_.extract(block);
  placed.key() = begin;
  placed.mapped() = bytes;
  free_.insert(std::move(placed));
}

void ArenaResource::remove_free(FreeBlock block) {
  by_size_.erase({block->second, block->first});
  free_.erase(block);
}

ArenaResource::Range* ArenaResource::range_of(std::uintptr_t address) {
  const auto range = std::find_if(ranges_.begin(), ranges_.end(), [address](const Range& each) {
    return address >= each.begin && address < each.begin + each.bytes;
  });
  return range == ranges_.end() ? nullptr : &*range;
}

bool ArenaResource::contains(const void* data) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  std::lock_guard lock(mutex_);
  return std::any_of(ranges_.begin(), ranges_.end(), [address](const Range& each) {
    return address >= each.begin && address < each.begin + each.bytes;
  });
}

std::size_t ArenaResource::reserved() const {
  std::size_t bytes = 0;
  for (const Range& range : ranges_) bytes += range.bytes;
  return bytes;
}

std::size_t ArenaResource::reserved_bytes() const {
  std::lock_guard lock(mutex_);
  return reserved();
}

std::size_t ArenaResource::free_blocks() const {
  std::lock_guard lock(mutex_);
  return free_.size();
}

std::size_t ArenaResource::touched_bytes() const {
  std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const Range& range : ranges_) bytes += range.touched_end - range.begin;
  return bytes;
}

}  // namespace zero3d
