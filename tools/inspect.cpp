#include "inspect.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <set>
#include <vector>

#include "command.h"
#include "inspect_deepspeed.h"
#include "saved_states.h"
#include "zero3d/core/printable.h"
#include "zero3d/core/text.h"

namespace zero3d::tools {
namespace {

constexpr std::int64_t kSlice = std::int64_t{1} << 20;  // elements read at a time
constexpr std::size_t kShownName = 120;

void print(const char* subject, const std::string& text) {
  std::printf("%-10s %s\n", subject, text.c_str());
}

std::int64_t tensor_bytes(const SavedState& saved) {
  std::int64_t bytes = 0;
  for (const SavedParameter& parameter : saved.parameters())
    for (const auto& [name, dtype] : parameter.tensors)
      bytes += bytes_of(parameter.shape.numel(), dtype);
  return bytes;
}

std::string describe_kinds(const SavedState& saved) {
  std::map<std::string, std::int64_t> kinds;  // "exp_avg fp32"
  for (const SavedParameter& parameter : saved.parameters())
    for (const auto& [name, dtype] : parameter.tensors)
      ++kinds[concat(zero3d::printable(name, kShownName), " ", name_of(dtype))];
  std::string text;
  for (const auto& [kind, count] : kinds) append_item(text, ", ", count, " ", kind);
  return text;
}

void print_run(const SavedState& saved) {
  const SavedRun& run = saved.run();
  const RunState& state = run.state;
  print("checkpoint", concat(saved.path(), ", written by ", run.writer));
  print("run",
        concat("step ", state.steps, " (", state.skipped_steps, " skipped), ",
               format_count(state.samples), " samples; the optimizer has applied ",
               state.optimizer_steps, " updates, the schedule is at ", state.schedule_steps));
  print("data", concat("position ", format_count(state.data_position),
                       run.knows_seed ? concat(", seed ", state.seed) : std::string()));
  if (run.scale != SavedScale::none)
    print("loss scale",
          concat(state.scaler.scale, run.scale == SavedScale::fixed ? ", fixed" : ""));
  print("mesh", concat("dp ", run.mesh.dp, " x tp ", run.mesh.tp, " x pp ", run.mesh.pp, " x sp ",
                       run.mesh.sp, "; loads on any"));
}

void print_holdings(const SavedState& saved, bool tensors) {
  std::int64_t elements = 0, frozen = 0, left_out = 0;
  std::set<std::string> rules;
  for (const SavedParameter& parameter : saved.parameters()) {
    elements += parameter.shape.numel();
    frozen += parameter.frozen ? 1 : 0;
    left_out += parameter.tensors.count(kWeight) == 0 ? 1 : 0;
    if (!parameter.rule.empty()) rules.insert(zero3d::printable(parameter.rule, kShownName));
  }
  print("holds", concat(saved.parameters().size(), " parameters of ", format_count(elements),
                        " elements", frozen > 0 ? concat(", ", frozen, " frozen") : std::string(),
                        left_out > 0 ? concat(", ", left_out, " left out") : std::string(), "; ",
                        format_bytes(tensor_bytes(saved)), " in tensors"));
  print("tensors", describe_kinds(saved));
  if (!rules.empty()) print("optimizer", joined(rules, ", "));
  if (!tensors) return;
  for (const SavedParameter& parameter : saved.parameters()) {
    std::string list;
    for (const auto& [name, dtype] : parameter.tensors)
      append_item(list, ", ", zero3d::printable(name, kShownName), " ", name_of(dtype));
    print("", concat(zero3d::printable(parameter.name, kShownName), " ", to_string(parameter.shape),
                     ": ", list.empty() ? "left out" : list, parameter.frozen ? " (frozen)" : ""));
  }
}

void print_json(const SavedState& saved) {
  const SavedRun& run = saved.run();
  JsonValue root = JsonValue::make_object();
  root.set("path", JsonValue(saved.path()));
  root.set("writer", JsonValue(run.writer));
  JsonValue& numbers = root.set("state", JsonValue::make_object());
  numbers.set("steps", JsonValue(run.state.steps));
  numbers.set("skipped_steps", JsonValue(run.state.skipped_steps));
  numbers.set("samples", JsonValue(run.state.samples));
  numbers.set("optimizer_steps", JsonValue(run.state.optimizer_steps));
  numbers.set("schedule_steps", JsonValue(run.state.schedule_steps));
  numbers.set("data_position", JsonValue(run.state.data_position));
  numbers.set("loss_scale", JsonValue(run.state.scaler.scale));
  root.set("bytes", JsonValue(tensor_bytes(saved)));
  JsonValue& parameters = root.set("parameters", JsonValue::make_array());
  for (const SavedParameter& parameter : saved.parameters()) {
    JsonValue entry = JsonValue::make_object();
    entry.set("name", JsonValue(parameter.name));
    JsonValue& shape = entry.set("shape", JsonValue::make_array());
    for (int dim = 0; dim < parameter.shape.rank(); ++dim)
      shape.push_back(JsonValue(parameter.shape[dim]));
    entry.set("frozen", JsonValue(parameter.frozen));
    JsonValue& tensors = entry.set("tensors", JsonValue::make_object());
    for (const auto& [name, dtype] : parameter.tensors)
      tensors.set(name, JsonValue(std::string(name_of(dtype))));
    parameters.push_back(std::move(entry));
  }
  std::printf("%s\n", root.dump().c_str());
}

/// How far two tensors of one shape are apart.
struct Difference {
  std::int64_t differing = 0;
  std::int64_t first = -1;
  double largest = 0;
};

std::vector<float> read_slice(const SavedState& saved, const SavedParameter& parameter,
                              std::string_view tensor, std::int64_t first, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  const GlobalRun run{first, count, 0};
  saved.read(parameter, tensor, {&run, 1},
             View(reinterpret_cast<std::byte*>(values.data()), DType::f32, Shape{count}));
  return values;
}

bool same(float a, float b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::abs(static_cast<double>(a) - static_cast<double>(b)) <= tolerance;
}

Difference compare(const SavedState& a, const SavedState& b, const SavedParameter& in_a,
                   const SavedParameter& in_b, std::string_view tensor, double tolerance) {
  Difference result;
  const std::int64_t numel = in_a.shape.numel();
  for (std::int64_t first = 0; first < numel; first += kSlice) {
    const std::int64_t count = std::min(kSlice, numel - first);
    const std::vector<float> left = read_slice(a, in_a, tensor, first, count);
    const std::vector<float> right = read_slice(b, in_b, tensor, first, count);
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (same(left[i], right[i], tolerance)) continue;
      if (result.differing++ == 0) result.first = first + static_cast<std::int64_t>(i);
      result.largest = std::max(
          result.largest, std::abs(static_cast<double>(left[i]) - static_cast<double>(right[i])));
    }
  }
  return result;
}

class Comparison {
 public:
  Comparison(const SavedState& a, const SavedState& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options) {}

