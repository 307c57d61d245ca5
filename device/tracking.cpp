// TrackingResource: counts, peaks, the budget, and what was given back before its last use was
// over. Counts are the bytes asked for, not what the upstream rounds them to, so that a planned
// peak can be compared to the byte.
#include <algorithm>
#include <limits>
#include <list>
#include <mutex>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/event_state.h"
#include "zero3d/device/last_uses.h"
#include "zero3d/device/memory.h"

namespace zero3d {

struct TrackingResource::State {
  State(MemoryResource& resource, std::string text) : upstream(resource), name(std::move(text)) {}

  /// With the budget's mutex held.
  void give_back(void* data, std::size_t bytes, const MemoryOrder& order,
                 std::vector<Event> uses) noexcept;

  MemoryResource& upstream;
  const std::string name;
  std::shared_ptr<MemoryBudget> budget;
  MemoryUse use;
  LastUses last_uses;
};

static bool all_done(const std::vector<Event>& uses) {
  return std::all_of(uses.begin(), uses.end(), [](const Event& event) { return event.done(); });
}

/// One mutex guards a budget and all resources that share it. It is never held while anybody waits.
class MemoryBudget {
 public:
  using Resource = TrackingResource::State;
  MemoryBudget(std::int64_t size, std::string text) : bytes(size), advice(std::move(text)) {
    if (bytes < 0 && bytes != kUnlimitedMemory)
      throw_invalid(concat("memory budget of ", bytes, " bytes: expected 0 or more"));
  }

  /// Whether `more` bytes could be had if every parked byte were taken for them.
  bool can_hold(std::int64_t more) const {
    return more >= 0 && (bytes == kUnlimitedMemory || more <= bytes - held);
  }
  std::string refusal(std::int64_t more, Category category, const std::string& name) const;
  /// Gives back what is parked and done with, and then, oldest first, what `more` bytes need.
  void unpark_for(std::int64_t more);
  void unpark_all_of(const Resource& resource);

  struct Parked {
    Resource* resource;
    void* data;
    std::size_t bytes;
    MemoryOrder order;
    std::vector<Event> uses;
  };

  const std::int64_t bytes;
  const std::string advice;
  std::mutex mutex;
  std::int64_t held = 0;  ///< By owners, of all resources.
  std::int64_t parked = 0;
  std::list<Parked> waiting;
  std::vector<Resource*> resources;

