// The part of the communicators' contract that is about failures. Include it beside
// communicator_contract.h.
#pragma once

#include <limits>
#include <stdexcept>
#include <thread>

#include "zero3d/core/trace.h"
#include "zero3d/tests/contract/communicator_contract.h"
#include "zero3d/tests/support/log_capture.h"

namespace zero3d::contract {

inline std::exception_ptr disk_on_fire() {
  return std::make_exception_ptr(std::runtime_error(concat("disk on fire at ", now_ns())));
}

/// Nanoseconds since the "disk on fire at <steady time>" that a failure's message carries; the
/// clock is one for all processes of a machine.
inline std::int64_t age_of_failure(const std::string& message) {
  static const std::string kMark = "disk on fire at ";
  const std::size_t at = message.find(kMark);
  return at == std::string::npos ? std::numeric_limits<std::int64_t>::max()
                                 : now_ns() - std::stoll(message.substr(at + kMark.size()));
}

/// What `call` throws, which must be the failure of rank `failing`: as it was on that rank, as
/// CommAborted elsewhere.
inline std::string failure_of(Rank& r, int failing, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "an operation of a failed world succeeded";
  } catch (const CommAborted& error) {
    EXPECT_NE(r.comm.rank(), failing) << error.what();
    EXPECT_EQ(error.rank(), failing) << error.what();
    const std::string text = error.what(), head = concat("rank ", failing, " failed: ");
    EXPECT_EQ(text.substr(0, head.size()), head);
    return text.substr(std::min(text.size(), head.size()));
  } catch (const std::exception& error) {
    EXPECT_EQ(r.comm.rank(), failing) << error.what();
    return error.what();
  }
  return {};
}

/// As run(), for bodies after which the world has failed.
inline void run_to_failure(const std::function<void(const Body&)>& run, const Body& body) {
  try {
    run(body);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::exception&) {
  }
}

/// Runs `wait` on all ranks but the last, which fails; everyone must be out within a second of it,
/// with the one cause, and nothing goes through any more.
inline void expect_failure_ends(const CommSubject& subject, const std::function<void(Rank&)>& wait,
                                const std::function<void(const Body&)>& run) {
  run_to_failure(run, [&](Rank& r) {
    const int last = subject.size - 1;
    const std::string cause = failure_of(r, last, [&] {
      if (r.comm.rank() == last) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        r.comm.fail(disk_on_fire());
        r.comm.exchange("after");
      } else {
        wait(r);
      }
    });
    EXPECT_LT(age_of_failure(cause), 1'000'000'000) << cause;
    r.comm.fail(std::make_exception_ptr(std::runtime_error("a later one")));
    const auto fresh = r.device.create_stream("fresh");
    EXPECT_EQ(failure_of(r, last, [&] { r.comm.exchange("later"); }), cause);
    EXPECT_EQ(failure_of(r, last, [&] { r.comm.barrier(*fresh); }), cause);
    EXPECT_EQ(failure_of(r, last, [&] { r.comm.check(); }), cause);
    r.comm.check();
  });
}

TEST_P(CommunicatorContract, AFailureEndsEveryWait) {
  const auto all = [&](const Body& body) { run(body); };
  const auto on_stream = [](const std::function<void(Rank&, const Data&)>& operation) {
    return [operation](Rank& r) {
      Data data(r.device, DType::f32, 8 * r.comm.size());
      operation(r, data);
      r.stream.synchronize();
    };
  };
  expect_failure_ends(
      GetParam(), [](Rank& r) { r.comm.exchange("x"); }, all);
  expect_failure_ends(
      GetParam(), [](Rank& r) { r.comm.split(0, 0); }, all);
  expect_failure_ends(GetParam(), on_stream([](Rank& r, const Data&) { r.comm.barrier(r.stream); }),
                      all);
  expect_failure_ends(GetParam(), on_stream([](Rank& r, const Data& data) {
                        r.comm.all_reduce(r.stream, data.view(), {});
                      }),
                      all);
  expect_failure_ends(GetParam(), on_stream([](Rank& r, const Data& data) {
                        r.comm.recv(r.stream, data.view(), r.comm.size() - 1);
                      }),
                      all);
}

TEST_P(CommunicatorContract, AFailureReachesGroupsSplitFromTheWorld) {
  run_to_failure([&](const Body& body) { run(body); },
                 [&](Rank& r) {
                   const auto half = r.comm.split(r.comm.rank() % 2, 0);
                   const auto again = half->split(0, 0);
                   if (r.comm.rank() == 0) again->fail(disk_on_fire());
                   // The others may still be at work in the groups; none may finish twice.
                   failure_of(r, 0, [&] {
                     for (;;) r.comm.exchange("x");
                   });
                   r.comm.check();
                 });
}

