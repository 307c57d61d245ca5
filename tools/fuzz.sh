#!/bin/bash
# Builds the libFuzzer targets under AddressSanitizer and UndefinedBehaviorSanitizer and runs each on its own seeds for a while.
# Usage: tools/fuzz.sh [SECONDS [FOLDER]]   (default: 60 each; FOLDER: more inputs for the configuration's target, run once each)
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
tools/packages.sh build test fuzz
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz >build/fuzz/build.log 2>&1 || { tail -n 40 build/fuzz/build.log; exit 1; }
for target in config manifest safetensors token_file torch_archive; do
  finds=build/fuzz/finds/$target
  mkdir -p "$finds"
  echo "== ${target}_fuzz for $seconds s"
  "build/fuzz/bin/${target}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$finds/" \
    "$finds" "tests/fuzz/seeds/$target" >"build/fuzz/$target.log" 2>&1 || { tail -n 40 "build/fuzz/$target.log"; exit 1; }
  tail -n 1 "build/fuzz/$target.log"
done
if [ $# -ge 2 ]; then
  build/fuzz/bin/config_fuzz -runs=0 "$2" 2>&1 | tail -n 1
fi
