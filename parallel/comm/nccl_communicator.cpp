// The collectives through NCCL. A sum is an exchange of pieces, each with the rank that adds it up,
// and the kernel of the other communicators.
#include "zero3d/parallel/comm/nccl_communicator.h"

#include <algorithm>
#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/device/device.h"
#include "zero3d/parallel/comm/forwarding.h"
#include "zero3d/parallel/comm/mover.h"
#include "zero3d/parallel/comm/nccl_group.h"

namespace zero3d {
namespace detail {
namespace {

using GroupPtr = std::shared_ptr<NcclGroup>;

std::int64_t element_bytes(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

/// Between calls of a group; NCCL has taken them all once that ends.
void require(ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress)
    throw Error(ErrorKind::kComm, concat("NCCL: ", ncclGetErrorString(result)));
}
void put(ncclComm_t comm, const std::byte* data, std::int64_t bytes, int peer,
         CudaStreamHandle stream) {
  if (bytes > 0)
    require(ncclSend(data, static_cast<std::size_t>(bytes), ncclInt8, peer, comm, stream));
}
void take(ncclComm_t comm, std::byte* data, std::int64_t bytes, int peer, CudaStreamHandle stream) {
  if (bytes > 0)
    require(ncclRecv(data, static_cast<std::size_t>(bytes), ncclInt8, peer, comm, stream));
}

/// A sum of one tensor, of which every rank adds up a range.
struct Sum {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;  ///< Of this rank's range.
  DType in_dtype = DType::f32;
  DType out_dtype = DType::f32;
  std::vector<Range> ranges;      ///< Elements, by rank.
  std::byte* narrowed = nullptr;  ///< All of it as it travels; null when that is `in`.
  std::byte* arrived = nullptr;   ///< The own range of every rank.
  std::int64_t elements() const { return ranges.back().end; }
};

/// What travels of it is smaller than what is there.
bool narrows(DType in, const ReduceOptions& options) {
  return options.wire.has_value() && size_of(*options.wire) < size_of(in);
}

void sum_ranks(const NcclGroup& group, Mover& mover, const Sum& sum, ReduceOptions options) {
  const Range own = sum.ranges[static_cast<std::size_t>(group.rank())];
  const std::int64_t count = own.end - own.begin;
  if (count <= 0) return;
  const DType dtype = sum.narrowed == nullptr ? sum.in_dtype : *options.wire;
  if (sum.narrowed != nullptr) options.scale_in = 1.0f;
  std::vector<const void*> inputs;
  for (int r = 0; r < group.size(); ++r) {
    const std::byte* whole = sum.narrowed == nullptr ? sum.in : sum.narrowed;
    inputs.push_back(r == group.rank() ? whole + own.begin * element_bytes(dtype)
                                       : sum.arrived + r * count * element_bytes(dtype));
  }
  mover.sum({inputs, dtype, sum.out, sum.out_dtype, count, options.scale_in, options.scale_out,
             options.wire});
}

void sum_all(NcclGroup& group, const std::vector<Sum>& sums, const ReduceOptions& options,
             CudaStreamHandle stream) {
  const std::unique_ptr<Mover> mover = make_cuda_mover(stream);
  for (const Sum& sum : sums) {
    if (sum.narrowed == nullptr) continue;
    const void* in = sum.in;
    mover->sum({{&in, 1},
                sum.in_dtype,
                sum.narrowed,
                *options.wire,
                sum.elements(),
                options.scale_in,
                1.0f,
                options.wire});
  }
  group.issue([&](ncclComm_t comm) {
    for (const Sum& sum : sums) {
      const std::byte* whole = sum.narrowed == nullptr ? sum.in : sum.narrowed;
      const std::int64_t bytes =
          element_bytes(sum.narrowed == nullptr ? sum.in_dtype : *options.wire);
      const Range own = sum.ranges[static_cast<std::size_t>(group.rank())];
      const std::int64_t own_bytes = (own.end - own.begin) * bytes;
      for (int r = 0; r < group.size(); ++r) {
        if (r == group.rank()) continue;
        const Range range = sum.ranges[static_cast<std::size_t>(r)];
        put(comm, whole + range.begin * bytes, (range.end - range.begin) * bytes, r, stream);
        take(comm, sum.arrived + r * own_bytes, own_bytes, r, stream);
      }
    }
  });
  for (const Sum& sum : sums) sum_ranks(group, *mover, sum, options);
}

/// Everybody's range of `data` to everybody.
void spread(NcclGroup& group, std::byte* data, const std::vector<Range>& ranges, std::int64_t bytes,
            CudaStreamHandle stream) {
  group.issue([&](ncclComm_t comm) {
    const Range own = ranges[static_cast<std::size_t>(group.rank())];
    for (int r = 0; r < group.size(); ++r) {
      if (r == group.rank()) continue;
      const Range range = ranges[static_cast<std::size_t>(r)];
      put(comm, data + own.begin * bytes, (own.end - own.begin) * bytes, r, stream);
      take(comm, data + range.begin * bytes, (range.end - range.begin) * bytes, r, stream);
    }
  });
}

/// Pieces to and from every rank, as all_to_all_call has them.
void exchange_parts(NcclGroup& group, std::span<const Part> parts, CudaStreamHandle stream) {
  const std::size_t pieces = parts.size() / 2;
  const auto bytes = [](const Part& part) { return part.piece * element_bytes(part.in_dtype); };
  const auto peer = [&group](std::size_t i) {
    return static_cast<int>(i % static_cast<std::size_t>(group.size()));
  };
  const std::unique_ptr<Mover> mover = make_cuda_mover(stream);
  for (std::size_t i = 0; i < pieces; ++i)
    if (peer(i) == group.rank() && bytes(parts[i]) > 0)
      mover->copy(parts[pieces + i].out, parts[i].in, bytes(parts[i]));
  group.issue([&](ncclComm_t comm) {
    for (std::size_t i = 0; i < pieces; ++i) {
      if (peer(i) == group.rank()) continue;
      put(comm, parts[i].in, bytes(parts[i]), peer(i), stream);
      take(comm, parts[pieces + i].out, bytes(parts[pieces + i]), peer(i), stream);
    }
  });
}

class NcclCommunicator final : public ForwardingCommunicator {
 public:
  NcclCommunicator(std::shared_ptr<Communicator> inner, int device)
      : ForwardingCommunicator(std::move(inner)),
        device_(device),
        group_(std::make_shared<NcclGroup>(inner_, device)) {}