  void run() {
    compare_numbers();
    for (const SavedParameter& parameter : a_.parameters()) {
      const SavedParameter* const other = b_.find(parameter.name);
      if (other == nullptr) {
        tell(concat(zero3d::printable(parameter.name, kShownName), " is in the first alone"));
      } else if (other->shape != parameter.shape) {
        tell(concat(zero3d::printable(parameter.name, kShownName), " is ",
                    to_string(parameter.shape), " and ", to_string(other->shape)));
      } else {
        compare_tensors(parameter, *other);
      }
    }
    for (const SavedParameter& parameter : b_.parameters())
      if (a_.find(parameter.name) == nullptr)
        tell(concat(zero3d::printable(parameter.name, kShownName), " is in the second alone"));
  }
  std::int64_t told() const { return told_; }
  std::int64_t tensors() const { return tensors_; }

 private:
  void tell(const std::string& line) {
    if (told_++ < options_.shown) std::printf("%s\n", line.c_str());
  }

  void compare_numbers() {
    const auto number = [&](const char* name, std::int64_t a, std::int64_t b) {
      if (a != b) tell(concat(name, ": ", a, " and ", b));
    };
    const RunState& a = a_.run().state;
    const RunState& b = b_.run().state;
    number("steps", a.steps, b.steps);
    number("optimizer steps", a.optimizer_steps, b.optimizer_steps);
    number("schedule steps", a.schedule_steps, b.schedule_steps);
    number("data position", a.data_position, b.data_position);
    if (a.scaler.scale != b.scaler.scale)
      tell(concat("loss scale: ", a.scaler.scale, " and ", b.scaler.scale));
  }

  void compare_tensors(const SavedParameter& in_a, const SavedParameter& in_b) {
    const std::string name = zero3d::printable(in_a.name, kShownName);
    for (const auto& [tensor, dtype] : in_a.tensors) {
      const auto other = in_b.tensors.find(tensor);
      if (other == in_b.tensors.end()) {
        tell(concat(name, " has ", zero3d::printable(tensor, kShownName), " in the first alone"));
        continue;
      }
      ++tensors_;
      const Difference found = compare(a_, b_, in_a, in_b, tensor, options_.tolerance);
      if (found.differing == 0) continue;
      const float left = read_slice(a_, in_a, tensor, found.first, 1)[0];
      const float right = read_slice(b_, in_b, tensor, found.first, 1)[0];
      tell(concat(name, " ", zero3d::printable(tensor, kShownName), ": ", found.differing, " of ",
                  in_a.shape.numel(), " elements differ, by at most ", found.largest,
                  "; the first is element ", found.first, ": ", static_cast<double>(left), " and ",
                  static_cast<double>(right)));
    }
    for (const auto& [tensor, dtype] : in_b.tensors)
      if (in_a.tensors.count(tensor) == 0)
        tell(concat(name, " has ", zero3d::printable(tensor, kShownName), " in the second alone"));
  }

  const SavedState& a_;
  const SavedState& b_;
  const DiffOptions& options_;
  std::int64_t told_ = 0;
  std::int64_t tensors_ = 0;
};

}  // namespace

void inspect(const InspectOptions& options) {
  if (!options.json && is_of_deepspeed(options.checkpoint)) {
    const DeepspeedCheckpoint checkpoint(options.checkpoint);
    print_checkpoint(checkpoint, std::cout);
    if (!options.verify) return;
    checkpoint.verify();
    std::cout << "  every file has the checksums that it states\n";
    return;
  }
  const std::unique_ptr<SavedState> saved = open_saved_state(options.checkpoint);
  if (options.json) {
    print_json(*saved);
  } else {
    print_run(*saved);
    print_holdings(*saved, options.tensors);
  }
  if (!options.verify) return;
  saved->verify();
  if (!options.json) print("verified", "all of it is as it was written");
}

void diff(const DiffOptions& options) {
  const std::unique_ptr<SavedState> a = open_saved_state(options.a);
  const std::unique_ptr<SavedState> b = open_saved_state(options.b);
  Comparison comparison(*a, *b, options);
  comparison.run();
  if (comparison.told() == 0) {
    std::printf("the same: %lld tensors, and where the run is\n",
                static_cast<long long>(comparison.tensors()));
    return;
  }
  if (comparison.told() > options.shown)
    std::printf("and %lld more\n", static_cast<long long>(comparison.told() - options.shown));
  std::fflush(stdout);
  throw ExitStatus{1};
}

}  // namespace zero3d::tools