TEST_P(CommunicatorContract, WhatAStreamFailedOfIsTheCauseOnEveryRank) {
  const int failing = size() / 2;
  run_to_failure([&](const Body& body) { run(body); },
                 [&](Rank& r) {
                   Data data(r.device, DType::f32, 33);  // MPI may read what is large after the end
                   const auto other = r.device.create_stream("compute");
                   if (r.comm.rank() == failing)
                     other->launch("bad kernel", std::initializer_list<Access>{},
                                   [] { throw std::runtime_error("token outside the table"); });
                   Event computed;
                   other->record(computed);
                   r.stream.wait(computed);
                   const std::string cause = failure_of(r, failing, [&] {
                     r.comm.all_reduce(r.stream, data.view(), {});
                     r.stream.synchronize();
                   });
                   EXPECT_EQ(cause, "token outside the table");
                   EXPECT_EQ(failure_of(r, failing, [&] { r.comm.exchange("x"); }), cause);
                   r.comm.check();
                 });
}

TEST_P(CommunicatorContract, ALongWaitIsToldByItsOperationAndWhoIsMissing) {
  if (size() == 1) GTEST_SKIP() << "no peer";
  const test::LogCapture log;
  run([&](Rank& r) {
    const int late = size() - 1;
    r.comm.set_timeout(std::chrono::seconds(6));
    r.comm.exchange("all here");
    if (r.comm.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    r.comm.barrier(r.stream);
    r.stream.synchronize();
    if (r.comm.rank() == late) return;
    std::size_t told = 0;
    for (const std::string& line : log.with("has waited 0.6 s in "))
      if (line.find("barrier") != std::string::npos &&
          line.find(concat("for rank ", late)) != std::string::npos)
        ++told;
    EXPECT_GE(told, 1u);
  });
}

TEST_P(CommunicatorContract, WorkOfAllFailsTogether) {
  const int failing = size() - 1;
  run_to_failure(
      [&](const Body& body) { run(body); },
      [&](Rank& r) {
        const auto work = [&] {
          if (r.comm.rank() == failing) throw std::runtime_error("no such file");
          r.comm.exchange("x");
        };
        const std::string cause = failure_of(r, failing, [&] { fail_together(r.comm, work); });
        EXPECT_EQ(cause, "no such file");
        // What a rank fails of later is not what it throws.
        EXPECT_EQ(
            failure_of(
                r, failing,
                [&] { fail_together(r.comm, [] { throw std::runtime_error("a later one"); }); }),
            cause);
        r.comm.check();
      });
}

TEST_P(CommunicatorContract, PiecesThatDoNotFitNameBothSides) {
  if (size() == 1 || !GetParam().compares_ranks) GTEST_SKIP() << "nothing to compare";
  std::string message;
  try {
    run([&](Rank& r) {
      Data out(r.device, DType::f32, 8), in(r.device, DType::f32, 8 * size());
      std::vector<ConstView> to(static_cast<std::size_t>(size()), out.flat(0, 5));
      std::vector<View> from;
      for (int peer = 0; peer < size(); ++peer)
        from.push_back(in.flat(8 * peer, r.comm.rank() == 1 && peer == 0 ? 7 : 5));
      r.comm.all_to_all(r.stream, to, from);
      r.stream.synchronize();
    });
  } catch (const CommError& error) {
    message = error.what();
  }
  EXPECT_NE(message.find("rank 0 sends 5 x fp32 to group rank 1"), std::string::npos) << message;
  EXPECT_NE(message.find("expects 7 x fp32"), std::string::npos) << message;
}

TEST_P(CommunicatorContract, MismatchedMessagesNameBothSides) {
  if (size() == 1) GTEST_SKIP() << "no peer";
  std::string message;
  try {
    run([&](Rank& r) {
      Data data(r.device, DType::f32, 8);
      if (r.comm.rank() == 0) r.comm.send(r.stream, data.flat(0, 5), 1);
      if (r.comm.rank() == 1) r.comm.recv(r.stream, data.flat(0, 7), 0);
      r.comm.barrier(r.stream);
      r.stream.synchronize();
    });
  } catch (const CommError& error) {
    message = error.what();
  }
  EXPECT_NE(message.find("sends 5 x fp32"), std::string::npos) << message;
  EXPECT_NE(message.find("receives 7 x fp32"), std::string::npos) << message;
}

TEST_P(CommunicatorContract, MismatchedOperationsNameBothSidesOnEveryRank) {
  if (size() == 1 || !GetParam().compares_ranks) GTEST_SKIP() << "does not compare";
  run_to_failure([&](const Body& body) { run(body); },
                 [&](Rank& r) {
                   Data shard(r.device, DType::bf16, 4), full(r.device, DType::bf16, 4 * size());
                   const GatherSegment segment{shard.view(), full.view()};
                   try {
                     if (r.comm.rank() == 0) {
                       r.comm.all_gather(r.stream, {&segment, 1});
                     } else {
                       r.comm.all_reduce(r.stream, full.view(), {});
                     }
                     r.stream.synchronize();
                     ADD_FAILURE() << "different operations went through";
                   } catch (const CommError& error) {
                     const std::string text = error.what();
                     EXPECT_NE(text.find("all_gather"), std::string::npos) << text;
                     EXPECT_NE(text.find("all_reduce"), std::string::npos) << text;
                   }
                   r.comm.check();
                 });
}

}  // namespace zero3d::contract
