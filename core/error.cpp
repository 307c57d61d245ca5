#include "zero3d/core/error.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <system_error>

#include "zero3d/core/printable.h"
#include "zero3d/core/text.h"

namespace zero3d {

namespace {

/// What to do about an error of the system, where that does not follow from its text.
const char* advice(int code) {
  return code == EMFILE ? "; raise the limit of open files (ulimit -n)" : "";
}

std::string describe_code(const std::error_code& code) {
  if (code == std::errc::resource_unavailable_try_again)
    return concat("the system starts no further thread (", code.message(),
                  "); use fewer ranks and threads, or raise its limits (ulimit -u, ulimit -v)");
  return concat("the system refused: ", code.message(), advice(code.value()));
}

}  // namespace

IoError::IoError(std::string path, int code, const std::string& message, std::string_view more)
    : Error(ErrorKind::kIo,
            concat(path, ": ", message,
                   code == 0 ? "" : concat(" (", std::strerror(code), ")", advice(code)), more)),
      path_(std::move(path)),
      code_(code) {}

std::string describe(const std::exception& error) {
  constexpr std::size_t kShown = 4000;  // what it quotes from outside may have any size
  if (dynamic_cast<const Error*>(&error) != nullptr) return printable(error.what(), kShown, true);
  if (const auto* files = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
    return concat(files->path1().string(), ": ", describe_code(files->code()));
  if (const auto* system = dynamic_cast<const std::system_error*>(&error))
    return describe_code(system->code());
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      dynamic_cast<const std::length_error*>(&error) != nullptr)
    return "the system has no memory left for this process; make the model, the batch or the "
           "sequences smaller, or use fewer ranks";
  return error.what();
}

std::string message_of(const std::exception_ptr& error) {
  if (error == nullptr) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return describe(exception);
  } catch (...) {
    return "an exception of unknown type";
  }
}

void throw_invalid(const std::string& message) { throw Error(ErrorKind::kInvalid, message); }

void throw_internal(const char* file, int line, const char* condition, const std::string& message) {
  throw Error(ErrorKind::kInternal,
              concat("internal error at ", file, ":", line, ": ", message, " [", condition, "]"));
}

}  // namespace zero3d
