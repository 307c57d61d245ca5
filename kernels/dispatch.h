// The only switch between back ends, and the argument checks that all kernels share. A public
// kernel function checks shapes on the host, fills a struct of plain pointers and extents
// (kernels/args), then dispatches: the back end's body runs later, in the stream's order.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/core/view.h"
#include "zero3d/device/device.h"

namespace zero3d::kernels {

/// One kernel's bodies, one per back end.
template <typename Args>
struct Bodies {
  void (*cpu)(const Args&) = nullptr;  ///< Runs as a task of the stream.
};

[[noreturn]] void throw_no_body(const Stream& stream, const char* what);

/// Enqueues the body for the stream's device; a dry run drops it. Throws Error(kInvalid) for a
/// device kind that this build has no kernels for.
template <typename Args>
void dispatch(Stream& stream, const char* what, std::span<const Access> accesses,
              const Bodies<std::type_identity_t<Args>>& bodies, Args args) {
  switch (stream.kind()) {
    case DeviceKind::cpu:
      stream.launch(what, accesses, [body = bodies.cpu, args = std::move(args)] { body(args); });
      return;
    case DeviceKind::meta:  // to be seen by who watches
      stream.launch(what, accesses, {});
      return;
    case DeviceKind::cuda:
      break;
  }
  throw_no_body(stream, what);
}
template <typename Args>
void dispatch(Stream& stream, const char* what, std::initializer_list<Access> accesses,
              const Bodies<std::type_identity_t<Args>>& bodies, Args args) {
  dispatch(stream, what, std::span<const Access>(accesses.begin(), accesses.size()), bodies,
           std::move(args));
}

/// Throws Error(kInvalid) "what: <message parts>" unless `condition`. State expected and found. The
/// parts are evaluated in any case: write out the `if` where one of them is costly (describe).
template <typename... Parts>
void require(bool condition, const char* what, const Parts&... parts) {
  if (!condition) throw_invalid(concat(what, ": ", parts...));
}

/// "x is fp32 [2, 3]" for messages; "x is undefined".
std::string describe(const char* name, const ConstView& view);

/// `view` is defined and of a float dtype that kernels compute with (f32, bf16, f16).
void require_float(const char* what, const char* name, const ConstView& view);
/// Both views have the same number of elements; names both shapes.
void require_same_numel(const char* what, const char* name_a, const ConstView& a,
                        const char* name_b, const ConstView& b);
/// Both views have one dtype; names both.
void require_same_dtype(const char* what, const char* name_a, const ConstView& a,
                        const char* name_b, const ConstView& b);

}  // namespace zero3d::kernels
