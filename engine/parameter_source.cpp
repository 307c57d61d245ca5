// Initial values drawn from a seed: pure functions of (seed, name, element).
#include "zero3d/engine/parameter_source.h"

#include <algorithm>
#include <vector>

#include "zero3d/core/random.h"
#include "zero3d/formats/convert.h"

namespace zero3d {
namespace {

constexpr std::int64_t kChunk = 4096;

class InitialValuesSource final : public ParameterSource {
 public:
  explicit InitialValuesSource(std::uint64_t seed) : seed_(seed) {}

  void read(const ParameterSpec& parameter, std::span<const GlobalRun> runs,
            const View& dst) const override {
    std::vector<float> values(static_cast<std::size_t>(std::min(kChunk, dst.numel())));
    for (const GlobalRun& run : runs) {
      for (std::int64_t done = 0; done < run.count; done += kChunk) {
        const std::int64_t count = std::min(kChunk, run.count - done);
        parameter.initial(seed_, run.global_first + done, count, values.data());
        convert_elements(DType::f32, reinterpret_cast<const std::byte*>(values.data()), dst.dtype(),
                         dst.flat(run.offset + done, count).data(),
                         static_cast<std::size_t>(count));
      }
    }
  }

 private:
  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<ParameterSource> make_initial_values_source(std::uint64_t seed) {
  return std::make_unique<InitialValuesSource>(seed);
}

InitialValues normal_values(std::string name, float stddev) {
  const std::uint64_t stream = hash_name(name.data(), name.size());
  return
      [stream, stddev](std::uint64_t seed, std::int64_t first, std::int64_t count, float* values) {
        for (std::int64_t i = 0; i < count; ++i) {
          values[i] = stddev * random_normal(seed, stream, static_cast<std::uint64_t>(first + i));
        }
      };
}

InitialValues constant_values(float value) {
  return [value](std::uint64_t, std::int64_t, std::int64_t count, float* values) {
    std::fill_n(values, count, value);
  };
}

}  // namespace zero3d
