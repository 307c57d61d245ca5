#include "zero3d/parallel/comm/mpi_group.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/parallel/comm/reduce_sum.h"

namespace zero3d::detail {
namespace {

constexpr std::int64_t kChunk = 1 << 18;           // elements of a piece per message
constexpr std::size_t kBatchBytes = 4u << 20;      // received before they are summed
constexpr std::size_t kAlignment = 64;             // of what arrives, whatever came before
constexpr std::int64_t kSmallAllReduce = 1 << 14;  // bytes; exchanged whole by every rank

std::size_t byte_count(std::int64_t numel, DType dtype) {
  return static_cast<std::size_t>(numel) * size_of(dtype);
}

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

/// Part `chunk` of a piece, in elements of the buffer the piece lies in.
Range chunk_of(const Range& piece, std::int64_t chunk) {
  const std::int64_t begin = std::min(piece.end, piece.begin + chunk * kChunk);
  return {begin, std::min(piece.end, begin + kChunk)};
}

/// What opens a message: what the receiver must expect.
struct Header {
  std::int64_t numel = 0;
  std::int64_t dtype = 0;
};

}  // namespace

std::shared_ptr<MpiGroup> MpiGroup::of_world(std::shared_ptr<MpiWorld> world) {
  std::vector<int> members(index(world->size()));
  for (int i = 0; i < world->size(); ++i) members[index(i)] = i;
  const int rank = world->rank();
  const int id = world->next_group();
  world->saw_group(id);
  return std::make_shared<MpiGroup>(std::move(world), std::move(members), rank, id);
}

MpiGroup::MpiGroup(std::shared_ptr<MpiWorld> world, std::vector<int> members, int rank, int id)
    : world_(std::move(world)),
      members_(std::move(members)),
      rank_(rank),
      id_(id),
      description_(describe_ranks(members_)) {
  int* limit = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&limit), &found);
  const int highest = found ? *limit : 32767;
  if (id_ > highest / 4 - 1)
    throw_invalid(concat("group number ", id_, " needs tags above this MPI's limit of ", highest,
                         "; make fewer groups and keep them"));
}

std::string MpiGroup::named(const char* operation) const {
  return concat(operation, " on ", description_);
}

void MpiGroup::all_gather(std::span<const Part> parts) {
  const std::string operation = named("all_gather");
  world_->check();
  MpiBatch batch(*world_);
  for (const Part& part : parts) {
    const std::size_t bytes = byte_count(part.piece, part.in_dtype);
    if (bytes == 0) continue;
    for (int r = 0; r < size(); ++r)
      if (r != rank_)
        batch.receive(part.out + index(r) * bytes, bytes, world_rank(r),
                      tag(MpiChannel::collective));
  }
  for (const Part& part : parts) {
    const std::size_t bytes = byte_count(part.piece, part.in_dtype);
    if (bytes == 0) continue;
    for (int r = 0; r < size(); ++r)
      if (r != rank_) batch.send(part.in, bytes, world_rank(r), tag(MpiChannel::collective));
    std::byte* own = part.out + index(rank_) * bytes;
    if (own != part.in) std::memcpy(own, part.in, bytes);
  }
  batch.wait(operation);
}

void MpiGroup::reduce_scatter(std::span<const Part> parts, const ReduceOptions& options) {
  std::vector<Slice> slices;
  for (const Part& part : parts) {
    Slice slice{part.in, {}, part.out, part.in_dtype, part.out_dtype};
    for (std::int64_t r = 0; r < size(); ++r)
      slice.pieces.push_back({r * part.piece, (r + 1) * part.piece});
    slices.push_back(std::move(slice));
  }
  reduce(slices, options, named("reduce_scatter"));
}

/// Some chunks whose messages are under way.
struct MpiGroup::Flight {
  struct Item {
    const Slice* slice = nullptr;
    std::int64_t chunk = 0;
    std::size_t scratch = 0;  ///< Where the pieces of the peers arrive, one after the other.
  };
  explicit Flight(MpiWorld& world) : batch(world) {}
  std::vector<Item> items;
  std::vector<std::byte> scratch;
  MpiBatch batch;
};

void MpiGroup::post(Flight& flight) {
  const int channel = tag(MpiChannel::collective);
  for (const Flight::Item& item : flight.items) {
    const Slice& slice = *item.slice;
    const std::size_t element = size_of(slice.in_dtype);
    const Range own = chunk_of(slice.pieces[index(rank_)], item.chunk);
    const std::size_t own_bytes = index(static_cast<int>(own.end - own.begin)) * element;
    std::byte* arrival = flight.scratch.data() + item.scratch;
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      if (own_bytes > 0) flight.batch.receive(arrival, own_bytes, world_rank(r), channel);
      arrival += own_bytes;
      const Range theirs = chunk_of(slice.pieces[index(r)], item.chunk);
      if (theirs.begin < theirs.end)
        flight.batch.send(slice.full + byte_count(theirs.begin, slice.in_dtype),
                          byte_count(theirs.end - theirs.begin, slice.in_dtype), world_rank(r),
                          channel);
    }
  }
}

