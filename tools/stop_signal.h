// SIGTERM, SIGINT and SIGHUP as a wish to save, or to clear drives, and leave: the run looks for it
// after each step. A second one ends the process at once, as it would have without this.
#pragma once

namespace zero3d::tools {

/// The exit code of a run that was asked to leave, saved, and can be resumed.
inline constexpr int kStoppedExit = 3;

/// From here on, until the end of the process.
void catch_stop_signals();
/// The signal that asked this process to leave; 0: none has.
int stop_signal();

}  // namespace zero3d::tools
