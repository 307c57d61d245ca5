#include "zero3d/core/error.h"

#include <cstring>

#include "zero3d/core/text.h"

namespace zero3d {

IoError::IoError(std::string path, int code, const std::string& message)
    : Error(ErrorKind::kIo, code == 0
                                ? concat(path, ": ", message)
                                : concat(path, ": ", message, " (", std::strerror(code), ")")),
      path_(std::move(path)),
      code_(code) {}

std::string message_of(const std::exception_ptr& error) {
  if (error == nullptr) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
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
