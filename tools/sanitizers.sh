#!/bin/bash
# Builds and runs the tests that gain most from a sanitizer: AddressSanitizer with UndefinedBehaviorSanitizer over the readers of
# files and everything that owns memory, ThreadSanitizer over everything that orders threads. Which tests these are stands at each
# zero3d_test, as SANITIZE. All of it ends within a time box; what does not fit fails.
# Usage: tools/sanitizers.sh [MINUTES]   (default: 24)
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=${1:-24}
deadline=$((SECONDS + 60 * minutes))
tools/packages.sh build test

# timed WHAT COMMAND...: runs it in what is left of the time, and says how long it took.
timed() {
  local what=$1 begin=$SECONDS left=$((deadline - SECONDS)) status=0
  shift
  if [ "$left" -gt 0 ]; then timeout "$left" "$@" || status=$?; else status=124; fi
  if [ "$status" -eq 124 ]; then echo "sanitizers: no time left to $what within $minutes minutes" >&2; fi
  echo "== $what: $((SECONDS - begin)) s"
  return "$status"
}

# check PRESET: builds and runs its part of the tests.
check() {
  local preset=$1 log=build/$1/build.log
  cmake --preset "$preset" -DZERO3D_BUILD_TESTS=ON >/dev/null
  if ! timed "build the $preset tests" cmake --build "build/$preset" --target sanitized_tests >"$log"; then
    tail -n 40 "$log"
    return 1
  fi
  tail -n 1 "$log"
  timed "run the $preset tests" ctest --test-dir "build/$preset" -L sanitized -j "$(nproc)" --output-on-failure
}

export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
check asan
check tsan
