#!/bin/sh
# Builds and passes the whole test suite. Usage: tools/test.sh [PRESET]   (default: release; also debug, asan, tsan)
set -eu
cd "$(dirname "$0")/.."

preset=${1:-release}
tools/packages.sh build test
cmake --preset "$preset" -DZERO3D_BUILD_TESTS=ON >/dev/null
cmake --build "build/$preset"
ctest --preset "$preset" -j "$(nproc)"
