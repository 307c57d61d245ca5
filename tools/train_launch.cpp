#include "train_launch.h"

#include <cstdio>
#include <iostream>
#include <optional>
#include <sstream>

#include "command.h"
#include "train_plan.h"
#include "train_run.h"
#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/parallel/comm/mpi_communicator.h"
#include "zero3d/parallel/comm/thread_communicator.h"

namespace zero3d::tools {
namespace {

/// Name and value in turn, a line each.
std::string facts_text(const TrainPlan& plan) {
  std::string text;
  for (const PlanFact& fact : common_facts(plan)) text += concat(fact.name, "\n", fact.value, "\n");
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// "" when the ranks agree; `all` holds each rank's facts.
std::string find_disagreement(const std::vector<std::string>& all) {
  const std::vector<std::string> first = lines_of(all.front());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::vector<std::string> lines = lines_of(all[rank]);
    for (std::size_t i = 0; i + 1 < first.size() && i + 1 < lines.size(); i += 2) {
      if (lines[i + 1] == first[i + 1]) continue;
      return concat("rank ", rank, " disagrees with rank 0 about ", first[i], ": ", lines[i + 1],
                    " and ", first[i + 1], "; start every rank with the same options and files");
    }
  }
  return "";
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
  world.exchange("");
  throw ExitStatus{1};
}

/// Every rank's own plan, or its failure, or where they disagree: the same on all ranks.
std::optional<Failure> plan_together(Communicator& world, const TrainRequest& request,
                                     const Share& share, std::optional<TrainPlan>& plan) {
  std::string failure;
  try {
    plan = make_plan(request, world.size(), world.rank() == 0, share);
  } catch (const std::exception& error) {
    failure = describe(error);
  }
  if (auto first = first_failure(world, failure)) return first;
  const std::string disagreement = find_disagreement(world.exchange(facts_text(*plan)));
  if (!disagreement.empty()) return Failure{0, disagreement};
  return std::nullopt;
}

/// The ranks meet again at the end, on a world of their own that no failure has ended: the first
/// that failed by its own doing says so, before MPI ends them all.
void run_together(const TrainPlan& plan, const Share& share, Communicator& meeting) {
  MpiCommOptions options;
  options.log_failures = false;
  const std::unique_ptr<Communicator> world = make_mpi_world(options);
  std::string failure;
  try {
    fail_together(*world, [&] { train_rank(plan, *world, share); });
  } catch (const CommAborted&) {  // the rank it happened on tells of it
  } catch (const std::exception& error) {
    failure = describe(error);
  }
  end_together(meeting, first_failure(meeting, failure));
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

void run_under_mpi(const TrainRequest& request) {
  MpiSession session;
  const std::unique_ptr<Communicator> meeting = make_mpi_world();
  set_log_rank(meeting->rank());
  const Share share = find_share(*meeting, read_allowed_cpus());
  std::optional<TrainPlan> plan;
  end_together(*meeting, plan_together(*meeting, request, share, plan));
  run_together(*plan, share, *meeting);
  collect_spans(*meeting);
  write_trace(*plan);
}

void run_as_threads(const TrainRequest& request) {
  const TrainPlan plan = make_plan(request, request.ranks, true, {0, request.ranks});
  run_ranks(request.ranks, [&](Communicator& world) {
    train_rank(plan, world, {world.rank(), world.size()});
  });
  write_trace(plan);
}

}  // namespace

void train(const TrainRequest& request) {
  set_log_level(parse_log_level(request.log_level));
  if (!request.trace.empty()) Tracer::enable();
  if (launched_by_mpi()) {
    run_under_mpi(request);
  } else {
    run_as_threads(request);
  }
}

}  // namespace zero3d::tools
