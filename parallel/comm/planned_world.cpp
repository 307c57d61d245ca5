#include "zero3d/parallel/comm/planned_world.h"

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

[[noreturn]] void refuse(const char* operation) {
  throw_invalid(concat(operation, " between ranks that are only planned: nothing travels there"));
}

class PlannedGroup : public Communicator {
 public:
  /// `ranks`: of the world, ascending.
  PlannedGroup(std::vector<int> ranks, int world_rank) : ranks_(std::move(ranks)) {
    rank_ = static_cast<int>(std::find(ranks_.begin(), ranks_.end(), world_rank) - ranks_.begin());
  }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  std::string description() const override { return concat("planned group of ", size(), " ranks"); }
  void all_gather(Stream&, std::span<const GatherSegment>) override { refuse("all_gather"); }
  void reduce_scatter(Stream&, std::span<const ReduceSegment>, const ReduceOptions&) override {
    refuse("reduce_scatter");
  }
  void all_reduce(Stream&, const View&, const ReduceOptions&) override { refuse("all_reduce"); }
  void broadcast(Stream&, const View&, int) override { refuse("broadcast"); }
  void all_to_all(Stream&, std::span<const ConstView>, std::span<const View>) override {
    refuse("all_to_all");
  }
  void send(Stream&, const ConstView&, int) override { refuse("send"); }
  void recv(Stream&, const View&, int) override { refuse("recv"); }
  void barrier(Stream&) override { refuse("barrier"); }
  std::vector<std::string> exchange(const std::string&) override { refuse("exchange"); }
  std::unique_ptr<Communicator> split(int, int) override { refuse("split"); }
  void fail(const std::exception_ptr&) noexcept override {}
  void check() override {}
  void set_timeout(std::chrono::milliseconds) override {}

 private:
  std::vector<int> ranks_;
  int rank_ = 0;
};

std::vector<int> all_ranks(int count) {
  std::vector<int> ranks;
  for (int rank = 0; rank < count; ++rank) ranks.push_back(rank);
  return ranks;
}

/// A color tells a group of one axis, and a Mesh goes through the axes in order: of those that are
/// left, the first in which this rank's group has the color.
class PlannedWorld final : public PlannedGroup {
 public:
  PlannedWorld(const Topology& topology, int rank)
      : PlannedGroup(all_ranks(topology.world_size()), rank), topology_(topology) {}

  std::unique_ptr<Communicator> split(int color, int) override {
    while (next_ < kAxes.size()) {
      const Axis axis = kAxes[next_++];
      if (topology_.color(axis, rank()) != color) continue;
      std::vector<int> ranks = topology_.group(axis, rank());
      if (ranks.size() == 1 || static_cast<int>(ranks.size()) == size()) continue;
      if (std::find(made_.begin(), made_.end(), ranks) != made_.end()) continue;
      made_.push_back(ranks);
      return std::make_unique<PlannedGroup>(std::move(ranks), rank());
    }
    refuse("split");
  }

 private:
  Topology topology_;
  std::size_t next_ = 0;
  std::vector<std::vector<int>> made_;
};

}  // namespace

std::unique_ptr<Communicator> make_planned_world(const Topology& topology, int rank) {
  return std::make_unique<PlannedWorld>(topology, rank);
}

}  // namespace zero3d