  void all_gather(Stream& stream, std::span<const GatherSegment> segments) override {
    if (stream.kind() != DeviceKind::cuda) return inner_->all_gather(stream, segments);
    Call call = gather_call(segments, rank(), size(), description());
    operate(stream, "all_gather", accesses(segments),
            [parts = std::move(call.parts)](NcclGroup& group, CudaStreamHandle queue) {
              group.issue([&](ncclComm_t comm) {
                for (const Part& part : parts) {
                  const auto bytes =
                      static_cast<std::size_t>(part.piece * element_bytes(part.in_dtype));
                  if (bytes > 0)
                    require(ncclAllGather(part.in, part.out, bytes, ncclInt8, comm, queue));
                }
              });
            });
  }

  void reduce_scatter(Stream& stream, std::span<const ReduceSegment> segments,
                      const ReduceOptions& options) override {
    if (stream.kind() != DeviceKind::cuda) return inner_->reduce_scatter(stream, segments, options);
    const Call call = reduce_call(segments, rank(), size(), options, description());
    std::vector<Sum> sums;
    std::vector<Tensor> scratch;
    for (const Part& part : call.parts) {
      if (part.piece == 0) continue;
      Sum sum{part.in, part.out, part.in_dtype, part.out_dtype, {}};
      for (int r = 0; r < size(); ++r) sum.ranges.push_back({r * part.piece, (r + 1) * part.piece});
      find_room(stream, sum, options, scratch);
      sums.push_back(std::move(sum));
    }
    operate(stream, "reduce_scatter", with_scratch(accesses(segments), scratch),
            [sums = std::move(sums), options](NcclGroup& group, CudaStreamHandle queue) {
              sum_all(group, sums, options, queue);
            });
  }

  void all_reduce(Stream& stream, const View& data, const ReduceOptions& options) override {
    if (stream.kind() != DeviceKind::cuda) return inner_->all_reduce(stream, data, options);
    const Part part = all_reduce_call(data, options, description()).parts[0];
    Sum sum{part.in, part.out, part.in_dtype, part.out_dtype, {}};
    for (int r = 0; r < size(); ++r) sum.ranges.push_back(all_reduce_piece(part.piece, r, size()));
    sum.out += sum.ranges[static_cast<std::size_t>(rank())].begin * element_bytes(part.out_dtype);
    std::vector<Tensor> scratch;
    find_room(stream, sum, options, scratch);
    operate(stream, "all_reduce", with_scratch({reads(data), writes(data)}, scratch),
            [sum, options, out = part.out](NcclGroup& group, CudaStreamHandle queue) {
              sum_all(group, {sum}, options, queue);
              spread(group, out, sum.ranges, element_bytes(sum.out_dtype), queue);
            });
  }

  void broadcast(Stream& stream, const View& data, int root) override {
    if (stream.kind() != DeviceKind::cuda) return inner_->broadcast(stream, data, root);
    const Part part = broadcast_call(data, root, size(), description()).parts[0];
    const auto bytes = static_cast<std::size_t>(part.piece * element_bytes(part.out_dtype));
    operate(stream, "broadcast", {rank() == root ? reads(data) : writes(data)},
            [part, bytes, root](NcclGroup& group, CudaStreamHandle queue) {
              if (bytes == 0) return;
              group.issue([&](ncclComm_t comm) {
                require(ncclBroadcast(part.in, part.out, bytes, ncclInt8, root, comm, queue));
              });
            });
  }

