#include "stop_signal.h"

#include <csignal>

namespace zero3d::tools {
namespace {

volatile std::sig_atomic_t caught = 0;

void note(int signal) {
  if (caught != 0) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    return;
  }
  caught = signal;
}

void install(int signal) {
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void catch_stop_signals() {
  install(SIGINT);
  install(SIGTERM);
  install(SIGHUP);
}

int stop_signal() { return caught; }

}  // namespace zero3d::tools
