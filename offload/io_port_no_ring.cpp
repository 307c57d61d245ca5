// In a build without liburing: install it (Debian: liburing-dev) and configure again.
#include <cerrno>

#include "zero3d/core/error.h"
#include "zero3d/offload/io_port.h"

namespace zero3d {

std::unique_ptr<IoPort> make_ring_port(const IoPortOptions&) {
  throw IoError("io_uring", ENOSYS,
                "this build has none; install liburing (Debian: liburing-dev) and build again");
}

}  // namespace zero3d