 private:
  std::list<Parked>::iterator unpark(std::list<Parked>::iterator entry);
};

namespace {

/// The lines a block lies in, of which it is the only user.
std::uintptr_t end_of(std::uintptr_t begin, std::size_t bytes) {
  constexpr std::uintptr_t kLine = 64;
  return begin + (std::max<std::uintptr_t>(bytes, 1) + kLine - 1) / kLine * kLine;
}

/// A point that is passed orders nothing more; a checker wants to hear of it all the same.
bool is_over(const Event& event) { return event.done() && event.state()->order().empty(); }

}  // namespace

void TrackingResource::State::give_back(void* data, std::size_t bytes, const MemoryOrder& order,
                                        std::vector<Event> uses) noexcept {
  std::erase_if(uses, is_over);
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  last_uses.add(begin, end_of(begin, bytes), order, std::move(uses));
  upstream.deallocate(data, bytes);
}

std::string MemoryBudget::refusal(std::int64_t more, Category category,
                                  const std::string& name) const {
  std::vector<std::pair<std::int64_t, std::string_view>> holders;
  for (const Category each : kAllCategories) {
    std::int64_t sum = 0;
    for (const Resource* resource : resources) sum += resource->use.categories[each].current;
    if (sum > 0) holders.emplace_back(sum, name_of(each));
  }
  std::sort(holders.rbegin(), holders.rend());
  std::string text = concat("out of memory on ", name, ": asked for ", format_bytes(more), " (",
                            more, " bytes) of ", name_of(category), " with ", format_bytes(held),
                            " (", held, " bytes) in use of a budget of ");
  text +=
      bytes == kUnlimitedMemory ? "no limit" : concat(format_bytes(bytes), " (", bytes, " bytes)");
  text += "; held by ";
  for (const auto& [sum, holder] : holders) text += concat(holder, " ", format_bytes(sum), ", ");
  if (holders.empty()) text += "nobody, ";
  return text + advice;
}

void MemoryBudget::unpark_for(std::int64_t more) {
  for (auto entry = waiting.begin(); entry != waiting.end();)
    entry = all_done(entry->uses) ? unpark(entry) : std::next(entry);
  if (bytes == kUnlimitedMemory) return;
  while (!waiting.empty() && more > bytes - held - parked) unpark(waiting.begin());
}

void MemoryBudget::unpark_all_of(const Resource& resource) {
  for (auto entry = waiting.begin(); entry != waiting.end();)
    entry = entry->resource == &resource ? unpark(entry) : std::next(entry);
}

std::list<MemoryBudget::Parked>::iterator MemoryBudget::unpark(std::list<Parked>::iterator entry) {
  parked -= static_cast<std::int64_t>(entry->bytes);
  entry->resource->use.parked -= static_cast<std::int64_t>(entry->bytes);
  entry->resource->give_back(entry->data, entry->bytes, entry->order, std::move(entry->uses));
  return waiting.erase(entry);
}

std::shared_ptr<MemoryBudget> make_memory_budget(std::int64_t bytes, std::string advice) {
  return std::make_shared<MemoryBudget>(bytes, std::move(advice));
}

TrackingResource::TrackingResource(MemoryResource& upstream, std::string name,
                                   std::shared_ptr<MemoryBudget> budget)
    : state_(std::make_unique<State>(upstream, std::move(name))) {
  state_->budget = std::move(budget);
  std::lock_guard lock(state_->budget->mutex);
  state_->budget->resources.push_back(state_.get());
}

TrackingResource::~TrackingResource() {
  std::lock_guard lock(state_->budget->mutex);
  state_->budget->unpark_all_of(*state_);
  std::erase(state_->budget->resources, state_.get());
}

void* TrackingResource::allocate(std::size_t bytes, Category category, const MemoryOrder& order) {
  const auto size = static_cast<std::int64_t>(bytes);
  State& state = *state_;
  MemoryBudget& budget = *state.budget;
  void* data = nullptr;
  std::vector<Event> before;
  {
    std::lock_guard lock(budget.mutex);
    if (!budget.can_hold(size))
      throw OutOfMemory(size, state.name, budget.refusal(size, category, state.name));
    if (!budget.waiting.empty()) budget.unpark_for(size);
    data = state.upstream.allocate(bytes);
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    before = state.last_uses.take(begin, end_of(begin, bytes), order);
    MemoryUse::Count& count = state.use.categories[category];
    budget.held += size;
    state.use.current += size;
    state.use.peak = std::max(state.use.peak, state.use.current);
    count.current += size;
    count.peak = std::max(count.peak, count.current);
  }
  try {
    for (const Event& event : before) {
      if (order.stream() != nullptr) {
        order.stream()->stream->wait(event);
      } else {
        event.wait();
      }
    }
  } catch (...) {
    deallocate(data, bytes, category, order, std::move(before));
    throw;
  }
  return data;
}

void TrackingResource::deallocate(void* data, std::size_t bytes, Category category,
                                  const MemoryOrder& order, std::vector<Event> uses) noexcept {
  if (data == nullptr) return;
  const auto size = static_cast<std::int64_t>(bytes);
  State& state = *state_;
  MemoryBudget& budget = *state.budget;
  std::lock_guard lock(budget.mutex);
  budget.held -= size;
  state.use.current -= size;
  state.use.categories[category].current -= size;
  if (all_done(uses)) return state.give_back(data, bytes, order, std::move(uses));
  budget.parked += size;
  state.use.parked += size;
  budget.waiting.push_back({&state, data, bytes, order, std::move(uses)});
}

MemoryUse TrackingResource::use() const {
  std::lock_guard lock(state_->budget->mutex);
  return state_->use;
}

void TrackingResource::reset_peak() {
  std::lock_guard lock(state_->budget->mutex);
  MemoryUse& use = state_->use;
  use.peak = use.current;
  for (const Category category : kAllCategories)
    use.categories[category].peak = use.categories[category].current;
}

std::int64_t TrackingResource::budget() const { return state_->budget->bytes; }

std::int64_t TrackingResource::available() const {
  std::lock_guard lock(state_->budget->mutex);
  if (budget() == kUnlimited) return std::numeric_limits<std::int64_t>::max();
  return budget() - state_->budget->held;
}

}  // namespace zero3d
