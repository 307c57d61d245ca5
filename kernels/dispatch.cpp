// The switch between back ends and the checks that kernels share.
#include "zero3d/kernels/dispatch.h"

#include <memory>

#include "zero3d/device/cuda/cuda_stream.h"

namespace zero3d::kernels {

void enqueue_on_gpu(Stream& stream, const char* what, std::span<const Access> accesses,
                    std::function<void(cuda::NativeStream)> body,
                    std::function<void(const cuda::BadElement&)> refuse) {
  if (!refuse) return enqueue_cuda(stream, what, accesses, std::move(body));
  enqueue_cuda(stream, what, accesses,
               [body = std::move(body), refuse = std::move(refuse)](cuda::NativeStream native) {
                 cuda::StreamState& state = cuda::state_of(native);
                 auto copy = state.begin_check();
                 body(native);
                 state.end_check();
                 check_at_points(std::make_shared<const std::function<void()>>(
                     [copy = std::move(copy), refuse] {
                       if (*copy != cuda::kNoBadElement) refuse(cuda::bad_element(*copy));
                     }));
               });
}

std::string describe(const char* name, const ConstView& view) {
  if (!view.defined()) return concat(name, " is undefined");
  return concat(name, " is ", name_of(view.dtype()), " ", to_string(view.shape()));
}

void require_float(const char* what, const char* name, const ConstView& view) {
  const DType dtype = view.dtype();
  if (view.defined() && (dtype == DType::f32 || is_16bit(dtype))) return;
  throw_invalid(
      concat(what, ": expected a view of fp32, bf16 or fp16, but ", describe(name, view)));
}

void require_same_numel(const char* what, const char* name_a, const ConstView& a,
                        const char* name_b, const ConstView& b) {
  if (a.numel() == b.numel()) return;
  throw_invalid(concat(what, ": expected equal numbers of elements, but ", describe(name_a, a),
                       " and ", describe(name_b, b)));
}

void require_same_dtype(const char* what, const char* name_a, const ConstView& a,
                        const char* name_b, const ConstView& b) {
  if (a.dtype() == b.dtype()) return;
  throw_invalid(concat(what, ": expected one dtype, but ", describe(name_a, a), " and ",
                       describe(name_b, b)));
}

}  // namespace zero3d::kernels
