#include "zero3d/engine/pipeline/partition.h"

#include <re2/re2.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>
#include <numeric>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

constexpr std::string_view kTypePrefix = "type:";
constexpr const char* kForms =
    "expected parameters, uniform, time, type:REGEX or the blocks of each stage, such as 3,3,4,2";

/// RE2 bounds what a pattern may cost.
std::unique_ptr<re2::RE2> compile(const std::string& pattern) {
  re2::RE2::Options options(re2::RE2::Quiet);
  options.set_case_sensitive(false);
  auto compiled = std::make_unique<re2::RE2>(pattern, options);
  if (!compiled->ok())
    throw_invalid(concat("the partition type:", pattern, " is no regular expression of RE2"));
  return compiled;
}

std::vector<int> parse_list(const std::string& text) {
  std::vector<int> counts;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    int count = 0;
    const auto [next, error] = std::from_chars(at, end, count);
    if (error != std::errc() || count < 1 || (next != end && *next != ','))
      throw_invalid(concat("there is no partition '", text, "'; ", kForms));
    counts.push_back(count);
    if (next == end) return counts;
    at = next + 1;
  }
}

std::vector<int> bounds_of(const std::vector<int>& counts) {
  std::vector<int> bounds{0};
  for (const int count : counts) bounds.push_back(bounds.back() + count);
  return bounds;
}

std::vector<int> uniform(int blocks, int segments) {
  std::vector<int> counts;
  for (int i = 0; i < segments; ++i)
    counts.push_back(blocks / segments + (i < blocks % segments ? 1 : 0));
  return bounds_of(counts);
}

std::vector<int> given(const std::vector<int>& counts, int blocks, int segments) {
  const int covered = std::accumulate(counts.begin(), counts.end(), 0);
  if (static_cast<int>(counts.size()) == segments && covered == blocks) return bounds_of(counts);
  throw_invalid(concat("the partition lists ", counts.size(), " segments of ", covered,
                       " blocks in all; the pipeline has ", segments, " and the model ", blocks,
                       " blocks: uniform would give ",
                       describe(given_partition(uniform(blocks, segments)))));
}

/// Prefix sums, and the two passes of balance().
class Balancer {
 public:
  Balancer(const std::vector<std::int64_t>& weights, int segments)
      : count_(static_cast<int>(weights.size())), segments_(segments), sums_(1, 0.0) {
    for (const std::int64_t weight : weights)
      sums_.push_back(sums_.back() + static_cast<double>(weight));
  }

  std::vector<int> run() const {
    const double least =
        solve([](double so_far, double weight) { return std::max(so_far, weight); }).cost;
    return solve([least](double so_far, double weight) {
             return weight > least ? kNever : so_far + weight * weight;
           })
        .bounds;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Solution {
    double cost = kNever;
    std::vector<int> bounds;
  };

  /// The least cost that `join` of segments' weights, one after the other, comes to. Of equals the
  /// one whose last segments begin latest.
  template <typename Join>
  Solution solve(const Join& join) const {
    const auto width = static_cast<std::size_t>(count_ + 1);
    std::vector<std::vector<double>> cost(static_cast<std::size_t>(segments_ + 1),
                                          std::vector<double>(width, kNever));
    std::vector<std::vector<int>> from(cost.size(), std::vector<int>(width, 0));
    cost[0][0] = 0;
    for (int segment = 1; segment <= segments_; ++segment) {
      const auto row = static_cast<std::size_t>(segment);
      for (int end = segment; end <= count_; ++end) {
        for (int begin = segment - 1; begin < end; ++begin) {
          const double weight =
              sums_[static_cast<std::size_t>(end)] - sums_[static_cast<std::size_t>(begin)];
          const double joined = join(cost[row - 1][static_cast<std::size_t>(begin)], weight);
          double& best = cost[row][static_cast<std::size_t>(end)];
          if (joined > best || joined == kNever) continue;
          best = joined;
          from[row][static_cast<std::size_t>(end)] = begin;
        }
      }
    }
    Solution solution{cost.back().back(), {count_}};
    for (int segment = segments_; segment > 0; --segment) {
      solution.bounds.push_back(from[static_cast<std::size_t>(segment)]
                                    [static_cast<std::size_t>(solution.bounds.back())]);
    }
    std::reverse(solution.bounds.begin(), solution.bounds.end());
    return solution;
  }

  int count_;
  int segments_;
  std::vector<double> sums_;
};

}  // namespace

PartitionChoice parse_partition(const std::string& text) {
  if (text == "parameters" || text == "best") return {};
  if (text == "uniform") return {.method = PartitionMethod::uniform};
  if (text == "time") return {.method = PartitionMethod::time};
  if (text.starts_with(kTypePrefix)) {
    PartitionChoice choice{.method = PartitionMethod::type,
                           .pattern = text.substr(kTypePrefix.size())};
    compile(choice.pattern);
    return choice;
  }
  return {.method = PartitionMethod::given, .blocks = parse_list(text)};
}

std::string describe(const PartitionChoice& choice) {
  switch (choice.method) {
    case PartitionMethod::parameters:
      return "parameters";
    case PartitionMethod::uniform:
      return "uniform";
    case PartitionMethod::time:
      return "time";
    case PartitionMethod::type:
      return concat(kTypePrefix, choice.pattern);
    default: {
      std::vector<std::string> counts;
      for (const int count : choice.blocks) counts.push_back(std::to_string(count));
      return joined(counts, ",");
    }
  }
}

PartitionChoice given_partition(const std::vector<int>& bounds) {
  PartitionChoice choice{.method = PartitionMethod::given};
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i)
    choice.blocks.push_back(bounds[i + 1] - bounds[i]);
  return choice;
}

std::vector<int> balance(const std::vector<std::int64_t>& weights, int segments) {
  return Balancer(weights, segments).run();
}

std::vector<int> partition_blocks(const PartitionChoice& choice,
                                  const std::vector<PartitionBlock>& blocks, int segments) {
  const auto count = static_cast<int>(blocks.size());
  if (count < segments) {
    throw_invalid(
        concat("the model has ", count, " blocks, and the pipeline ", segments,
               " segments (stages times virtual stages) that need one each; take at most ", count,
               " (--pp, pipeline.stages; --virtual-stages)"));
  }
  if (choice.method == PartitionMethod::uniform) return uniform(count, segments);
  if (choice.method == PartitionMethod::given) return given(choice.blocks, count, segments);
  std::vector<std::int64_t> weights;
  if (choice.method == PartitionMethod::parameters) {
    for (const PartitionBlock& block : blocks) weights.push_back(block.parameters);
    return balance(weights, segments);
  }
  if (choice.method == PartitionMethod::time) {
    for (const PartitionBlock& block : blocks) weights.push_back(block.nanoseconds);
    if (std::all_of(weights.begin(), weights.end(), [](std::int64_t time) { return time == 0; }))
      throw_invalid("the partition time needs times of blocks, and none were measured");
    return balance(weights, segments);
  }
  const std::unique_ptr<re2::RE2> pattern = compile(choice.pattern);
  std::vector<std::string> names;
  for (const PartitionBlock& block : blocks) {
    weights.push_back(re2::RE2::PartialMatch(block.name, *pattern) ? 1 : 0);
    names.push_back(block.name);
  }
  if (std::accumulate(weights.begin(), weights.end(), std::int64_t{0}) == 0) {
    throw_invalid(concat("the partition ", describe(choice),
                         " is found in no block's name; they are ", joined(names, ", ")));
  }
  return balance(weights, segments);
}

}  // namespace zero3d
