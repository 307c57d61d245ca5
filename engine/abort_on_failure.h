// For work that every rank takes part in: a rank that fails within it tells the others why, at once
// and before its streams and groups are torn down. Not for calls that are refused before they
// begin.
#pragma once

#include <exception>

#include "zero3d/parallel/comm/communicator.h"

namespace zero3d {

/// body(); if it throws, `world` is aborted with the reason and the exception goes on.
template <typename Body>
auto abort_on_failure(Communicator& world, Body&& body) {
  try {
    return body();
  } catch (const CommAborted&) {
    throw;
  } catch (const std::exception& error) {
    world.abort(error.what());
    throw;
  } catch (...) {
    world.abort("an exception of unknown type");
    throw;
  }
}

}  // namespace zero3d
