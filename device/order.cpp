#include "zero3d/device/order.h"

#include <algorithm>

namespace zero3d {

thread_local bool InsideTask::inside_ = false;

void join_counts(OrderCounts& into, const OrderCounts& from) {
  if (into.size() < from.size()) into.resize(from.size(), 0);
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

void OrderDomain::observe(const OrderCounts& counts) {
  std::lock_guard lock(mutex_);
  join_counts(counts_, counts);
  version_.fetch_add(1, std::memory_order_release);
}

OrderCounts OrderDomain::observed() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

void OrderClock::join(const OrderClock& other) {
  for (const Part& part : other.parts_) join(part.domain, part.counts);
}

void OrderClock::join(const std::shared_ptr<OrderDomain>& domain, const OrderCounts& from) {
  join_counts(counts(domain), from);
}

const OrderCounts* OrderClock::find(const OrderDomain& domain) const {
  for (const Part& part : parts_) {
    if (part.domain.get() == &domain) return &part.counts;
  }
  return nullptr;
}

OrderCounts& OrderClock::counts(const std::shared_ptr<OrderDomain>& domain) {
  for (Part& part : parts_) {
    if (part.domain == domain) return part.counts;
  }
  parts_.push_back({domain, {}});
  return parts_.back().counts;
}

void OrderClock::observe() const {
  for (const Part& part : parts_) part.domain->observe(part.counts);
}

}  // namespace zero3d
