// What each ZeRO stage shards, as a table; the engine has no other notion of a stage. "Not sharded"
// is a shard over a group of one: stage 0 shards over a group of one and sums gradients over the
// replicas, MiCS shards over a part of the ranks.
#pragma once

namespace zero3d {

struct ShardingPolicy {
  bool optimizer_state = false;  ///< Masters and moments: each rank keeps and updates its shard.
  bool gradients = false;        ///< Reduced every micro-batch; each rank accumulates its shard.
  bool parameters = false;       ///< Gathered before use, released after.
};

/// ZeRO stage 0, 1, 2 or 3 (Rajbhandari et al., arXiv 1910.02054, section 5).
constexpr ShardingPolicy sharding_policy(int stage) {
  return {.optimizer_state = stage >= 1, .gradients = stage >= 2, .parameters = stage >= 3};
}

}  // namespace zero3d