void MpiGroup::sum(Flight& flight, const ReduceOptions& options, const std::string& operation) {
  flight.batch.wait(operation);
  std::vector<const void*> inputs(members_.size());
  for (const Flight::Item& item : flight.items) {
    const Slice& slice = *item.slice;
    const Range piece = slice.pieces[index(rank_)];
    const Range own = chunk_of(piece, item.chunk);
    const std::size_t own_bytes = byte_count(own.end - own.begin, slice.in_dtype);
    const std::byte* arrival = flight.scratch.data() + item.scratch;
    for (int r = 0; r < size(); ++r) {
      inputs[index(r)] = r == rank_ ? slice.full + byte_count(own.begin, slice.in_dtype) : arrival;
      if (r != rank_) arrival += own_bytes;
    }
    reduce_sum(inputs, slice.in_dtype,
               slice.out + byte_count(own.begin - piece.begin, slice.out_dtype), slice.out_dtype,
               own.end - own.begin, options);
  }
  flight.items.clear();
}

void MpiGroup::reduce(const std::vector<Slice>& slices, const ReduceOptions& options,
                      const std::string& operation) {
  world_->check();
  // While one flight is summed the next one is under way. A rank's own piece may be overwritten by
  // its sum at once: only other pieces are sent.
  std::array<std::unique_ptr<Flight>, 2> flights{std::make_unique<Flight>(*world_),
                                                 std::make_unique<Flight>(*world_)};
  std::size_t current = 0;
  std::size_t bytes = 0;
  const auto fly = [&] {
    Flight& flight = *flights[current];
    flight.scratch.resize(std::max(flight.scratch.size(), bytes));
    post(flight);
    current = 1 - current;
    sum(*flights[current], options, operation);
    bytes = 0;
  };
  for (const Slice& slice : slices) {
    std::int64_t longest = 0;
    for (const Range& piece : slice.pieces) longest = std::max(longest, piece.end - piece.begin);
    for (std::int64_t chunk = 0; chunk * kChunk < longest; ++chunk) {
      flights[current]->items.push_back({&slice, chunk, bytes});
      const std::size_t arriving =
          byte_count(std::min(kChunk, longest), slice.in_dtype) * (members_.size() - 1);
      bytes += (arriving + kAlignment - 1) / kAlignment * kAlignment;
      if (bytes >= kBatchBytes) fly();
    }
  }
  fly();
  fly();
}

void MpiGroup::all_reduce(const Part& part, const ReduceOptions& options) {
  const std::string operation = named("all_reduce");
  world_->check();
  const std::size_t bytes = byte_count(part.piece, part.in_dtype);
  if (bytes <= static_cast<std::size_t>(kSmallAllReduce)) {
    std::vector<std::byte> all(bytes * members_.size());
    const Part gathered{part.in, all.data(), part.piece, part.in_dtype, part.in_dtype};
    all_gather({&gathered, 1});
    std::vector<const void*> inputs;
    for (int r = 0; r < size(); ++r) inputs.push_back(all.data() + index(r) * bytes);
    return reduce_sum(inputs, part.in_dtype, part.out, part.out_dtype, part.piece, options);
  }
  Slice slice{part.in, {}, nullptr, part.in_dtype, part.out_dtype};
  for (int r = 0; r < size(); ++r) slice.pieces.push_back(all_reduce_piece(part.piece, r, size()));
  const auto at = [&](const Range& range) { return byte_count(range.begin, part.in_dtype); };
  const auto length = [&](const Range& range) {
    return byte_count(range.end - range.begin, part.in_dtype);
  };
  const Range own = slice.pieces[index(rank_)];
  slice.out = part.out + at(own);
  reduce({slice}, options, operation);
  MpiBatch batch(*world_);
  for (int r = 0; r < size(); ++r) {
    const Range& theirs = slice.pieces[index(r)];
    if (r == rank_) continue;
    if (length(theirs) > 0)
      batch.receive(part.out + at(theirs), length(theirs), world_rank(r),
                    tag(MpiChannel::collective));
    if (length(own) > 0)
      batch.send(part.out + at(own), length(own), world_rank(r), tag(MpiChannel::collective));
  }
  batch.wait(operation);
}

void MpiGroup::broadcast(const View& data, int root) {
  const std::string operation = named("broadcast");
  world_->check();
  if (data.bytes() == 0) return barrier();
  MpiBatch batch(*world_);
  if (rank_ != root) {
    batch.receive(data.data(), data.bytes(), world_rank(root), tag(MpiChannel::collective));
  } else {
    for (int r = 0; r < size(); ++r)
      if (r != rank_)
        batch.send(data.data(), data.bytes(), world_rank(r), tag(MpiChannel::collective));
  }
  batch.wait(operation);
}

