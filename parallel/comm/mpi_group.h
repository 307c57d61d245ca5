// The collectives of one group of MPI processes, blocking; called from stream tasks, and the host
// exchanges from the host. Internal to the MPI communicator.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zero3d/parallel/comm/call.h"
#include "zero3d/parallel/comm/mpi_world.h"

namespace zero3d::detail {

/// Messages of different purposes never meet: each has tags, and so an order, of its own.
enum class MpiChannel { collective, host, message, task };

class MpiGroup {
 public:
  static std::shared_ptr<MpiGroup> of_world(std::shared_ptr<MpiWorld> world);
  /// `members` are world ranks; `id` is unique among the groups that any two members share.
  MpiGroup(std::shared_ptr<MpiWorld> world, std::vector<int> members, int rank, int id);

  MpiWorld& world() const { return *world_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  int world_rank(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  const std::string& description() const { return description_; }

  void all_gather(std::span<const Part> parts);
  void reduce_scatter(std::span<const Part> parts, const ReduceOptions& options);
  void all_reduce(const Part& part, const ReduceOptions& options);
  void broadcast(const View& data, int root);
  /// Parts as of Call::of_pairs.
  void all_to_all(std::span<const Part> parts);
  void barrier();
  void send(const ConstView& data, int peer);
  void recv(const View& data, int peer);
  std::vector<std::string> exchange(const std::string& value, MpiChannel channel,
                                    const char* operation);
  /// Throws unless `line` is the same on every rank.
  void compare(const std::string& line, MpiChannel channel);
  /// Throws unless the pieces of an all_to_all, as Call::value, fit.
  void compare_pairs(const std::string& value);
  std::shared_ptr<MpiGroup> split(int color, int key);

 private:
  /// A buffer of which each rank sums one piece.
  struct Slice {
    const std::byte* full = nullptr;
    std::vector<Range> pieces;  ///< Of each rank, in elements of full.
    std::byte* out = nullptr;   ///< Where this rank's sum goes.
    DType in_dtype = DType::f32;
    DType out_dtype = DType::f32;
  };
  struct Flight;
  void post(Flight& flight);
  void sum(Flight& flight, const ReduceOptions& options, const std::string& operation);
  void reduce(const std::vector<Slice>& slices, const ReduceOptions& options,
              const std::string& operation);
  int tag(MpiChannel channel) const { return id_ * 4 + static_cast<int>(channel); }
  std::string named(const char* operation) const;

  const std::shared_ptr<MpiWorld> world_;
  const std::vector<int> members_;
  const int rank_;
  const int id_;
  const std::string description_;
};

}  // namespace zero3d::detail
