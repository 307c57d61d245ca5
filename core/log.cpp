#include "zero3d/core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <set>
#include <string>

#include "zero3d/core/error.h"
#include "zero3d/core/printable.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

thread_local int current_rank = -1;

struct State {
  std::mutex mutex;
  LogLevel level = LogLevel::info;
  std::function<void(LogLevel, std::string_view)> sink;
  std::set<std::string, std::less<>> told_once;
  std::shared_ptr<spdlog::logger> standard = [] {
    auto logger = spdlog::stderr_color_mt("zero3d");
    logger->set_pattern("[%H:%M:%S] %^%l%$ %v");
    logger->set_level(spdlog::level::trace);
    return logger;
  }();
};

State& state() {
  static State* instance = new State;  // leaked: threads may log while statics are destroyed
  return *instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
    case LogLevel::off:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

}  // namespace

LogLevel parse_log_level(std::string_view name) {
  if (name == "debug") return LogLevel::debug;
  if (name == "info") return LogLevel::info;
  if (name == "warning" || name == "warn") return LogLevel::warning;
  if (name == "error") return LogLevel::error;
  if (name == "off") return LogLevel::off;
  throw_invalid(concat("'", name, "' is no log level; choose debug, info, warning, error or off"));
}

void set_log_level(LogLevel level) {
  std::lock_guard lock(state().mutex);
  state().level = level;
}

void set_log_rank(int rank) { current_rank = rank; }

void set_log_sink(std::function<void(LogLevel, std::string_view)> sink) {
  std::lock_guard lock(state().mutex);
  state().sink = std::move(sink);
  state().told_once.clear();
}

void log(LogLevel level, std::string_view message) {
  constexpr std::size_t kShown = 2000;  // a message may quote what comes from outside
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (level < s.level) return;
  const std::string text = printable(message, kShown, true);
  if (s.sink) return s.sink(level, text);
  if (current_rank >= 0) {
    s.standard->log(to_spdlog(level), "[rank {}] {}", current_rank, text);
  } else {
    s.standard->log(to_spdlog(level), "{}", text);
  }
}

void log_once(LogLevel level, std::string_view message) {
  {
    std::lock_guard lock(state().mutex);
    if (!state().told_once.emplace(message).second) return;
  }
  log(level, message);
}

}  // namespace zero3d
