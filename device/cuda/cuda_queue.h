// A CUDA stream as the queue behind a stream's worker, and its points: CUDA events from a pool.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "zero3d/device/cuda/cuda_call.h"
#include "zero3d/device/cuda/cuda_stream.h"
#include "zero3d/device/native_queue.h"

namespace zero3d {

/// Events of one device, used again and again. Points keep it alive.
class CudaEventPool {
 public:
  explicit CudaEventPool(int device) : device_(device) {}
  ~CudaEventPool();
  CudaEventPool(const CudaEventPool&) = delete;
  CudaEventPool& operator=(const CudaEventPool&) = delete;

  int device() const { return device_; }
  /// The calling thread's device is the pool's.
  cudaEvent_t take();
  void give_back(cudaEvent_t event);

 private:
  const int device_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

/// What is asked of the work before a point. Never changes once it is shared.
using CudaChecks = std::vector<CudaCheck>;

class CudaPoint final : public NativePoint {
 public:
  CudaPoint(std::shared_ptr<CudaEventPool> pool, std::shared_ptr<const CudaChecks> checks)
      : pool_(std::move(pool)), checks_(std::move(checks)), event_(pool_->take()) {}
  ~CudaPoint() override { pool_->give_back(event_); }
  CudaPoint(const CudaPoint&) = delete;
  CudaPoint& operator=(const CudaPoint&) = delete;

  bool passed() override;
  cudaEvent_t event() const { return event_; }
  const CudaChecks& checks() const { return *checks_; }

 private:
  const std::shared_ptr<CudaEventPool> pool_;
  const std::shared_ptr<const CudaChecks> checks_;
  const cudaEvent_t event_;
};

class CudaQueue final : public NativeQueue {
 public:
  explicit CudaQueue(std::shared_ptr<CudaEventPool> pool);
  ~CudaQueue() override;
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  void enter() override;
  void settle() override;
  bool wait(NativePoint& point) override;
  std::shared_ptr<NativePoint> record() override;
  cudaStream_t stream() const { return stream_; }
  /// Points recorded from here on call these too.
  void add(const CudaChecks& checks);

 private:
  const std::shared_ptr<CudaEventPool> pool_;
  std::shared_ptr<const CudaChecks> checks_ = std::make_shared<CudaChecks>();
  cudaStream_t stream_ = nullptr;
};

}  // namespace zero3d
