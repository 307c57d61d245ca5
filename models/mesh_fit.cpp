#include "zero3d/models/mesh_fit.h"

#include "zero3d/core/text.h"

namespace zero3d {
namespace {

bool deals_heads(const ModelConfig& config, std::int64_t ranks) {
  return config.heads % ranks == 0;
}

/// Whole key and value heads to each rank, or ranks in a row share one.
bool deals_kv_heads(const ModelConfig& config, std::int64_t ranks) {
  return config.kv_heads % ranks == 0 || ranks % config.kv_heads == 0;
}

/// "tp 1, 2 or 4 would do".
std::string possible_tp(const ModelConfig& config) {
  constexpr std::size_t kShown = 12;
  std::vector<std::string> all;
  for (std::int64_t ranks = 1; ranks <= config.heads && all.size() < kShown; ++ranks)
    if (deals_heads(config, ranks) && deals_kv_heads(config, ranks))
      all.push_back(std::to_string(ranks));
  const std::string last = all.back();
  all.pop_back();
  return all.empty() ? concat("only tp ", last, " would do")
                     : concat("tp ", joined(all, ", "), " or ", last, " would do");
}

}  // namespace

std::vector<std::string> mesh_problems(const ModelConfig& config, const GridDegrees& degrees) {
  std::vector<std::string> problems;
  if (!deals_heads(config, degrees.tp))
    problems.push_back(concat("its ", config.heads,
                              " attention heads cannot be dealt evenly to tp ", degrees.tp,
                              " ranks: ", possible_tp(config)));
  if (!deals_kv_heads(config, degrees.tp))
    problems.push_back(concat("its ", config.kv_heads,
                              " key and value heads can neither be dealt "
                              "evenly to tp ",
                              degrees.tp,
                              " ranks nor shared evenly by them: ", possible_tp(config)));
  return problems;
}

}  // namespace zero3d
