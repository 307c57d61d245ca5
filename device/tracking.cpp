// TrackingResource: counts, peaks and the budget. Counts are the bytes asked for, not what the
// upstream rounds them to, so that a planned peak can be compared to the byte.
#include <algorithm>
#include <limits>
#include <mutex>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/memory.h"

namespace zero3d {

struct TrackingResource::State {
  State(MemoryResource& resource, std::string name, std::int64_t bytes)
      : upstream(resource), tier(std::move(name)), budget(bytes) {}

  /// Call with the mutex held.
  std::string refusal(std::size_t bytes, const char* category) const;

  MemoryResource& upstream;
  const std::string tier;
  const std::int64_t budget;
  mutable std::mutex mutex;
  MemoryUse use;
};

std::string TrackingResource::State::refusal(std::size_t bytes, const char* category) const {
  std::vector<std::pair<std::int64_t, std::string>> holders;
  for (const auto& [name, held] : use.categories) {
    if (held.current > 0) holders.emplace_back(held.current, name);
  }
  std::sort(holders.rbegin(), holders.rend());
  std::string text = concat("out of memory on ", tier, ": asked for ",
                            format_bytes(static_cast<std::int64_t>(bytes)), " (", bytes,
                            " bytes) of ", category, " with ", format_bytes(use.current), " (",
                            use.current, " bytes) in use of a budget of ");
  text += budget == kUnlimited ? "no limit" : concat(format_bytes(budget), " (", budget, " bytes)");
  text += "; held by ";
  for (const auto& [held, name] : holders) text += concat(name, " ", format_bytes(held), ", ");
  if (holders.empty()) text += "nobody, ";
  text +=
      "raise the budget with --device-memory, or need less: a higher ZeRO stage, offload, "
      "activation "
      "checkpointing or a smaller micro-batch";
  return text;
}

TrackingResource::TrackingResource(MemoryResource& upstream, std::string tier,
                                   std::int64_t budget_bytes)
    : state_(std::make_unique<State>(upstream, std::move(tier), budget_bytes)) {
  if (budget_bytes < 0 && budget_bytes != kUnlimited)
    throw_invalid(concat("memory budget of ", budget_bytes, " bytes: expected 0 or more"));
}

TrackingResource::~TrackingResource() = default;

void* TrackingResource::allocate(std::size_t bytes, const char* category) {
  const auto size = static_cast<std::int64_t>(bytes);
  State& state = *state_;
  {
    std::lock_guard lock(state.mutex);
    const bool fits =
        size >= 0 && (state.budget == kUnlimited || size <= state.budget - state.use.current);
    if (!fits) throw OutOfMemory(size, state.tier, state.refusal(bytes, category));
    MemoryUse::Category& held = state.use.categories[category];
    state.use.current += size;
    state.use.peak = std::max(state.use.peak, state.use.current);
    held.current += size;
    held.peak = std::max(held.peak, held.current);
  }
  // Outside the lock: the upstream may fault pages in. The bytes are already claimed.
  try {
    return state.upstream.allocate(bytes, category);
  } catch (...) {
    std::lock_guard lock(state.mutex);
    state.use.current -= size;
    state.use.categories[category].current -= size;
    throw;
  }
}

void TrackingResource::deallocate(void* data, std::size_t bytes, const char* category) noexcept {
  if (data == nullptr) return;
  state_->upstream.deallocate(data, bytes, category);
  std::lock_guard lock(state_->mutex);
  state_->use.current -= static_cast<std::int64_t>(bytes);
  const auto held = state_->use.categories.find(category);
  if (held != state_->use.categories.end())
    held->second.current -= static_cast<std::int64_t>(bytes);
}

MemoryUse TrackingResource::use() const {
  std::lock_guard lock(state_->mutex);
  return state_->use;
}

void TrackingResource::reset_peak() {
  std::lock_guard lock(state_->mutex);
  state_->use.peak = state_->use.current;
  for (auto& [name, held] : state_->use.categories) held.peak = held.current;
}

std::int64_t TrackingResource::budget() const { return state_->budget; }

std::int64_t TrackingResource::available() const {
  std::lock_guard lock(state_->mutex);
  if (state_->budget == kUnlimited) return std::numeric_limits<std::int64_t>::max();
  return state_->budget - state_->use.current;
}

}  // namespace zero3d
