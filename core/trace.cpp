#include "zero3d/core/trace.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "zero3d/core/output_file.h"

namespace zero3d {
namespace {

constexpr std::size_t kChunkBytes = 1u << 16;

struct State {
  std::atomic<bool> enabled{false};
  std::mutex mutex;
  std::vector<Span> spans;
};

State& state() {
  static State* instance = new State;  // leaked: stream threads may outlive statics
  return *instance;
}

}  // namespace

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Tracer::enable() {
  std::lock_guard lock(state().mutex);
  state().spans.clear();
  state().enabled = true;
}

void Tracer::disable() {
  std::lock_guard lock(state().mutex);
  state().enabled = false;
  state().spans.clear();
}

bool Tracer::enabled() { return state().enabled.load(std::memory_order_relaxed); }

void Tracer::add(Span span) {
  std::lock_guard lock(state().mutex);
  if (state().enabled) state().spans.push_back(std::move(span));
}

std::vector<Span> Tracer::spans() {
  std::lock_guard lock(state().mutex);
  return state().spans;
}

void Tracer::write_chrome_trace(OutputFile& file) {
  const std::vector<Span> spans = Tracer::spans();
  std::int64_t origin = spans.empty() ? 0 : spans.front().begin_ns;
  for (const Span& span : spans) origin = std::min(origin, span.begin_ns);
  std::map<std::pair<int, std::string>, int> threads;
  std::string text = "{\"traceEvents\":[\n";
  bool first = true;
  const auto emit = [&](const nlohmann::json& event) {
    if (!std::exchange(first, false)) text += ",\n";
    text += event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (text.size() < kChunkBytes) return;
    file.write(text);
    text.clear();
  };
  for (const Span& span : spans) {
    const auto [entry, added] =
        threads.try_emplace({span.rank, span.stream}, static_cast<int>(threads.size()));
    if (added) {
      emit({{"ph", "M"},
            {"name", "thread_name"},
            {"pid", span.rank},
            {"tid", entry->second},
            {"args", {{"name", span.stream}}}});
      emit({{"ph", "M"},
            {"name", "process_name"},
            {"pid", span.rank},
            {"tid", entry->second},
            {"args", {{"name", "rank " + std::to_string(span.rank)}}}});
    }
    nlohmann::json event = {{"ph", "X"},
                            {"name", span.name},
                            {"pid", span.rank},
                            {"tid", entry->second},
                            {"ts", static_cast<double>(span.begin_ns - origin) / 1e3},
                            {"dur", static_cast<double>(span.end_ns - span.begin_ns) / 1e3}};
    if (span.bytes != 0) event["args"] = {{"bytes", span.bytes}};
    emit(event);
  }
  file.write(text + "\n]}\n");
  file.commit();
}

}  // namespace zero3d
