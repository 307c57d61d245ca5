// The one exception family of the library. A message says what was expected, what was found and
// where to change it. Nothing here ends the process; the command-line tool turns an Error into one
// line on stderr and an exit code.
#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

namespace zero3d {

enum class ErrorKind {
  kInvalid,      ///< A caller's argument or a combination of arguments.
  kConfig,       ///< A ds_config value; ConfigError carries its JSON path.
  kIo,           ///< A file; IoError carries path and errno.
  kOutOfMemory,  ///< A memory budget; OutOfMemory carries bytes and tier.
  kComm,         ///< A collective; CommError carries rank and operation.
  kHazard,       ///< Two accesses that nothing orders (the stream-order checker).
  kNumeric,      ///< Training ran into non-finite numbers it was told not to bear.
  kInternal      ///< A broken invariant of our own.
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

/// A ds_config problem at `path` ("zero_optimization.stage"; "" for the whole file).
class ConfigError : public Error {
 public:
  ConfigError(std::string path, const std::string& message)
      : Error(ErrorKind::kConfig, path.empty() ? message : path + ": " + message),
        path_(std::move(path)) {}
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

class OutOfMemory : public Error {
 public:
  OutOfMemory(std::int64_t bytes, std::string tier, const std::string& message)
      : Error(ErrorKind::kOutOfMemory, message), bytes_(bytes), tier_(std::move(tier)) {}
  std::int64_t bytes() const noexcept { return bytes_; }  ///< What was asked for.
  const std::string& tier() const noexcept { return tier_; }

 private:
  std::int64_t bytes_;
  std::string tier_;
};

class CommError : public Error {
 public:
  CommError(int rank, std::string operation, const std::string& message)
      : Error(ErrorKind::kComm, message), rank_(rank), operation_(std::move(operation)) {}
  int rank() const noexcept { return rank_; }
  const std::string& operation() const noexcept { return operation_; }

 private:
  int rank_;
  std::string operation_;
};

class IoError : public Error {
 public:
  /// `code` is an errno value, 0 when the system reported none (a malformed file). `more` follows
  /// what the system says of it.
  IoError(std::string path, int code, const std::string& message, std::string_view more = {});
  const std::string& path() const noexcept { return path_; }
  int code() const noexcept { return code_; }

 private:
  std::string path_;
  int code_;
};

/// What `error` says to a user: an Error its message, another exception what it came to, with what
/// can be done about it.
std::string describe(const std::exception& error);
/// The same; "" for none.
std::string message_of(const std::exception_ptr& error);

[[noreturn]] void throw_invalid(const std::string& message);
[[noreturn]] void throw_internal(const char* file, int line, const char* condition,
                                 const std::string& message);

}  // namespace zero3d

/// An invariant of our own code; throws Error(kInternal) with file and line. Never for what a user
/// can cause.
#define ZERO3D_CHECK(condition, message)                                                 \
  do {                                                                                   \
    if (!(condition)) ::zero3d::throw_internal(__FILE__, __LINE__, #condition, message); \
  } while (false)
