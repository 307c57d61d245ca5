#include "train_launch.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <optional>
#include <sstream>

#include "command.h"
#include "schedule_report.h"
#include "stop_signal.h"
#include "train_facts.h"
#include "train_plan.h"
#include "train_run.h"
#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/device/cuda/cuda_device.h"
#include "zero3d/parallel/comm/launcher.h"
#include "zero3d/parallel/comm/mpi_communicator.h"
#include "zero3d/parallel/comm/nccl_communicator.h"
#include "zero3d/parallel/comm/thread_communicator.h"

namespace zero3d::tools {
namespace {

/// How long ranks wait for each other once one of them has failed: too short to be told of.
constexpr std::chrono::milliseconds kFarewell{2'000};

std::chrono::milliseconds timeout_of(const TrainRequest& request) {
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(std::min(request.comm_timeout, 1e9) * 1000));
}

struct Failure {
  int rank = -1;
  std::string message;
};

/// The failure that all ranks tell of together, by the rank it happened on first; nothing when no
/// rank has one.
std::optional<Failure> first_failure(Communicator& world, const std::string& message) {
  const std::vector<std::string> all = world.exchange(message);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) return Failure{static_cast<int>(rank), all[rank]};
  }
  return std::nullopt;
}

/// Ends all ranks when one has failed. The rank it happened on tells of it, and the others wait for
/// that: a launcher ends all processes as soon as one has ended badly.
void end_together(Communicator& world, const std::optional<Failure>& failure) {
  if (!failure) return;
  if (failure->rank == world.rank()) std::cerr << "zero3d: " << failure->message << std::endl;
  try {
    world.exchange("");
  } catch (const CommError&) {  // who does not come does not tell either
  }
  throw ExitStatus{1};
}

/// Every rank's own plan, or its failure, or where they disagree: the same on all ranks.
std::optional<Failure> plan_together(Communicator& world, const TrainRequest& request,
                                     const Share& share, std::optional<TrainPlan>& plan) {
  std::string failure, facts;
  try {
    plan = make_plan(request, world.size(), world.rank() == 0, share);
    facts = describe_facts(*plan);
  } catch (const std::exception& error) {
    failure = describe(error);
  }
  if (auto first = first_failure(world, failure)) return first;
  const std::string disagreement = find_disagreement(world.exchange(facts));
  if (!disagreement.empty()) return Failure{0, disagreement};
  return std::nullopt;
}

/// Where not all ranks answer, each tells for itself what ended it.
[[noreturn]] void end_alone(const std::string& message) {
  std::cerr << "zero3d: " << message << std::endl;
  throw ExitStatus{1};
}

MpiCommOptions comm_options(const TrainRequest& request) {
  MpiCommOptions options;
  options.timeout = timeout_of(request);
  options.log_failures = false;
  return options;
}

/// The ranks meet again at the end, on a world of their own that no failure has ended: the first
/// that failed by its own doing says so, before MPI ends them all. After a failure they meet soon
/// or not at all, since who is missing in one world is missing in the other too.
/// Returns what train_rank does.
RunEnd run_together(const TrainPlan& plan, const Share& share, Communicator& meeting) {
  const MpiCommOptions options = comm_options(plan.request);
  std::unique_ptr<Communicator> world = make_mpi_world(options);
  std::string failure, what_ended_us;
  RunEnd end;
  try {
    if (plan.device == DeviceKind::cuda) {
      const int gpu = cuda_device_of(local_rank(*world));
      world = make_nccl(std::move(world), gpu);
    }
    fail_together(*world, [&] { end = train_rank(plan, *world, share); });
  } catch (const CommAborted& error) {  // the rank it happened on tells of it
    what_ended_us = error.what();
  } catch (const std::exception& error) {
    failure = what_ended_us = describe(error);
  }
  if (!what_ended_us.empty()) meeting.set_timeout(std::min(options.timeout, kFarewell));
  std::optional<Failure> first;
  try {
    first = first_failure(meeting, failure);
  } catch (const CommError& error) {
    end_alone(what_ended_us.empty() ? std::string(error.what()) : what_ended_us);
  }
  end_together(meeting, first);
  return end;
}

