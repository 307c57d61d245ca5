// What every communicator promises, as one suite. A subject runs a body once per rank of a fresh
// world, on a device and stream of that rank; subjects whose ranks are processes run it once in
// each. Whoever instantiates it includes communicator_order.h and communicator_failure.h too.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "zero3d/core/text.h"
#include "zero3d/device/device.h"
#include "zero3d/parallel/comm/communicator.h"
#include "zero3d/tests/contract/communicator_data.h"

namespace zero3d::contract {

/// One rank's view of the world under test.
struct Rank {
  Communicator& comm;
  Device& device;
  Stream& stream;
};
using Body = std::function<void(Rank&)>;

inline std::unique_ptr<Device> make_rank_device(int rank) {
  CpuDeviceOptions options;
  options.rank = rank;
  return make_cpu_device(options);
}

struct CommSubject {
  std::string name;
  int size = 1;
  bool compares_ranks = false;  ///< Finds operations that differ between ranks.
  std::function<void(const std::function<void(Communicator&)>&)> run_world;
  int rounds_ahead = 200;  ///< Of operations that a host enqueues before any of them may run.
  std::function<std::unique_ptr<Device>(int rank)> make_device = make_rank_device;
};
inline void PrintTo(const CommSubject& subject, std::ostream* out) { *out << subject.name; }

class CommunicatorContract : public testing::TestWithParam<CommSubject> {
 protected:
  int size() const { return GetParam().size; }
  /// Runs `body` on every rank and waits for its stream.
  void run(const Body& body) const {
    GetParam().run_world([&](Communicator& comm) {
      const auto device = GetParam().make_device(comm.rank());
      const auto stream = device->create_stream("comm");
      Rank rank{comm, *device, *stream};
      body(rank);
      stream->synchronize();
    });
  }
};

TEST_P(CommunicatorContract, NamesRanksInOrder) {
  run([&](Rank& r) {
    EXPECT_EQ(r.comm.size(), size());
    const auto ranks = r.comm.exchange(std::to_string(r.comm.rank()));
    ASSERT_EQ(ranks.size(), static_cast<std::size_t>(size()));
    for (int i = 0; i < size(); ++i)
      EXPECT_EQ(ranks[static_cast<std::size_t>(i)], std::to_string(i));
    EXPECT_FALSE(r.comm.description().empty());
  });
}

TEST_P(CommunicatorContract, ReduceScatterSumsInRankOrderAndRoundsOnce) {
  run([&](Rank& r) {
    for (const DType in : float_dtypes())
      for (const DType out : float_dtypes())
        for (const std::int64_t piece : {0, 1, 7, 67, 1031})
          for (const ReduceOptions& options : reduce_cases()) {
            Data full(r.device, in, piece * size());
            Data shard(r.device, out, piece);
            full.fill([&](std::int64_t i) { return value_of(r.comm.rank(), i); });
            const ReduceSegment segment{full.view(), shard.view()};
            r.comm.reduce_scatter(r.stream, {&segment, 1}, options);
            r.stream.synchronize();
            const auto found = shard.all_bits();
            for (std::int64_t i = 0; i < piece; ++i)
              ASSERT_EQ(found[static_cast<std::size_t>(i)],
                        reduced_bits(size(), r.comm.rank() * piece + i, in, out, options))
                  << name_of(in) << " to " << name_of(out) << ", element " << i << " of " << piece
                  << ", " << show(options);
          }
  });
}

TEST_P(CommunicatorContract, AllReduceGivesEveryRankTheSameBits) {
  run([&](Rank& r) {
    for (const DType dtype : float_dtypes())
      for (const std::int64_t numel : {0, 1, 13, 257, 4096, 4097, 8193, 10007})
        for (const ReduceOptions& options :
             {ReduceOptions{}, ReduceOptions{0.5f, 3.0f, DType::bf16}}) {
          Data data(r.device, dtype, numel);
          data.fill([&](std::int64_t i) { return value_of(r.comm.rank(), i); });
          r.comm.all_reduce(r.stream, data.view(), options);
          r.stream.synchronize();
          const auto found = data.all_bits();
          for (std::int64_t i = 0; i < numel; ++i)
            ASSERT_EQ(found[static_cast<std::size_t>(i)],
                      reduced_bits(size(), i, dtype, dtype, options))
                << name_of(dtype) << ", element " << i << " of " << numel;
        }
  });
}

TEST_P(CommunicatorContract, InfinityAndNanSurviveASum) {
  run([&](Rank& r) {
    const float inf = std::numeric_limits<float>::infinity();
    for (const DType dtype : float_dtypes()) {
      Data data(r.device, dtype, 70);
      const bool last = r.comm.rank() == size() - 1;
      data.fill([&](std::int64_t i) {
        if (i % 3 == 0) return last ? inf : 1.0f;
        if (i % 3 == 1) return r.comm.rank() == 0 ? std::nanf("") : 1.0f;
        return -0.0f;
      });
      r.comm.all_reduce(r.stream, data.view(), {});
      r.stream.synchronize();
      for (std::int64_t i = 0; i < 70; ++i) {
        const std::uint32_t found = data.bits(i);
        EXPECT_EQ(is_nan_bits(dtype, found), i % 3 == 1);
        if (i % 3 != 1) {
          EXPECT_EQ(found, bits_of(dtype, i % 3 == 0 ? inf : -0.0f));
        }
      }
    }
  });
}

TEST_P(CommunicatorContract, AllGatherPlacesPiecesInRankOrder) {
  run([&](Rank& r) {
    for (const DType dtype : float_dtypes())
      for (const std::int64_t piece : {0, 1, 5, 1009, 40009}) {
        Data shard(r.device, dtype, piece);
        Data full(r.device, dtype, piece * size());
        shard.fill([&](std::int64_t i) { return value_of(r.comm.rank(), i); });
        const GatherSegment segment{shard.view(), full.view()};
        r.comm.all_gather(r.stream, {&segment, 1});
        r.stream.synchronize();
        const auto found = full.all_bits();
        for (int from = 0; from < size(); ++from)
          for (std::int64_t i = 0; i < piece; ++i)
            ASSERT_EQ(found[static_cast<std::size_t>(from * piece + i)],
                      bits_of(dtype, value_of(from, i)));
      }
  });
}

TEST_P(CommunicatorContract, WorksInPlace) {
  run([&](Rank& r) {
    const std::int64_t piece = 1033;
    Data full(r.device, DType::f32, piece * size());
    full.fill([&](std::int64_t i) { return value_of(r.comm.rank(), i); });
    const View own = full.flat(r.comm.rank() * piece, piece);
    const ReduceSegment reduce{full.view(), own};
    const GatherSegment gather{own, full.view()};
    r.comm.reduce_scatter(r.stream, {&reduce, 1}, {});
    r.comm.all_gather(r.stream, {&gather, 1});
    r.stream.synchronize();
    const auto found = full.all_bits();
    for (std::int64_t i = 0; i < full.numel(); ++i)
      ASSERT_EQ(found[static_cast<std::size_t>(i)],
                reduced_bits(size(), i, DType::f32, DType::f32, {}));
  });
}

TEST_P(CommunicatorContract, TakesManySegmentsInOneOperation) {
  run([&](Rank& r) {
    std::vector<Data> fulls, shards, wholes;
    std::vector<ReduceSegment> reduce;
    std::vector<GatherSegment> gather;
    for (std::int64_t s = 0; s < 101; ++s) {
      const std::int64_t piece = s % 7 == 0 ? 0 : s * 3 % 37;
      const DType dtype = float_dtypes()[static_cast<std::size_t>(s % 3)];
      fulls.emplace_back(r.device, dtype, piece * size());
      shards.emplace_back(r.device, DType::f32, piece);
      wholes.emplace_back(r.device, DType::f32, piece * size());
      fulls.back().fill([&](std::int64_t i) { return value_of(r.comm.rank(), i + s); });
      reduce.push_back({fulls.back().view(), shards.back().view()});
      gather.push_back({shards.back().view(), wholes.back().view()});
    }
    r.comm.reduce_scatter(r.stream, reduce, {});
    r.comm.all_gather(r.stream, gather);
    r.comm.all_gather(r.stream, std::span<const GatherSegment>());
    r.stream.synchronize();
    for (std::int64_t s = 0; s < 101; ++s) {
      const Data& whole = wholes[static_cast<std::size_t>(s)];
      const DType dtype = fulls[static_cast<std::size_t>(s)].view().dtype();
      for (std::int64_t i = 0; i < whole.numel(); ++i)
        ASSERT_EQ(whole.bits(i), reduced_bits(size(), i + s, dtype, DType::f32, {}));
    }
  });
}

TEST_P(CommunicatorContract, BroadcastsFromAnyRoot) {
  run([&](Rank& r) {
    for (int root = 0; root < size(); ++root)
      for (const std::int64_t numel : {0, 1, 4099}) {
        Data data(r.device, DType::f32, numel);
        data.fill([&](std::int64_t i) { return value_of(r.comm.rank(), i); });
        r.comm.broadcast(r.stream, data.view(), root);
        r.stream.synchronize();
        for (std::int64_t i = 0; i < numel; ++i)
          ASSERT_EQ(data.bits(i), bits_of(DType::f32, value_of(root, i)));
      }
  });
}

/// Elements of the piece from rank to rank in a set: uneven, and some without any.
inline std::int64_t piece_of(int from, int to, int set) {
  return (from * 5 + to * 3 + set) % 7 == 0 ? 0 : 1 + from * 1009 + to * 31 + set;
}
inline float piece_value(int from, int to, int set, std::int64_t i) {
  return value_of(from + 100 * to + 10'000 * set, i);
}

TEST_P(CommunicatorContract, AllToAllBringsEachPieceToItsRank) {
  constexpr int kSets = 3;
  run([&](Rank& r) {
    for (const DType dtype : float_dtypes()) {
      std::vector<Data> sent, arrived;
      for (int set = 0; set < kSets; ++set)
        for (int peer = 0; peer < size(); ++peer) {
          sent.emplace_back(r.device, dtype, piece_of(r.comm.rank(), peer, set));
          sent.back().fill(
              [&](std::int64_t i) { return piece_value(r.comm.rank(), peer, set, i); });
          arrived.emplace_back(r.device, dtype, piece_of(peer, r.comm.rank(), set));
        }
      std::vector<ConstView> to;
      std::vector<View> from;
      for (const Data& data : sent) to.push_back(data.view());
      for (const Data& data : arrived) from.push_back(data.view());
      r.comm.all_to_all(r.stream, to, from);
      r.comm.all_to_all(r.stream, {}, {});
      // What was sent may be written again at once.
      for (const Data& data : sent)
        if (data.numel() > 0) r.device.fill_zero(r.stream, data.view());
      r.stream.synchronize();
      for (int set = 0; set < kSets; ++set)
        for (int peer = 0; peer < size(); ++peer) {
          const Data& data = arrived[static_cast<std::size_t>(set * size() + peer)];
          for (std::int64_t i = 0; i < data.numel(); ++i)
            ASSERT_EQ(data.bits(i), bits_of(dtype, piece_value(peer, r.comm.rank(), set, i)))
                << "from rank " << peer << " in set " << set << ", element " << i;
        }
    }
  });
}

TEST_P(CommunicatorContract, SplitsByColorAndKey) {
  run([&](Rank& r) {
    // Even and odd ranks, in reversed order; then each of them alone; and everyone again.
    const auto half = r.comm.split(r.comm.rank() % 2, -r.comm.rank());
    const int members = (size() + 1 - r.comm.rank() % 2) / 2;
    ASSERT_EQ(half->size(), members);
    EXPECT_EQ(half->rank(), members - 1 - r.comm.rank() / 2);
    Data sum(r.device, DType::f32, 1);
    sum.set(0, static_cast<float>(1 << r.comm.rank()));
    half->all_reduce(r.stream, sum.view(), {});
    r.stream.synchronize();
    float expected = 0;
    for (int i = r.comm.rank() % 2; i < size(); i += 2) expected += static_cast<float>(1 << i);
    EXPECT_EQ(sum.bits(0), bits_of(DType::f32, expected));

    const auto alone = half->split(half->rank(), 0);
    EXPECT_EQ(alone->size(), 1);
    const auto everyone = r.comm.split(7, 0);
    EXPECT_EQ(everyone->size(), size());
    EXPECT_EQ(everyone->rank(), r.comm.rank());
    EXPECT_EQ(everyone->exchange("x").size(), static_cast<std::size_t>(size()));
  });
}

TEST_P(CommunicatorContract, RefusesWrongArgumentsAtTheCall) {
  run([&](Rank& r) {
    const auto refused = [&](const std::function<void()>& call) {
      try {
        call();
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInvalid) << error.what();
      }
    };
    Data shard(r.device, DType::f32, 4), full(r.device, DType::f32, 4 * size() + 1);
    Data halves(r.device, DType::bf16, 4 * size()), whole(r.device, DType::f32, 4 * size());
    Tensor counts(r.device.memory(), kNoStream, DType::i32, Shape{3}, Category::other);
    const GatherSegment wrong_size{shard.view(), full.view()};
    const GatherSegment wrong_dtype{shard.view(), halves.view()};
    const GatherSegment overlap{full.flat(1, 4), full.flat(0, 4 * size())};
    const ReduceSegment short_full{shard.view().flat(0, 1), whole.view()};
    refused([&] { r.comm.all_gather(r.stream, {&wrong_size, 1}); });
    refused([&] { r.comm.all_gather(r.stream, {&wrong_dtype, 1}); });
    refused([&] { r.comm.all_gather(r.stream, {&overlap, 1}); });
    refused([&] { r.comm.reduce_scatter(r.stream, {&short_full, 1}, {}); });
    refused([&] { r.comm.all_reduce(r.stream, counts, {}); });
    refused([&] { r.comm.all_reduce(r.stream, whole.view(), {1, 1, DType::i32}); });
    refused([&] { r.comm.broadcast(r.stream, shard.view(), size()); });
    const std::vector<ConstView> pieces(static_cast<std::size_t>(size()), shard.view().flat(0, 2));
    std::vector<View> places;
    for (int i = 0; i < size(); ++i) places.push_back(whole.flat(4 * i, 2));
    refused([&] { r.comm.all_to_all(r.stream, pieces, std::span(places).first(0)); });
    refused([&] {
      r.comm.all_to_all(r.stream, std::vector(pieces.size() + 1, pieces[0]),
                        std::vector(pieces.size() + 1, places[0]));
    });
    places.back() = shard.flat(1, 2);
    refused([&] { r.comm.all_to_all(r.stream, pieces, places); });
    refused([&] { r.comm.send(r.stream, shard.view(), r.comm.rank()); });
    refused([&] { r.comm.recv(r.stream, shard.view(), -1); });
  });
}

}  // namespace zero3d::contract
