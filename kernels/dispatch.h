// The only switch between back ends, and the argument checks that all kernels share. A public
// kernel function checks shapes on the host, fills a struct of plain pointers and extents
// (kernels/args), then dispatches: the back end's body runs later, in the stream's order.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/core/view.h"
#include "zero3d/device/device.h"
#include "zero3d/kernels/cuda/stream_state.h"

namespace zero3d::kernels {

/// One kernel's bodies, one per back end.
template <typename Args>
struct Bodies {
  void (*cpu)(const Args&) = nullptr;                       ///< Runs as a task of the stream.
  void (*cuda)(const Args&, cuda::NativeStream) = nullptr;  ///< Enqueues.
  /// Throws for an element that a GPU's body found out of range; null: its body looks for none.
  void (*refuse)(const Args&, const cuda::BadElement&) = nullptr;
};

/// Enqueues a GPU's body; `refuse`, where given, makes the error of the points behind the body if
/// that found an element out of range. Nobody waits for it.
void enqueue_on_gpu(Stream& stream, const char* what, std::span<const Access> accesses,
                    std::function<void(cuda::NativeStream)> body,
                    std::function<void(const cuda::BadElement&)> refuse);

/// Enqueues the body for the stream's kind; a dry run drops it.
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
    case DeviceKind::cuda: {
      std::function<void(const cuda::BadElement&)> refuse;
      if (bodies.refuse != nullptr)
        refuse = [refuse = bodies.refuse, args](const cuda::BadElement& bad) { refuse(args, bad); };
      enqueue_on_gpu(
          stream, what, accesses,
          [body = bodies.cuda, args = std::move(args)](cuda::NativeStream native) {
            body(args, native);
          },
          std::move(refuse));
      return;
    }
  }
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
