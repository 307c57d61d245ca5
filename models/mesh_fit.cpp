#include "zero3d/models/mesh_fit.h"

#include <algorithm>

#include "zero3d/core/text.h"

namespace zero3d {
namespace {

/// What a group of ranks divides.
struct Heads {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;

  bool dealt(std::int64_t ranks) const { return heads % ranks == 0; }
  /// Whole key and value heads to each rank, or ranks in a row share one.
  bool kv_dealt(std::int64_t ranks) const { return kv_heads % ranks == 0 || ranks % kv_heads == 0; }
  Heads on_each_of(std::int64_t ranks) const {
    return {heads / ranks, std::max<std::int64_t>(1, kv_heads / ranks)};
  }
};

/// "tp 1, 2 or 4 would do".
std::string possible(const char* axis, const Heads& all) {
  constexpr std::size_t kShown = 12;
  std::vector<std::string> degrees;
  for (std::int64_t ranks = 1; ranks <= all.heads && degrees.size() < kShown; ++ranks)
    if (all.dealt(ranks) && all.kv_dealt(ranks)) degrees.push_back(std::to_string(ranks));
  const std::string last = degrees.back();
  degrees.pop_back();
  return degrees.empty() ? concat("only ", axis, " ", last, " would do")
                         : concat(axis, " ", joined(degrees, ", "), " or ", last, " would do");
}

/// `where`: " on each of tp 2 ranks", where `all` are those.
void add_problems(std::vector<std::string>& problems, const char* axis, std::int64_t degree,
                  const Heads& all, const std::string& where) {
  if (!all.dealt(degree))
    problems.push_back(concat("its ", all.heads, " attention heads", where,
                              " cannot be dealt evenly to ", axis, " ", degree,
                              " ranks: ", possible(axis, all)));
  if (!all.kv_dealt(degree))
    problems.push_back(concat("its ", all.kv_heads, " key and value heads", where,
                              " can neither be dealt evenly to ", axis, " ", degree,
                              " ranks nor shared evenly by them: ", possible(axis, all)));
}

}  // namespace

std::vector<std::string> mesh_problems(const ModelConfig& config, const GridDegrees& degrees) {
  std::vector<std::string> problems;
  const Heads all{config.heads, config.kv_heads};
  add_problems(problems, "tp", degrees.tp, all, "");
  // sp divides what tp leaves of them on a rank.
  const bool cut = degrees.tp > 1 && problems.empty();
  add_problems(problems, "sp", degrees.sp, cut ? all.on_each_of(degrees.tp) : all,
               cut ? concat(" on each of tp ", degrees.tp, " ranks") : std::string());
  return problems;
}

}  // namespace zero3d
