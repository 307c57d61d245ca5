#include "zero3d/device/point_watcher.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace zero3d {
namespace {

class PointWatcher {
 public:
  PointWatcher() {
    std::thread([this] { work(); }).detach();  // with the process, as what it is part of
  }

  void add(std::shared_ptr<const EventState> event) {
    {
      const std::lock_guard lock(mutex_);
      added_.push_back(std::move(event));
    }
    filled_.notify_one();
  }

 private:
  [[noreturn]] void work() {
    pthread_setname_np(pthread_self(), "point watcher");
    std::vector<std::shared_ptr<const EventState>> watched;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        if (watched.empty()) filled_.wait(lock, [this] { return !added_.empty(); });
        for (auto& event : added_) watched.push_back(std::move(event));
        added_.clear();
      }
      if (std::erase_if(watched, [](const auto& event) { return event->done(); }) == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<std::shared_ptr<const EventState>> added_;
};

}  // namespace

void watch_point(std::shared_ptr<const EventState> event) {
  static PointWatcher& watcher = *new PointWatcher;  // its thread may outlive statics
  watcher.add(std::move(event));
}

}  // namespace zero3d