  void all_to_all(Stream& stream, std::span<const ConstView> to,
                  std::span<const View> from) override {
    if (stream.kind() != DeviceKind::cuda) return inner_->all_to_all(stream, to, from);
    Call call = all_to_all_call(to, from, size(), description());
    operate(stream, "all_to_all", accesses(to, from),
            [parts = std::move(call.parts)](NcclGroup& group, CudaStreamHandle queue) {
              exchange_parts(group, parts, queue);
            });
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    return make_nccl(inner_->split(color, key), device_);
  }
  void set_timeout(std::chrono::milliseconds timeout) override {
    inner_->set_timeout(timeout);
    group_->set_timeout(timeout);
  }

 private:
  using Issue = std::function<void(NcclGroup&, CudaStreamHandle)>;

  void operate(Stream& stream, const char* operation, const std::vector<Access>& touched,
               Issue issue) {
    check();
    enqueue_cuda(stream, operation, touched,
                 [group = group_, issue = std::move(issue)](CudaStreamHandle queue) {
                   check_at_points(group->check());
                   issue(*group, queue);
                 });
    // A stream that failed has no part in it: the peers would wait in vain.
    then_handed_on(stream, [inner = inner_](const std::exception_ptr& error) {
      if (error) inner->fail(error);
    });
    Event end;
    stream.record(end);
    group_->expect(operation, end);
  }

  /// Memory for what travels, in the stream's order.
  void find_room(Stream& stream, Sum& sum, const ReduceOptions& options,
                 std::vector<Tensor>& scratch) const {
    const Range own = sum.ranges[static_cast<std::size_t>(rank())];
    const bool narrow = narrows(sum.in_dtype, options);
    const DType dtype = narrow ? *options.wire : sum.in_dtype;
    const auto room = [&](std::int64_t elements) {
      scratch.emplace_back(stream.device().memory(), stream, dtype, Shape{elements},
                           Category::workspace);
      return scratch.back().view().data();
    };
    if (narrow) sum.narrowed = room(sum.elements());
    sum.arrived = room(std::max<std::int64_t>(own.end - own.begin, 0) * size());
  }
  static std::vector<Access> with_scratch(std::vector<Access> accesses,
                                          const std::vector<Tensor>& scratch) {
    for (const Tensor& tensor : scratch) accesses.push_back(writes(tensor));
    return accesses;
  }

  const int device_;
  const GroupPtr group_;
};

/// A group of one in a world of others: needs no NCCL, and ends with its world.
class AloneCommunicator final : public ForwardingCommunicator {
 public:
  AloneCommunicator(std::shared_ptr<Communicator> inner, int device)
      : ForwardingCommunicator(std::move(inner)), device_(device) {}

  void all_gather(Stream& stream, std::span<const GatherSegment> segments) override {
    operate(stream, [&] { self_->all_gather(stream, segments); });
  }
  void reduce_scatter(Stream& stream, std::span<const ReduceSegment> segments,
                      const ReduceOptions& options) override {
    operate(stream, [&] { self_->reduce_scatter(stream, segments, options); });
  }
  void all_reduce(Stream& stream, const View& data, const ReduceOptions& options) override {
    operate(stream, [&] { self_->all_reduce(stream, data, options); });
  }
  void broadcast(Stream& stream, const View& data, int root) override {
    operate(stream, [&] { self_->broadcast(stream, data, root); });
  }
  void all_to_all(Stream& stream, std::span<const ConstView> to,
                  std::span<const View> from) override {
    operate(stream, [&] { self_->all_to_all(stream, to, from); });
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return make_nccl(inner_->split(color, key), device_);
  }

 private:
  template <typename Operation>
  void operate(Stream& stream, Operation operation) {
    check();
    operation();
    const auto tell = [inner = inner_](const std::exception_ptr& error) {
      if (error) inner->fail(error);
    };
    if (stream.kind() == DeviceKind::cuda) {
      then_handed_on(stream, tell);
    } else {
      stream.then(tell);
    }
  }

  const int device_;
  const std::unique_ptr<Communicator> self_ = make_self_communicator();
};

}  // namespace
}  // namespace detail

bool built_with_nccl() { return true; }

std::unique_ptr<Communicator> make_nccl(std::unique_ptr<Communicator> inner, int device) {
  if (inner->size() == 1)
    return std::make_unique<detail::AloneCommunicator>(std::move(inner), device);
  return std::make_unique<detail::NcclCommunicator>(std::move(inner), device);
}

}  // namespace zero3d
