#include "zero3d/engine/budget_fit.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/memory_fit.h"
#include "zero3d/parallel/agree.h"

namespace zero3d {
namespace {

/// Elements on their way at a time below which a budget clips no further.
constexpr std::int64_t kLeastElements = 1 << 16;

/// A size of the settings that costs memory and changes no result.
struct Knob {
  const char* name;
  std::function<std::int64_t(const TrainSettings&)> get;
  std::function<void(TrainSettings&, std::int64_t)> set;
  std::int64_t least;
};

/// Those that the settings use, the one that is worth most first.
std::vector<Knob> knobs_of(const TrainSettings& settings) {
  std::vector<Knob> knobs;
  knobs.push_back({"the reduce bucket",
                   [](const TrainSettings& s) { return s.gradients.reduce_bucket; },
                   [](TrainSettings& s, std::int64_t n) { s.gradients.reduce_bucket = n; }, 1});
  if (settings.offload.optimizer.device == OffloadDevice::nvme) {
    knobs.push_back(
        {"buffers of optimizer states",
         [](const TrainSettings& s) { return std::int64_t{s.offload.optimizer.buffer_count}; },
         [](TrainSettings& s, std::int64_t n) {
           s.offload.optimizer.buffer_count = static_cast<int>(n);
         },
         1});
    knobs.push_back(
        {"elements updated at a time", [](const TrainSettings& s) { return s.optimizer_tile; },
         [](TrainSettings& s, std::int64_t n) { s.optimizer_tile = n; }, kLeastElements});
  }
  if (settings.offload.parameters.device == OffloadDevice::nvme) {
    knobs.push_back(
        {"buffers of parameters",
         [](const TrainSettings& s) { return std::int64_t{s.offload.parameters.buffer_count}; },
         [](TrainSettings& s, std::int64_t n) {
           s.offload.parameters.buffer_count = static_cast<int>(n);
         },
         1});
    knobs.push_back(
        {"elements of such a buffer",
         [](const TrainSettings& s) { return s.offload.parameters.buffer_elements; },
         [](TrainSettings& s, std::int64_t n) { s.offload.parameters.buffer_elements = n; },
         kLeastElements});
    knobs.push_back({"parameters kept in host memory",
                     [](const TrainSettings& s) { return s.offload.parameters.max_in_cpu; },
                     [](TrainSettings& s, std::int64_t n) { s.offload.parameters.max_in_cpu = n; },
                     0});
  }
  return knobs;
}

class Fitter {
 public:
  Fitter(const TrainSettings& asked, const Module& module, const Mesh& mesh,
         const EngineOptions& options, std::int64_t device_budget, std::int64_t host_budget)
      : asked_(asked),
        mesh_(mesh),
        options_(options),
        device_budget_(device_budget),
        host_budget_(host_budget),
        planner_(asked, module, mesh, options) {}

  TrainSettings run() {
    TrainSettings found = asked_;
    if (!fits(found)) found = clipped();
    if (options_.approve_memory && options_.sequence_length > 0) {
      // Stages of a pipeline take different amounts.
      fail_together(mesh_.world(),
                    [&] { options_.approve_memory(planner_.memory(found, device_budget_)); });
    }
    return found;
  }

 private:
  static bool within(const MemoryEstimate& need, std::int64_t device, std::int64_t host) {
    return (device < 0 || need.total() <= device) && (host < 0 || need.total(kHostTiers) <= host);
  }

  bool fits(const TrainSettings& settings) const {
    const bool here = within(planner_.least_memory(settings), device_budget_, host_budget_);
    return minimum(mesh_.world(), here ? 1 : 0) == 1;
  }

  /// All at their least; then each as large as it may be beside the others.
  TrainSettings clipped() const {
    std::vector<Knob> knobs = knobs_of(asked_);
    std::erase_if(knobs, [&](const Knob& knob) { return knob.get(asked_) <= knob.least; });
    TrainSettings found = asked_;
    for (const Knob& knob : knobs) knob.set(found, knob.least);
    if (!fits(found)) refuse(planner_.least_memory(found));
    std::string text;
    for (const Knob& knob : knobs) {
      raise(knob, found);
      const std::int64_t now = knob.get(found), asked = knob.get(asked_);
      if (now < asked)
        append_item(text, ", ", knob.name, " from ", format_count(asked), " to ",
                    format_count(now));
    }
    if (mesh_.leads() && !text.empty())
      log_warning(concat("clipped to what the memory budgets hold: ", text));
    return found;
  }

  /// To what was asked for, or near the most that fits.
  void raise(const Knob& knob, TrainSettings& found) const {
    std::int64_t low = knob.get(found), high = knob.get(asked_);
    const auto try_at = [&](std::int64_t value) {
      TrainSettings trial = found;
      knob.set(trial, value);
      if (!fits(trial)) return false;
      found = trial;
      return true;
    };
    if (try_at(high)) return;
    high = std::min(high, planner_.elements() + 1);  // no size above does more
    while (high - low > 1 + low / 64) {
      const std::int64_t middle = low + (high - low) / 2;
      (try_at(middle) ? low : high) = middle;
    }
  }

  /// Names budgets that are enough on every rank.
  [[noreturn]] void refuse(const MemoryEstimate& need) const {
    const std::int64_t device = maximum(mesh_.world(), need.total());
    const std::int64_t host = maximum(mesh_.world(), need.total(kHostTiers));
    fail_together(mesh_.world(), [&] {
      need.require_within(device_budget_, host_budget_, {device, host});
      if (device_budget_ >= 0 && device > device_budget_)
        throw OutOfMemory(device, "device", elsewhere(device, "device", device_budget_));
      throw OutOfMemory(host, "host", elsewhere(host, "host", host_budget_));
    });
    throw_invalid("unreachable");
  }

  static std::string elsewhere(std::int64_t bytes, const char* place, std::int64_t budget) {
    return concat("the plan needs ", format_bytes(bytes), " of another rank's ", place,
                  ", more than its budget of ", format_bytes(budget), ": raise it to ",
                  budget_of(bytes), " with --", place, "-memory");
  }

  const TrainSettings& asked_;
  const Mesh& mesh_;
  const EngineOptions& options_;
  const std::int64_t device_budget_;
  const std::int64_t host_budget_;
  const RunPlanner planner_;
};

}  // namespace

std::int64_t smallest_budget(const Mesh& mesh, const TrackingResource& memory) {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  const std::int64_t mine = memory.budget();
  const std::int64_t least = minimum(mesh.world(), mine < 0 ? kNone : mine);
  return least == kNone ? TrackingResource::kUnlimited : least;
}

TrainSettings fit_to_budgets(const TrainSettings& settings, const Module& module, const Mesh& mesh,
                             const EngineOptions& options, std::int64_t device_budget,
                             std::int64_t host_budget) {
  if (device_budget < 0 && host_budget < 0 && !options.approve_memory) return settings;
  return Fitter(settings, module, mesh, options, device_budget, host_budget).run();
}

}  // namespace zero3d