/// The spans of all processes come to rank 0's tracer; ranks of one machine share a clock.
void collect_spans(Communicator& meeting) {
  if (!Tracer::enabled()) return;
  std::string mine;
  for (const Span& span : Tracer::spans()) {
    mine += concat(span.name, "\n", span.stream, "\n", span.rank, " ", span.begin_ns, " ",
                   span.end_ns, " ", span.bytes, "\n");
  }
  const std::vector<std::string> all = meeting.exchange(meeting.rank() == 0 ? "" : mine);
  if (meeting.rank() != 0) return Tracer::disable();
  for (const std::string& text : all) {
    std::istringstream in(text);
    Span span;
    while (std::getline(in, span.name) && std::getline(in, span.stream) &&
           in >> span.rank >> span.begin_ns >> span.end_ns >> span.bytes && in.ignore())
      Tracer::add(span);
  }
}

void write_trace(const TrainPlan& plan) {
  if (plan.trace == nullptr) return;
  Tracer::write_chrome_trace(*plan.trace);
  std::printf("trace     %s\n", plan.request.trace.c_str());
}

/// Under a launcher its processes are the ranks; "" when --ranks says the same or nothing.
std::string other_ranks(const TrainRequest& request, int processes) {
  if (request.ranks == 0 || request.ranks == processes) return "";
  return concat(
      "--ranks ", request.ranks, ", and the launcher started ", processes,
      processes == 1 ? " process, which is the one rank" : " processes, each of them a rank",
      ": leave --ranks out, or start as many (mpirun -n ", request.ranks, " zero3d train ...)");
}

/// A shell's code for the signal, unless the run was saved.
int stopped_exit(const TrainRequest& request, const RunEnd& end) {
  return request.save.empty() ? 128 + end.stopped_by : kStoppedExit;
}

/// A launcher ends all processes as soon as one has ended with a code.
void leave_stopped(Communicator& meeting, int code) {
  try {
    meeting.exchange("");
  } catch (const CommError&) {
  }
  throw ExitStatus{code};
}

void run_under_mpi(const TrainRequest& request, const std::optional<LaunchPromise>& promise) {
  const MpiSession session(timeout_of(request));
  const std::unique_ptr<Communicator> meeting = make_mpi_world(comm_options(request));
  set_log_rank(meeting->rank());
  std::optional<TrainPlan> plan;
  RunEnd end;
  try {
    const std::string broken = broken_promise(promise, meeting->size());
    end_together(
        *meeting,
        first_failure(*meeting, broken.empty() ? other_ranks(request, meeting->size()) : broken));
    const Share share = find_share(*meeting, read_allowed_cpus());
    end_together(*meeting, plan_together(*meeting, request, share, plan));
    if (leaves_in_order(*plan)) catch_stop_signals();
    end = run_together(*plan, share, *meeting);
    collect_spans(*meeting);
  } catch (const CommError& error) {  // of the meeting
    end_alone(error.what());
  }
  write_trace(*plan);
  write_schedule(*plan);
  if (!end.shortfall.empty()) end_together(*meeting, Failure{0, end.shortfall});
  if (end.stopped_by != 0) leave_stopped(*meeting, stopped_exit(request, end));
}

void run_as_threads(const TrainRequest& request) {
  const int ranks = std::max(1, request.ranks);
  const TrainPlan plan = make_plan(request, ranks, true, {0, ranks});
  if (leaves_in_order(plan)) catch_stop_signals();
  RunEnd end;
  ThreadCommOptions options;
  options.timeout = timeout_of(request);
  run_ranks(
      ranks,
      [&](Communicator& world) {
        const RunEnd found = train_rank(plan, world, {world.rank(), world.size()});
        if (world.rank() == 0) end = found;
      },
      options);
  write_trace(plan);
  write_schedule(plan);
  if (!end.shortfall.empty()) throw Error(ErrorKind::kNumeric, end.shortfall);
  if (end.stopped_by != 0) throw ExitStatus{stopped_exit(request, end)};
}

}  // namespace

void train(const TrainRequest& request) {
  set_log_level(parse_log_level(request.log_level));
  if (!request.trace.empty()) Tracer::enable();
  const std::optional<LaunchPromise> promise = launch_promise();
  if (launched_by_mpi()) {
    run_under_mpi(request, promise);
  } else {
    const std::string broken = broken_promise(promise, 1);
    if (!broken.empty()) throw_invalid(broken);
    run_as_threads(request);
  }
}

}  // namespace zero3d::tools
