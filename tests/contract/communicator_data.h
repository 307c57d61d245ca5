// Values for tests of communicators: what each rank puts in, and what a reduction must make of it,
// one scalar at a time.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zero3d/core/half.h"
#include "zero3d/core/random.h"
#include "zero3d/core/text.h"
#include "zero3d/device/device.h"
#include "zero3d/parallel/comm/communicator.h"
#include "zero3d/tests/support/host_access.h"

namespace zero3d::contract {

/// Bytes on a device, written and read by the host.
class Data {
 public:
  Data(Device& device, DType dtype, std::int64_t numel)
      : device_(device),
        tensor_(device.memory(), kNoStream, dtype, Shape{numel}, Category::other) {}
  /// For an operation: what is read afterwards is read anew.
  View view() const {
    bits_.clear();
    return tensor_.view();
  }
  View flat(std::int64_t begin, std::int64_t count) const { return view().flat(begin, count); }
  std::int64_t numel() const { return tensor_.numel(); }

  void set(std::int64_t i, float value) {
    const auto stream = device_.create_stream("upload");
    test::upload(*stream, flat(i, 1),
                 [&](const View& host) { store(host.data(), host.dtype(), 0, value); });
  }
  /// Raw bits of element `i`: 16-bit types in the low half.
  std::uint32_t bits(std::int64_t i) const {
    if (bits_.empty()) bits_ = all_bits();
    return bits_[static_cast<std::size_t>(i)];
  }
  void fill(const std::function<float(std::int64_t)>& value) {
    const auto stream = device_.create_stream("upload");
    test::upload(*stream, view(), [&](const View& host) {
      for (std::int64_t i = 0; i < numel(); ++i) store(host.data(), host.dtype(), i, value(i));
    });
  }
  std::vector<std::uint32_t> all_bits() const {
    const auto stream = device_.create_stream("read back");
    const Readback copy(*stream, view());
    const std::byte* data = copy.wait().data();
    std::vector<std::uint32_t> all;
    for (std::int64_t i = 0; i < numel(); ++i) all.push_back(load_bits(data, view().dtype(), i));
    return all;
  }

  static void store(std::byte* data, DType dtype, std::int64_t i, float value) {
    if (dtype == DType::bf16) {
      reinterpret_cast<bf16*>(data)[i] = to_bf16(value);
    } else if (dtype == DType::f16) {
      reinterpret_cast<f16*>(data)[i] = to_f16(value);
    } else {
      reinterpret_cast<float*>(data)[i] = value;
    }
  }
  static std::uint32_t load_bits(const std::byte* data, DType dtype, std::int64_t i) {
    if (dtype == DType::f32) return reinterpret_cast<const std::uint32_t*>(data)[i];
    return reinterpret_cast<const std::uint16_t*>(data)[i];
  }

 private:
  Device& device_;
  Tensor tensor_;
  mutable std::vector<std::uint32_t> bits_;  ///< As read last.
};

/// `value` rounded to `dtype`, in fp32.
inline float rounded(DType dtype, float value) {
  if (dtype == DType::bf16) return to_float(to_bf16(value));
  if (dtype == DType::f16) return to_float(to_f16(value));
  return value;
}
inline std::uint32_t bits_of(DType dtype, float value) {
  if (dtype == DType::bf16) return to_bf16(value).bits;
  if (dtype == DType::f16) return to_f16(value).bits;
  return std::bit_cast<std::uint32_t>(value);
}

/// Element i of rank r's input: magnitudes so far apart that the order of a sum shows in its bits.
inline float value_of(int rank, std::int64_t i) {
  const auto words =
      philox4x32({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(rank), 0, 0}, {17, 4});
  const float fraction = to_uniform(words[0]) - 0.5f;
  return std::ldexp(fraction, static_cast<int>(words[1] % 12));
}

/// The formula of ReduceOptions, one scalar at a time, over ranks' inputs of dtype `in`.
inline std::uint32_t reduced_bits(int size, std::int64_t i, DType in, DType out,
                                  const ReduceOptions& options) {
  const DType wire = options.wire.value_or(DType::f32);
  float sum = 0;
  for (int r = 0; r < size; ++r) {
    const float sent = rounded(wire, rounded(in, value_of(r, i)) * options.scale_in);
    sum = r == 0 ? sent : sum + sent;
  }
  return bits_of(out, rounded(wire, sum * options.scale_out));
}

inline bool is_nan_bits(DType dtype, std::uint32_t bits) {
  if (dtype == DType::bf16) return std::isnan(to_float(bf16{static_cast<std::uint16_t>(bits)}));
  if (dtype == DType::f16) return std::isnan(to_float(f16{static_cast<std::uint16_t>(bits)}));
  return std::isnan(std::bit_cast<float>(bits));
}

inline const std::vector<DType>& float_dtypes() {
  static const std::vector<DType> all{DType::f32, DType::bf16, DType::f16};
  return all;
}
inline std::vector<ReduceOptions> reduce_cases() {
  std::vector<ReduceOptions> cases;
  for (const auto& wire : {std::optional<DType>(), std::optional<DType>(DType::f32),
                           std::optional<DType>(DType::bf16), std::optional<DType>(DType::f16)})
    for (const auto& [in, out] : {std::pair(1.0f, 1.0f), std::pair(0.5f, 1.0f),
                                  std::pair(1.0f, 1.0f / 3), std::pair(0.7f, 1.3f)})
      cases.push_back({in, out, wire});
  return cases;
}
inline std::string show(const ReduceOptions& o) {
  return concat("scale_in ", o.scale_in, ", scale_out ", o.scale_out, ", wire ",
                o.wire ? name_of(*o.wire) : "none");
}

}  // namespace zero3d::contract
