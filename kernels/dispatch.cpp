// The switch between back ends and the checks that kernels share.
#include "zero3d/kernels/dispatch.h"

namespace zero3d::kernels {

void throw_no_body(const Stream& stream, const char* what) {
  throw_invalid(concat(what, ": stream ", stream.name(), " belongs to ",
                       stream.device().description(),
                       ", but this build has kernels for CPU devices only; create the stream on a "
                       "device of make_cpu_device"));
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
