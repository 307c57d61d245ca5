// The only switch between back ends, and the argument checks that all kernels share. A public
// kernel function checks shapes on the host, then dispatches: the back end's code runs later, as
// one task of the stream.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>

#include "zero3d/core/text.h"
#include "zero3d/core/view.h"
#include "zero3d/device/stream.h"

namespace zero3d::kernels {

/// Enqueues `cpu` on a stream of a CPU device. Throws Error(kInvalid) for a device kind that this
/// build has no kernels for.
void dispatch(Stream& stream, const char* what, std::span<const Access> accesses,
              std::function<void()> cpu);
inline void dispatch(Stream& stream, const char* what, std::initializer_list<Access> accesses,
                     std::function<void()> cpu) {
  dispatch(stream, what, std::span<const Access>(accesses.begin(), accesses.size()),
           std::move(cpu));
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
