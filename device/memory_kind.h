// What memory is and what it is for: the tiers and categories that budgets, plans and reports
// speak of.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string_view>

namespace zero3d {

enum class Tier {
  device,
  pinned,   ///< Host memory the device copies from and to at full speed.
  pageable  ///< Any other host memory.
};
inline constexpr std::size_t kTiers = 3;

/// In the order reports name them.
enum class Category {
  activations,
  batches,
  gathered_parameters,
  gradient_buckets,
  gradients,
  norm_workspace,
  optimizer_states,
  optimizer_workspace,
  other,
  parameters,
  workspace  ///< Scratch of blocks; memory plans count it among activations.
};
inline constexpr std::size_t kCategories = 11;

std::string_view name_of(Tier tier);
std::string_view name_of(Category category);

/// One T for each value of an enum that counts from 0.
template <typename Enum, typename T, std::size_t kCount>
class EnumArray {
 public:
  T& operator[](Enum at) { return values_[static_cast<std::size_t>(at)]; }
  const T& operator[](Enum at) const { return values_[static_cast<std::size_t>(at)]; }

 private:
  std::array<T, kCount> values_{};
};
template <typename T>
using PerTier = EnumArray<Tier, T, kTiers>;
template <typename T>
using PerCategory = EnumArray<Category, T, kCategories>;

/// Every value, for loops.
inline constexpr std::array<Category, kCategories> kAllCategories = [] {
  std::array<Category, kCategories> all{};
  for (std::size_t i = 0; i < kCategories; ++i) all[i] = static_cast<Category>(i);
  return all;
}();
/// The tiers of one budget.
inline constexpr std::initializer_list<Tier> kHostTiers = {Tier::pinned, Tier::pageable};

}  // namespace zero3d
