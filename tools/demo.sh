#!/bin/sh
# The main job from nothing: installs what is missing, builds, and trains a small LLaMA-style model on English prose with two
# data-parallel ranks; ends with a loss curve, an exported model folder and a sample of its text. Safe to repeat.
# Usage: tools/demo.sh [OUTPUT-FOLDER]   (default: build/demo)
set -eu
out=$(realpath -m -- "${1:-$(dirname "$0")/../build/demo}")
cd "$(dirname "$0")/.."

tools/packages.sh build demo
# A folder that the tests have configured keeps its settings; from nothing, only the command is built.
[ -f build/release/build.ninja ] || cmake --preset release -DZERO3D_BUILD_TESTS=OFF -DZERO3D_BUILD_BENCH=OFF >/dev/null
cmake --build build/release --target zero3d_cli

mkdir -p "$out"
[ -s "$out/text.txt" ] || tools/demo_text.sh "$out/text.txt"
build/release/bin/zero3d train \
  --config configs/tiny_llama.json --model llama-tiny --data "$out/text.txt" \
  --ranks 2 --seq-len 128 --steps 1500 --seed 7 \
  --metrics "$out/metrics.jsonl" --export "$out/model" --generate "In the beginning" --temperature 0.6
