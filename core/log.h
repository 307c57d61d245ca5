// Leveled log lines to stderr, thread-safe; a line carries the rank of the thread that wrote it
// once that is set. The sink, its level and what it was told once are the process's only mutable
// globals beside the tracer.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace zero3d {

enum class LogLevel { debug, info, warning, error, off };

/// "debug", "info", "warning" (or "warn"), "error", "off"; throws Error(kInvalid) otherwise.
LogLevel parse_log_level(std::string_view name);
void set_log_level(LogLevel level);
/// The rank shown in lines of the calling thread; -1 (the default) shows none.
void set_log_rank(int rank);
/// Sends lines to `sink` instead of stderr; an empty function restores stderr. For tests and
/// embedding programs.
void set_log_sink(std::function<void(LogLevel, std::string_view)> sink);

void log(LogLevel level, std::string_view message);
/// What ranks and parts of one process find alike: nothing where this text was logged so already,
/// to the same sink.
void log_once(LogLevel level, std::string_view message);
inline void log_debug(std::string_view message) { log(LogLevel::debug, message); }
inline void log_info(std::string_view message) { log(LogLevel::info, message); }
inline void log_warning(std::string_view message) { log(LogLevel::warning, message); }
inline void log_error(std::string_view message) { log(LogLevel::error, message); }

}  // namespace zero3d
