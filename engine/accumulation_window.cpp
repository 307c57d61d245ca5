#include "zero3d/engine/accumulation_window.h"

#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {

AccumulationWindow::MicroStep AccumulationWindow::next_forward() const {
  require_no_forward("forward()");
  if (last_) {
    throw_invalid(
        "forward() after the last micro-batch of an accumulation window: call step() first");
  }
  return {index_, managed_ && at_boundary()};
}

void AccumulationWindow::forward(const MicroStep& step, std::int64_t tokens) {
  forward_open_ = true;
  last_ = step.last;
  tokens_ += tokens;
}

void AccumulationWindow::backward() {
  if (!forward_open_)
    throw_invalid(
        "backward() without a forward(): call forward(batch) first, once for each backward");
  forward_open_ = false;
  ++index_;
}

void AccumulationWindow::whole(std::int64_t tokens) {
  require_start();
  index_ = static_cast<int>(micro_batches_);
  tokens_ = tokens;
  if (managed_) state_.micro_steps += micro_batches_ - 1;
}

std::optional<AccumulationWindow::Ended> AccumulationWindow::step() {
  if (in_scope_)
    throw_invalid("step() inside no_sync or coalesce_grad_reduction: leave the scope first");
  require_no_forward("step()");
  if (index_ == stepped_) throw_invalid("step() without a backward() since the last one");
  const bool ends = at_boundary();
  ++state_.micro_steps;
  stepped_ = index_;
  if (!ends) return std::nullopt;
  last_ = false;
  stepped_ = 0;
  return Ended{std::exchange(index_, 0), std::exchange(tokens_, 0)};
}

bool AccumulationWindow::at_boundary() const {
  if (in_scope_) return false;
  return boundary_.value_or(!managed_ || (state_.micro_steps + 1 - first_) % micro_batches_ == 0);
}

void AccumulationWindow::set_boundary(bool boundary) {
  if (!managed_) throw_invalid("accumulation is not managed: every step() is a boundary");
  boundary_ = boundary;
}

void AccumulationWindow::enter_scope(const char* scope) {
  if (in_scope_) throw_invalid(concat(scope, " inside another scope: they do not nest"));
  in_scope_ = true;
}

void AccumulationWindow::require_no_forward(const char* call) const {
  if (!forward_open_) return;
  throw_invalid(concat(call,
                       " between forward() and its backward(): finish the micro-batch first; "
                       "eval_batch takes losses without gradients"));
}

void AccumulationWindow::require_start() const {
  if (at_start()) return;
  throw_invalid(
      "train_batch within an accumulation window: finish it with forward, backward and step");
}

bool AccumulationWindow::at_start() const {
  return index_ == 0 && !forward_open_ &&
         (!managed_ || (state_.micro_steps - first_) % micro_batches_ == 0);
}

}  // namespace zero3d
