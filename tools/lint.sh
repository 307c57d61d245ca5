#!/bin/bash
# The table of mutations against the code, then clang-format and clang-tidy over the tree, or over the given files. Needs clang-format, clang-tidy and a configured release build.
# Usage: tools/lint.sh [--format-only] [FILE...]
set -euo pipefail
cd "$(dirname "$0")/.."

format_only=no
if [ "${1:-}" = --format-only ]; then format_only=yes; shift; fi
for tool in clang-format clang-tidy; do
  command -v "$tool" >/dev/null || { echo "$0: needs $tool: apt-get install $tool" >&2; exit 1; }
done

tools/mutate.py --check
if [ $# -gt 0 ]; then files=("$@"); else mapfile -t files < <(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh'); fi
clang-format --dry-run --Werror "${files[@]}"
echo "clang-format: ${#files[@]} files"
if [ "$format_only" = yes ]; then exit 0; fi

[ -f build/release/compile_commands.json ] || cmake --preset release >/dev/null
# Sources of the layers and tools that the release build compiles, alone or together; headers are checked through them.
mapfile -t sources < <(printf '%s\n' "${files[@]}" | grep -E '^(core|device|formats|kernels|parallel|optim|offload|data|engine|ds_config|models|tools)/.*\.cpp$' |
  while read -r file; do if grep -qF "\"$PWD/$file\"" build/release/compile_commands.json build/release/*/CMakeFiles/*/Unity/*.cxx; then echo "$file"; fi; done)
[ "${#sources[@]}" -gt 0 ] || exit 0
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build/release --extra-arg=-Wno-unknown-warning-option \
  2> >(grep -v 'warnings generated' >&2)
echo "clang-tidy: ${#sources[@]} files"
