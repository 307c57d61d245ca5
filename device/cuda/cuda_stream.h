// How the bodies of kernels reach the CUDA stream behind a stream of a CUDA device. Names no CUDA
// header, so that the switch between back ends can include it in every build; one without CUDA has
// a function that says how to build with it.
#pragma once

#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "zero3d/device/stream.h"

struct CUstream_st;

namespace zero3d {

/// cudaStream_t, by the name that needs no CUDA header.
using CudaStreamHandle = CUstream_st*;

/// Enqueues work of the GPU, as Stream::launch does a body of the CPU. The stream's own thread,
/// whose current device is the stream's, calls `issue` once all that was enqueued before has been
/// handed to CUDA: it launches kernels and starts copies on the handle, and returns without waiting
/// for them. It may block where that means to wait for other ranks' threads, never for what is
/// enqueued later. An error that it throws, or leaves behind as CUDA's last error, is the stream's.
/// A kernel's arguments are copied by its launch: `issue` and what it holds end with the call.
///
/// Throws Error(kInvalid) when `stream` is not of a CUDA device or this build has no CUDA, and
/// Error(kHazard) as launch() does.
void enqueue_cuda(Stream& stream, std::string what, std::span<const Access> accesses,
                  std::function<void(CudaStreamHandle)> issue);
inline void enqueue_cuda(Stream& stream, std::string what, std::initializer_list<Access> accesses,
                         std::function<void(CudaStreamHandle)> issue) {
  enqueue_cuda(stream, std::move(what), std::span<const Access>(accesses.begin(), accesses.size()),
               std::move(issue));
}

/// For `issue`: what it hands to the stream from here on comes after `event`, which is done or has
/// been handed to CUDA. Throws the error that the event carries.
void wait_on_cuda(CudaStreamHandle stream, const Event& event);

/// For `issue`, about what it hands on: a point of the stream that is recorded later, or of one
/// that waited for such a point, calls `check` when it is found to be passed, on whichever thread
/// finds it; what that throws is the point's error. It does not block. For what kernels find of
/// their input (a token outside the table), copied to host memory on the stream. The same check
/// counts once.
using CudaCheck = std::shared_ptr<const std::function<void()>>;
void check_at_points(const CudaCheck& check);

/// As Stream::then, but once all work enqueued so far has been handed to CUDA, over or not; the
/// error is of the handing. For streams of a CUDA device.
void then_handed_on(Stream& stream, std::function<void(const std::exception_ptr&)> next);

}  // namespace zero3d
