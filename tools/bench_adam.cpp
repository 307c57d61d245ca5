// Times Adam updates of arrays that lie as the engine lays them in turn with null updates: as many
// bytes read and written, nothing computed, in the layout that is best for them. Medians of
// interleaved runs, so that whatever else the machine does hits both alike.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "bench.h"
#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/device/device.h"
#include "zero3d/device/parallel.h"
#include "zero3d/engine/zero/update_plan.h"
#include "zero3d/offload/record_layout.h"
#include "zero3d/offload/stagger.h"
#include "zero3d/optim/adam.h"

namespace zero3d::tools {
namespace {

DType parse_dtype(const std::string& name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    if (name == name_of(dtype)) return dtype;
  throw_invalid(concat("bench adam: expected fp32, bf16 or fp16, found \"", name, "\""));
}

std::int64_t parse_count(const std::string& text) {
  try {
    return parse_bytes(text);  // the same suffixes
  } catch (const Error&) {
    throw_invalid(concat("bench adam --numel: expected a count such as 16M or 1000000, found \"",
                         text, "\""));
  }
}

/// The arrays of one Adam update, as the engine lays them (the states, and the master beside a
/// copy, in records) and each for itself, and both ways to go over them.
class Subject {
 public:
  Subject(const AdamBenchOptions& options, std::int64_t numel, int threads)
      : rule_({.isa = options.isa.empty() ? std::nullopt
                                          : std::optional(kernels::parse_isa(options.isa))}),
        device_(make_cpu_device(device_options(threads))),
        stream_(device_->create_stream("update")) {
    UpdateSlice& whole = arrays_.emplace_back();
    whole.gradient = add(parse_dtype(options.gradient), numel, ArrayColour::gradient);
    const bool copies = options.copy != "none";
    if (copies) whole.copy = add(parse_dtype(options.copy), numel, ArrayColour::parameter);
    whole.master = add(DType::f32, numel, copies ? ArrayColour{0} : ArrayColour::parameter);
    for (const int colour : {1, 2})
      whole.states.push_back(add(DType::f32, numel, ArrayColour{colour}));
    add_records(numel, copies);
    for (const auto& tensor : tensors_) fill(tensor->view());
    fill(records_.view());
    stream_->synchronize();
    time_null();
  }

  double time_adam() {
    return time([&] { rule_.update(*stream_, GroupSettings{}, {++step_, 1.0f}, engine_); });
  }
  double time_null() {
    return time([&] { kernels::null_update(*stream_, arrays_, {}, rule_.isa()); });
  }
  /// Bytes read and written by one update.
  double bytes() const {
    const UpdateSlice& all = arrays_.front();
    const double updated =
        static_cast<double>(all.master.bytes() + all.states[0].bytes() + all.states[1].bytes());
    return 2 * updated + static_cast<double>(all.gradient.bytes() + all.copy.bytes());
  }
  std::string_view isa() const { return name_of(rule_.isa()); }

 private:
  static CpuDeviceOptions device_options(int threads) {
    CpuDeviceOptions options;
    options.threads = threads;
    return options;
  }

  View add(DType dtype, std::int64_t numel, ArrayColour colour) {
    tensors_.push_back(std::make_unique<StaggeredTensor>(device_->memory(), dtype, numel,
                                                         Category::other, colour));
    return tensors_.back()->view();
  }

  void add_records(std::int64_t numel, bool masters) {
    const std::int64_t padded = (numel + 1023) / 1024 * 1024;
    const RecordLayout layout(padded, tile_sizes(0).record,
                              std::vector<RecordPart>(masters ? 3 : 2));
    records_ =
        Tensor(device_->memory(), kNoStream, DType::f32,
               Shape{layout.bytes() / static_cast<std::int64_t>(sizeof(float))}, Category::other);
    const View bytes(records_.view().data(), DType::u8, Shape{layout.bytes()});
    const UpdateSlice& all = arrays_.front();
    for (std::int64_t begin = 0; begin < numel;) {
      const std::int64_t count = layout.run(begin, numel - begin);
      std::size_t part = 0;
      const auto next = [&] { return layout.view(bytes, 0, part++, begin, count); };
      UpdateSlice slice;
      slice.master = masters ? next() : all.master.flat(begin, count);
      slice.gradient = all.gradient.flat(begin, count);
      slice.states = {next(), next()};
      if (masters) slice.copy = all.copy.flat(begin, count);
      engine_.push_back(std::move(slice));
      begin += count;
    }
  }

  /// By the updating threads, so that they touch the pages first; 0.01, so that nothing is zero or
  /// subnormal.
  void fill(const View& view) {
    stream_->launch("fill", {writes(view)}, [view] {
      parallel_for(view.numel(), 1 << 15, [&](std::int64_t begin, std::int64_t end) {
        if (view.dtype() == DType::f32)
          std::fill(view.as<float>() + begin, view.as<float>() + end, 0.01f);
        else if (view.dtype() == DType::bf16)
          std::fill(view.as<bf16>() + begin, view.as<bf16>() + end, to_bf16(0.01f));
        else
          std::fill(view.as<f16>() + begin, view.as<f16>() + end, to_f16(0.01f));
      });
    });
  }

  template <typename Work>
  double time(const Work& work) {
    const std::int64_t begin = now_ns();
    work();
    stream_->synchronize();
    return static_cast<double>(now_ns() - begin) * 1e-9;
  }

  Adam rule_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<StaggeredTensor>> tensors_;
  Tensor records_;
  std::vector<UpdateSlice> arrays_;  ///< One: each array for itself.
  std::vector<UpdateSlice> engine_;
  std::int64_t step_ = 0;
};

void print_times(const char* name, const std::vector<double>& seconds) {
  std::printf("%s seconds:", name);
  for (const double value : seconds) std::printf(" %.9f", value);
  std::printf("\n");
}

void run_one(const AdamBenchOptions& options, std::int64_t numel, int threads) {
  Subject subject(options, numel, threads);
  std::vector<double> adam, null;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    null.push_back(subject.time_null());
    adam.push_back(subject.time_adam());
  }
  const double seconds = median(adam), ceiling = median(null);
  const double best = *std::min_element(adam.begin(), adam.end());
  const double best_ceiling = *std::min_element(null.begin(), null.end());
  std::printf(
      "adam %s numel %lld threads %d gradient %s copy %s: %.0f M parameters/s, %.2f GB/s; null "
      "update %.2f GB/s; "
      "ratio %.3f (best runs: %.2f GB/s, null %.2f GB/s, ratio %.3f)\n",
      std::string(subject.isa()).c_str(), static_cast<long long>(numel), threads,
      options.gradient.c_str(), options.copy.c_str(), static_cast<double>(numel) / seconds * 1e-6,
      subject.bytes() / seconds * 1e-9, subject.bytes() / ceiling * 1e-9, ceiling / seconds,
      subject.bytes() / best * 1e-9, subject.bytes() / best_ceiling * 1e-9, best_ceiling / best);
  if (options.print_times) {
    print_times("adam", adam);
    print_times("null", null);
  }
  std::fflush(stdout);
}

}  // namespace

void bench_adam(const AdamBenchOptions& options) {
  for (const std::string& numel : options.numels)
    for (const int threads : options.threads) run_one(options, parse_count(numel), threads);
}

}  // namespace zero3d::tools
