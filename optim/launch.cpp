#include "zero3d/optim/launch.h"

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/parallel.h"

namespace zero3d {
namespace {

/// Elements of one chunk: large enough to hide a task's start, small enough to balance; a multiple
/// of the norm's block.
constexpr std::int64_t kChunk = 32768;

struct Chunk {
  std::size_t slice;
  std::int64_t begin, end;
};

bool takes(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

simd::Array array_of(const View& view, std::int64_t numel, const char* role) {
  ZERO3D_CHECK(view.numel() == numel, concat("update slice: ", role, " has ", view.numel(),
                                             " elements where its slice has ", numel));
  ZERO3D_CHECK(takes(view.dtype()), concat("update slice: ", role, " is ", name_of(view.dtype()),
                                           "; expected fp32, bf16 or fp16"));
  return {view.data(), view.dtype()};
}

simd::ElementArrays arrays_of(const LaunchShape& shape, const UpdateSlice& slice,
                              const View* extra) {
  const std::int64_t numel = slice.gradient.numel();
  simd::ElementArrays arrays;
  if (shape.master != LaunchShape::Master::none)
    arrays.master = array_of(slice.master, numel, "master");
  // The loops only read it; Array has one kind of pointer.
  arrays.gradient = array_of(View(const_cast<std::byte*>(slice.gradient.data()),
                                  slice.gradient.dtype(), slice.gradient.shape()),
                             numel, "gradient");
  ZERO3D_CHECK(
      slice.states.size() >= shape.states,
      concat("update slice: ", slice.states.size(), " states where the rule keeps ", shape.states));
  for (std::size_t s = 0; s < shape.states; ++s)
    arrays.states[s] = array_of(slice.states[s], numel, "state");
  if (extra) arrays.states[shape.states] = array_of(*extra, numel, "output");
  if (slice.copy.defined() && shape.master == LaunchShape::Master::update)
    arrays.copy = array_of(slice.copy, numel, "copy");
  return arrays;
}

void add_accesses(std::vector<Access>& accesses, const LaunchShape& shape, const UpdateSlice& slice,
                  const View* extra) {
  if (shape.master == LaunchShape::Master::read) accesses.push_back(reads(slice.master));
  if (shape.master == LaunchShape::Master::update) {
    accesses.push_back(writes(slice.master));
    accesses.push_back(writes(slice.copy));
  }
  accesses.push_back(reads(slice.gradient));
  for (std::size_t s = 0; s < shape.states; ++s) accesses.push_back(writes(slice.states[s]));
  if (extra) accesses.push_back(writes(*extra));
}

}  // namespace

void launch_loop(Stream& stream, const std::string& what, const LaunchShape& shape,
                 std::span<const UpdateSlice> slices, std::span<const View> extra, SliceLoop loop) {
  ZERO3D_CHECK(extra.empty() || extra.size() == slices.size(), "one output per slice");
  std::vector<simd::ElementArrays> arrays;
  std::vector<Access> accesses;
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const View* output = extra.empty() ? nullptr : &extra[i];
    arrays.push_back(arrays_of(shape, slices[i], output));
    add_accesses(accesses, shape, slices[i], output);
    const std::int64_t numel = slices[i].gradient.numel();
    for (std::int64_t begin = 0; begin < numel; begin += kChunk)
      chunks.push_back({i, begin, std::min(numel, begin + kChunk)});
  }
  for (const ConstView& view : shape.reads_too) accesses.push_back(reads(view));
  stream.launch(what, std::span<const Access>(accesses),
                [arrays = std::move(arrays), chunks = std::move(chunks), loop = std::move(loop)] {
                  parallel_for(static_cast<std::int64_t>(chunks.size()), 1,
                               [&](std::int64_t begin, std::int64_t end) {
                                 for (std::int64_t c = begin; c < end; ++c) {
                                   const Chunk& chunk = chunks[static_cast<std::size_t>(c)];
                                   loop(chunk.slice, arrays[chunk.slice], chunk.begin, chunk.end);
                                 }
                               });
                });
}

}  // namespace zero3d