void MpiGroup::all_to_all(std::span<const Part> parts) {
  const std::string operation = named("all_to_all");
  world_->check();
  MpiBatch batch(*world_);
  const std::size_t pieces = parts.size() / 2;
  const std::span<const Part> sent = parts.first(pieces), arriving = parts.last(pieces);
  const auto peer = [&](std::size_t i) { return static_cast<int>(i % members_.size()); };
  for (std::size_t i = 0; i < pieces; ++i) {
    const std::size_t bytes = byte_count(arriving[i].piece, arriving[i].in_dtype);
    if (bytes > 0 && peer(i) != rank_)
      batch.receive(arriving[i].out, bytes, world_rank(peer(i)), tag(MpiChannel::collective));
  }
  for (std::size_t i = 0; i < pieces; ++i) {
    const std::size_t bytes = byte_count(sent[i].piece, sent[i].in_dtype);
    if (bytes == 0) continue;
    if (peer(i) == rank_) {
      std::memcpy(arriving[i].out, sent[i].in, bytes);
    } else {
      batch.send(sent[i].in, bytes, world_rank(peer(i)), tag(MpiChannel::collective));
    }
  }
  batch.wait(operation);
}

void MpiGroup::barrier() {
  world_->check();
  MpiBatch batch(*world_);
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    batch.receive(nullptr, 0, world_rank(r), tag(MpiChannel::collective));
    batch.send(nullptr, 0, world_rank(r), tag(MpiChannel::collective));
  }
  batch.wait(named("barrier"));
}

void MpiGroup::send(const ConstView& data, int peer) {
  const Header header{elements_of(data), static_cast<std::int64_t>(data.dtype())};
  std::vector<std::byte> head(sizeof header);
  std::memcpy(head.data(), &header, sizeof header);
  std::vector<std::byte> body(data.data(), data.data() + data.bytes());
  world_->send_buffered(std::move(head), std::move(body), world_rank(peer),
                        tag(MpiChannel::message));
}

void MpiGroup::recv(const View& data, int peer) {
  const std::string operation = concat("recv from rank ", world_rank(peer));
  world_->check();
  Header header;
  {
    MpiBatch batch(*world_);
    batch.receive(&header, sizeof header, world_rank(peer), tag(MpiChannel::message));
    batch.wait(operation);
  }
  const Part sent{nullptr, nullptr, header.numel, static_cast<DType>(header.dtype), DType::f32};
  const Part expected{nullptr, data.data(), elements_of(data), data.dtype(), DType::f32};
  const std::string wrong = mismatch(world_rank(peer), sent, world_rank(rank_), expected);
  if (!wrong.empty()) world_->fail("recv", concat("recv: ", wrong));
  if (data.bytes() == 0) return;
  MpiBatch batch(*world_);
  batch.receive(data.data(), data.bytes(), world_rank(peer), tag(MpiChannel::message));
  batch.wait(operation);
}

std::vector<std::string> MpiGroup::exchange(const std::string& value, MpiChannel channel,
                                            const char* name) {
  const std::string operation = named(name);
  world_->check();
  std::vector<std::int64_t> sizes(members_.size());
  const auto own = static_cast<std::int64_t>(value.size());
  {
    MpiBatch batch(*world_);
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      batch.receive(&sizes[index(r)], sizeof own, world_rank(r), tag(channel));
      batch.send(&own, sizeof own, world_rank(r), tag(channel));
    }
    batch.wait(operation);
  }
  std::vector<std::string> all(members_.size());
  MpiBatch batch(*world_);
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    all[index(r)].resize(static_cast<std::size_t>(sizes[index(r)]));
    if (!all[index(r)].empty())
      batch.receive(all[index(r)].data(), all[index(r)].size(), world_rank(r), tag(channel));
    if (!value.empty()) batch.send(value.data(), value.size(), world_rank(r), tag(channel));
  }
  all[index(rank_)] = value;
  batch.wait(operation);
  return all;
}

void MpiGroup::compare(const std::string& line, MpiChannel channel) {
  const std::string wrong = mismatch(exchange(line, channel, line.c_str()));
  if (!wrong.empty()) world_->fail("comparison", concat(description_, ": ", wrong));
}

void MpiGroup::compare_pairs(const std::string& value) {
  const std::string wrong = pair_mismatch(exchange(value, MpiChannel::task, "all_to_all"));
  if (!wrong.empty()) world_->fail("comparison", concat(description_, ": ", wrong));
}

std::shared_ptr<MpiGroup> MpiGroup::split(int color, int key) {
  // Beside its wish each rank says which group numbers it has not seen; the highest is new to all.
  const std::vector<std::string> all = exchange(
      concat(split_value(color, key), " ", world_->next_group()), MpiChannel::host, "split");
  int id = 0;
  for (const std::string& value : all)
    id = std::max(id, std::stoi(value.substr(value.rfind(' ') + 1)));
  world_->saw_group(id);
  SplitResult result = split_members(all, rank_);
  for (int& member : result.members) member = world_rank(member);
  return std::make_shared<MpiGroup>(world_, std::move(result.members), result.rank, id);
}

}  // namespace zero3d::detail
