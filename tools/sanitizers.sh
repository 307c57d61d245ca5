#!/bin/bash
# Builds and runs the tests that gain most from a sanitizer: AddressSanitizer with UndefinedBehaviorSanitizer over the readers of
# files and everything that owns memory, ThreadSanitizer over everything that has threads. Ends within a time box: what does not fit
# is named and left out.
# Usage: tools/sanitizers.sh [MINUTES]   (default: 24)
set -euo pipefail
cd "$(dirname "$0")/.."

deadline=$((SECONDS + 60 * ${1:-24}))
tools/packages.sh build test

# check PRESET FOLDER...: builds and runs the tests of tests/FOLDER.
check() {
  local preset=$1 folder left
  shift
  cmake --preset "$preset" -DZERO3D_BUILD_TESTS=ON >/dev/null
  for folder in "$@"; do
    left=$((deadline - SECONDS))
    if [ "$left" -lt 60 ]; then
      echo "sanitizers: no time left for $preset of tests/$folder"
      continue
    fi
    local status=0
    timeout "$left" cmake --build "build/$preset" --target "tests/$folder/all" >"build/$preset/build.log" 2>&1 || status=$?
    if [ "$status" -eq 124 ]; then
      echo "sanitizers: no time left to build $preset of tests/$folder"
      continue
    elif [ "$status" -ne 0 ]; then
      tail -n 40 "build/$preset/build.log"
      return 1
    fi
    left=$((deadline - SECONDS))
    if [ "$left" -lt 30 ]; then
      echo "sanitizers: no time left to run $preset of tests/$folder"
      continue
    fi
    echo "== $preset: tests/$folder"
    timeout "$left" ctest --test-dir "build/$preset/tests/$folder" -j "$(nproc)" --output-on-failure --timeout 600 || status=$?
    if [ "$status" -eq 124 ]; then
      echo "sanitizers: no time left to finish $preset of tests/$folder"
    elif [ "$status" -ne 0 ]; then
      return 1
    fi
  done
}

export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
check asan core formats data device engine
check tsan device parallel engine
