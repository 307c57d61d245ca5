// What the kernel tests share: a CPU device with its stream, tensors filled from fp64 values at any
// alignment, comparison in units of a dtype's precision, numeric gradients of fp64 references, and
// runs over every instruction set and number of threads.
#pragma once

#include <gtest/gtest.h>

#include <hwy/targets.h>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zero3d/core/random.h"
#include "zero3d/core/text.h"
#include "zero3d/device/device.h"
#include "zero3d/tests/support/host_access.h"

namespace zero3d::kernels::test {

using Values = std::vector<double>;

inline const std::vector<DType>& float_dtypes() {
  static const std::vector<DType> kAll = {DType::f32, DType::bf16, DType::f16};
  return kAll;
}

/// Half the distance of neighbouring values near 1.
inline double precision_of(DType dtype) {
  return dtype == DType::f32 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
}

inline double read_element(const std::byte* data, DType dtype, std::int64_t i) {
  const auto at = static_cast<std::size_t>(i);
  switch (dtype) {
    case DType::f32:
      return reinterpret_cast<const float*>(data)[at];
    case DType::bf16:
      return to_float(reinterpret_cast<const bf16*>(data)[at]);
    case DType::f16:
      return to_float(reinterpret_cast<const f16*>(data)[at]);
    case DType::f64:
      return reinterpret_cast<const double*>(data)[at];
    case DType::i32:
      return reinterpret_cast<const std::int32_t*>(data)[at];
    case DType::i64:
      return static_cast<double>(reinterpret_cast<const std::int64_t*>(data)[at]);
    default:
      throw_invalid("a test read another dtype");
  }
}

inline void write_element(std::byte* data, DType dtype, std::int64_t i, double value) {
  const auto at = static_cast<std::size_t>(i);
  const auto narrow = static_cast<float>(value);
  switch (dtype) {
    case DType::f32:
      reinterpret_cast<float*>(data)[at] = narrow;
      return;
    case DType::bf16:
      reinterpret_cast<bf16*>(data)[at] = to_bf16(narrow);
      return;
    case DType::f16:
      reinterpret_cast<f16*>(data)[at] = to_f16(narrow);
      return;
    case DType::f64:
      reinterpret_cast<double*>(data)[at] = value;
      return;
    case DType::i32:
      reinterpret_cast<std::int32_t*>(data)[at] = static_cast<std::int32_t>(value);
      return;
    case DType::i64:
      reinterpret_cast<std::int64_t*>(data)[at] = static_cast<std::int64_t>(value);
      return;
    case DType::u8:
      reinterpret_cast<std::uint8_t*>(data)[at] = static_cast<std::uint8_t>(std::abs(value));
      return;
    default:
      throw_invalid("a test wrote another dtype");
  }
}

/// A device, a stream and the tensors of one run. `offset`: elements by which each tensor starts
/// off its aligned allocation.
class Kit {
 public:
  explicit Kit(int threads = 1, std::int64_t offset = 0) : offset_(offset) {
    CpuDeviceOptions options;
    options.threads = threads;
    device_ = make_cpu_device(options);
    stream_ = device_->create_stream("compute");
  }
  Stream& stream() { return *stream_; }
  void sync() { stream_->synchronize(); }

  View filled(DType dtype, const Shape& shape, const std::function<double(std::int64_t)>& value) {
    const std::size_t size = size_of(dtype);
    const auto count = static_cast<std::size_t>(shape.numel() + offset_);
    buffers_.emplace_back(device_->memory(), kNoStream, count * size, Category::other);
    const View view(buffers_.back().data() + static_cast<std::size_t>(offset_) * size, dtype,
                    shape);
    zero3d::test::upload(*stream_, view, [&](const View& host) {
      for (std::int64_t i = 0; i < shape.numel(); ++i)
        write_element(host.data(), dtype, i, value(i));
    });
    return view;
  }
  View from(DType dtype, const Shape& shape, const Values& values) {
    return filled(dtype, shape,
                  [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
  }
  /// Normal values times `scale`, the same for the same `name`.
  View random(DType dtype, const Shape& shape, const char* name, double scale = 1) {
    const std::uint64_t stream = hash_name(name, std::strlen(name));
    return filled(dtype, shape, [&](std::int64_t i) {
      return scale * random_normal(1, stream, static_cast<std::uint64_t>(i));
    });
  }
  /// Filled with a value that no result should have.
  View output(DType dtype, const Shape& shape) {
    return filled(dtype, shape, [](std::int64_t) { return -12345.0; });
  }
  /// The elements, after all work enqueued.
  Values read(const ConstView& view) {
    const Readback copy = zero3d::test::read_back(*stream_, view);
    const ConstView host = copy.wait();
    Values values(static_cast<std::size_t>(view.numel()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = read_element(host.data(), view.dtype(), static_cast<std::int64_t>(i));
    return values;
  }
  std::string bits(const ConstView& view) {
    const Readback copy = zero3d::test::read_back(*stream_, view);
    return {reinterpret_cast<const char*>(copy.wait().data()), view.bytes()};
  }
  /// The message of the stream's error; empty if it has none.
  std::string failure() {
    try {
      sync();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      return error.what();
    }
    return "";
  }

 private:
  std::int64_t offset_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> buffers_;
};

/// |got - want| <= ulps * precision * |want| + floor, elementwise; reports the worst element.
inline void expect_close(const Values& got, const Values& want, DType dtype, double ulps,
                         double floor, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double allowed = ulps * precision_of(dtype) * std::abs(want[i]) + floor;
    double excess = std::abs(got[i] - want[i]) / allowed;
    if (std::isnan(excess)) excess = HUGE_VAL;
    if (excess > worst) {
      worst = excess;
      at = i;
    }
  }
  EXPECT_LE(worst, 1) << what << " " << name_of(dtype) << ": element " << at << " is " << got[at]
                      << ", expected " << want[at];
}

/// d f / d x by central differences of an fp64 function.
inline Values numeric_gradient(const Values& x, const std::function<double(const Values&)>& f,
                               double step = 1e-5) {
  Values gradient(x.size());
  Values moved = x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    moved[i] = x[i] + step;
    const double up = f(moved);
    moved[i] = x[i] - step;
    gradient[i] = (up - f(moved)) / (2 * step);
    moved[i] = x[i];
  }
  return gradient;
}

inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Runs `body` once per instruction set that the kernels are compiled for and this machine has.
inline void for_each_target(const std::function<void()>& body) {
  const std::int64_t supported = hwy::SupportedTargets();
  for (const std::int64_t target : {HWY_AVX3, HWY_AVX2, HWY_SCALAR}) {
    if ((supported & target) == 0 && target != HWY_SCALAR) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

/// `run` gives the bits of its results; they must not depend on threads or alignment.
inline void expect_same_bits(const std::function<std::string(Kit&)>& run, const std::string& what) {
  Kit first(1, 0);
  const std::string want = run(first);
  for (const int threads : {1, 2, 3}) {
    for (const std::int64_t offset : {0, 1, 3}) {
      Kit kit(threads, offset);
      EXPECT_TRUE(run(kit) == want)
          << what << ": other bits with " << threads << " threads at offset " << offset;
    }
  }
}

}  // namespace zero3d::kernels::test
