#!/bin/bash
# Builds the CUDA back end and runs its tests without a GPU, on an emulator of the CUDA runtime: libraries that take the place of
# libcudart and its kin. ZERO3D_CUDA_EMULATOR is its folder, whose Makefile builds them into $BUILD/lib. Without it nothing is done.
# The tests run as they are, and again with blocks and operations in random order and late, and with reads of memory that nobody wrote
# as errors; stream-order races end a run in each. On a machine with a GPU: ctest --test-dir build/cuda -L cuda.
# Usage: tools/cuda_test.sh [PRESET]   (default: cuda)
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-cuda}
if [ -z "${ZERO3D_CUDA_EMULATOR:-}" ]; then
  echo "cuda_test: skipped; ZERO3D_CUDA_EMULATOR names no emulator"
  exit 0
fi
emulator=$PWD/build/cuda-emulator
make -s -C "$ZERO3D_CUDA_EMULATOR" -j "$(nproc)" BUILD="$emulator" CUDA_HOME="${CUDA_HOME:-/usr/local/cuda}"
cmake --preset "$preset" >/dev/null
cmake --build "build/$preset" --target cuda_tests

# run WHAT VARIABLE=VALUE...: the tests with variables of the emulator.
run() {
  echo "== CUDA tests $1"
  env LD_LIBRARY_PATH="$emulator/lib" CUDA_EMULATOR_LEAKS=abort "${@:2}" \
    ctest --test-dir "build/$preset" -L '^cuda$' -j "$(nproc)" --output-on-failure
}
run "as they are"
run "in random order and late" CUDA_EMULATOR_ORDER=random:7 CUDA_EMULATOR_JITTER=200:7
run "with reads of what nobody wrote as errors" CUDA_EMULATOR_INIT=abort
