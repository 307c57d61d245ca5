// Updates of an offloaded optimizer at two paces: a few blocks of each parameter, those with the
// largest gradients, on the device at every step, all others on the host once in several. Plain
// data.
#pragma once

#include <cstdint>

namespace zero3d {

struct DelayedUpdateSettings {
  std::int64_t update_every = 0;    ///< Applied steps of a round, at whose end the rest is updated
                                    ///< with the mean of its gradients; 0: all of it at every step.
  double share = 0.1;               ///< Of a parameter's blocks: updated at every step, rounded up.
  std::int64_t select_every = 0;    ///< Steps between choices of these; 0: chosen once.
  std::int64_t select_epochs = 0;   ///< Above 0: so many epochs are select_every, ...
  std::int64_t steps_of_epoch = 0;  ///< ... of so many steps; the trainer knows how many.
  bool overlap = false;      ///< The rest is updated while the next round runs; its parameters take
                             ///< effect when that ends.
  std::int64_t warm_up = 0;  ///< The first steps update everything.

  bool on() const { return update_every > 0; }
  std::int64_t steps_between_choices() const {
    return select_epochs > 0 ? select_epochs * steps_of_epoch : select_every;
  }
};

/// What of a rank's shards a step has updated, in elements with padding.
struct UpdateUse {
  std::int64_t on_device = 0;
  std::int64_t on_host = 0;  ///< Or begun there.
  std::int64_t waiting = 0;  ///< Steps whose gradients of the rest wait for the end of their round.
  bool chosen = false;       ///< The blocks of the device were chosen anew.
};

}  // namespace zero3d
