// The part of the communicators' contract that is about order: messages, pipelines, hosts that run
// ahead. Include it beside communicator_contract.h.
#pragma once

#include "zero3d/device/event_state.h"
#include "zero3d/tests/contract/communicator_contract.h"

namespace zero3d::contract {

TEST_P(CommunicatorContract, MessagesArriveInOrderOnARing) {
  if (size() == 1) GTEST_SKIP() << "no peer";
  run([&](Rank& r) {
    const int next = (r.comm.rank() + 1) % size();
    const int before = (r.comm.rank() + size() - 1) % size();
    const std::vector<std::int64_t> sizes{1, 0, 17, 70001, 3};
    std::vector<Data> out, in;
    for (const std::int64_t n : sizes) {
      out.emplace_back(r.device, DType::f32, n).fill([&](std::int64_t i) {
        return value_of(r.comm.rank(), i + n);
      });
      in.emplace_back(r.device, DType::f32, n);
    }
    // All sends first, on one stream: no order of the peers' calls may deadlock.
    for (const Data& data : out) r.comm.send(r.stream, data.view(), next);
    for (const Data& data : in) r.comm.recv(r.stream, data.view(), before);
    r.stream.synchronize();
    for (std::size_t m = 0; m < sizes.size(); ++m)
      for (std::int64_t i = 0; i < sizes[m]; ++i)
        ASSERT_EQ(in[m].bits(i), bits_of(DType::f32, value_of(before, i + sizes[m])));
  });
}

TEST_P(CommunicatorContract, CrossedMessagesOnTwoStreams) {
  if (size() == 1) GTEST_SKIP() << "no peer";
  run([&](Rank& r) {
    const auto other = r.device.create_stream("receive");
    const int next = (r.comm.rank() + 1) % size();
    const int before = (r.comm.rank() + size() - 1) % size();
    Data out(r.device, DType::f32, 20011), in(r.device, DType::f32, 20011);
    for (int round = 0; round < 20; ++round) {
      out.fill([&](std::int64_t i) { return value_of(r.comm.rank(), i + round); });
      r.comm.send(r.stream, out.view(), next);
      r.comm.recv(*other, in.view(), before);
      r.stream.synchronize();
      other->synchronize();
      for (std::int64_t i = 0; i < in.numel(); i += 997)
        ASSERT_EQ(in.bits(i), bits_of(DType::f32, value_of(before, i + round)));
    }
  });
}

/// A pipeline's stages, a rank each, that pass a batch on and its gradient back in the order of
/// 1F1B: in the steady part each neighbour sends before it receives. Returns each rank's arrivals.
struct Pipeline {
  Rank& r;
  Communicator& forward_comm;
  Communicator& backward_comm;
  Stream& forward;
  Stream& backward;
  std::vector<Data> batches, gradients;

  bool first() const { return r.comm.rank() == 0; }
  bool last() const { return r.comm.rank() == r.comm.size() - 1; }
  void pass_on(std::size_t i) {
    if (!first()) forward_comm.recv(forward, batches[i].view(), r.comm.rank() - 1);
    if (!last()) forward_comm.send(forward, batches[i].view(), r.comm.rank() + 1);
  }
  void pass_back(std::size_t i) {
    if (!last()) backward_comm.recv(backward, gradients[i].view(), r.comm.rank() + 1);
    if (!first()) backward_comm.send(backward, gradients[i].view(), r.comm.rank() - 1);
  }
  void run() {
    const std::size_t count = batches.size();
    const auto warm = static_cast<std::size_t>(r.comm.size() - 1 - r.comm.rank());
    for (std::size_t i = 0; i < count + warm; ++i) {
      if (i < count) pass_on(i);
      if (i >= warm) pass_back(i - warm);
    }
    forward.synchronize();
    backward.synchronize();
  }
};

TEST_P(CommunicatorContract, CrossedMessagesOfAPipeline) {
  if (size() == 1) GTEST_SKIP() << "no peer";
  constexpr std::int64_t kNumel = 20011;  // more than what transports send without a receiver
  run([&](Rank& r) {
    const auto other_stream = r.device.create_stream("backward");
    const auto other_comm = r.comm.split(0, r.comm.rank());
    // All on one stream and communicator, then each direction on its own.
    for (const bool apart : {false, true}) {
      Pipeline pipeline{
          r,  r.comm, apart ? *other_comm : r.comm, r.stream, apart ? *other_stream : r.stream,
          {}, {}};
      for (int i = 0; i < 4; ++i) {
        for (auto* list : {&pipeline.batches, &pipeline.gradients}) {
          list->emplace_back(r.device, DType::f32, kNumel);
          const int kind = list == &pipeline.batches ? i : 100 + i;
          list->back().fill(
              [&](std::int64_t e) { return value_of(kind + 1000 * r.comm.rank(), e); });
        }
      }
      pipeline.run();
      for (int i = 0; i < 4; ++i)
        for (std::int64_t e = 0; e < kNumel; e += 997) {
          const auto at = static_cast<std::size_t>(i);
          ASSERT_EQ(pipeline.batches[at].bits(e), bits_of(DType::f32, value_of(i, e)));
          ASSERT_EQ(pipeline.gradients[at].bits(e),
                    bits_of(DType::f32, value_of(100 + i + 1000 * (size() - 1), e)));
        }
    }
  });
}

TEST_P(CommunicatorContract, AHostRunsAheadOfItsStreamAndOfOtherHosts) {
  const int rounds = GetParam().rounds_ahead;
  run([&](Rank& r) {
    const int next = (r.comm.rank() + 1) % size();
    const int before = (r.comm.rank() + size() - 1) % size();
    Data small(r.device, DType::f32, 33), large(r.device, DType::f32, 6007);
    Data whole(r.device, DType::f32, 5 * size()), out(r.device, DType::f32, 7);
    Data arrived(r.device, DType::f32, 5 * size());
    for (Data* data : {&small, &large, &whole, &out})
      data->fill([](std::int64_t i) { return static_cast<float>(i); });
    Event gate;
    EventState& closed = gate.begin_record();
    r.stream.wait(gate);
    // Each rank enqueues everything before the next one begins to.
    for (int turn = 0; turn < size(); ++turn) {
      r.comm.exchange("next");
      if (turn != r.comm.rank()) continue;
      const float mean = 1.0f / static_cast<float>(size());
      const GatherSegment own{whole.flat(5 * r.comm.rank(), 5), whole.view()};
      std::vector<ConstView> to;
      std::vector<View> from;
      for (int peer = 0; peer < size(); ++peer) {
        to.push_back(whole.flat(5 * peer, 5));
        from.push_back(arrived.flat(5 * peer, 5));
      }
      for (int i = 0; i < rounds; ++i) {
        r.comm.all_reduce(r.stream, small.view(), {1.0f, mean, {}});
        r.comm.all_reduce(r.stream, large.view(), {1.0f, mean, {}});
        r.comm.all_gather(r.stream, {&own, 1});
        r.comm.broadcast(r.stream, whole.view(), i % size());
        r.comm.all_to_all(r.stream, to, from);
        r.comm.barrier(r.stream);
        if (size() > 1) r.comm.send(r.stream, out.view(), next);
      }
      for (int i = 0; size() > 1 && i < rounds; ++i) r.comm.recv(r.stream, out.view(), before);
    }
    r.comm.exchange("all have enqueued");
    closed.complete();
    r.stream.synchronize();
    for (const Data* data : {&small, &large, &whole, &out})
      for (std::int64_t i = 0; i < data->numel(); ++i)
        ASSERT_EQ(data->bits(i), bits_of(DType::f32, static_cast<float>(i))) << data->numel();
    for (std::int64_t i = 0; i < arrived.numel(); ++i)
      ASSERT_EQ(arrived.bits(i),
                bits_of(DType::f32, static_cast<float>(5 * r.comm.rank() + i % 5)));
  });
}

TEST_P(CommunicatorContract, ExchangesStringsBesideAStreamInFlight) {
  run([&](Rank& r) {
    Data data(r.device, DType::f32, 3001);
    data.fill([&](std::int64_t i) { return value_of(r.comm.rank(), i); });
    for (int round = 0; round < 30; ++round) {
      r.comm.barrier(r.stream);
      const std::string own(static_cast<std::size_t>(r.comm.rank() * 1000 + round), 'x');
      const auto all = r.comm.exchange(own);
      for (int from = 0; from < size(); ++from)
        ASSERT_EQ(all[static_cast<std::size_t>(from)].size(),
                  static_cast<std::size_t>(from * 1000 + round));
    }
    r.comm.all_reduce(r.stream, data.view(), {});
    r.stream.synchronize();
    EXPECT_EQ(data.bits(3000), reduced_bits(size(), 3000, DType::f32, DType::f32, {}));
  });
}

}  // namespace zero3d::contract
