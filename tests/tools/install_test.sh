#!/bin/sh
# Installs the build to a staged prefix; checks that the installed headers are complete and name no other project's; builds the
# examples against it as outside projects and runs them, and the installed command.
# Usage: install_test.sh SOURCE-FOLDER BUILD-FOLDER C++-COMPILER
set -eu

source=$1
build=$2
compiler=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >"$work/install.log" || { cat "$work/install.log"; exit 1; }

cd "$work/prefix/include"
find zero3d -name '*.h' | sort >"$work/headers"
[ "$(wc -l <"$work/headers")" -ge 80 ] || { echo "only $(wc -l <"$work/headers") headers were installed"; exit 1; }
sed 's/.*/#include <&>/' "$work/headers" >"$work/all.cpp"
"$compiler" -std=c++20 -Wall -Wextra -Werror -fsyntax-only -I. "$work/all.cpp"
if grep -rnE '#include *<(nlohmann|hwy|tbb|oneapi|dnnl|mpi|omp|fmt|spdlog|re2|CLI|cuda|nccl)' zero3d; then
  echo "installed headers include other projects' headers"
  exit 1
fi
cd "$work"

for example in minimal own_loop; do
  cmake -S "$source/examples/$example" -B "$work/$example" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$compiler" \
    -DCMAKE_BUILD_TYPE=Release >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  cmake --build "$work/$example" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  "$work/$example/$example"
done

# The example is an example: its training loop stays short.
lines=$(wc -l <"$source/examples/minimal/minimal.cpp")
[ "$lines" -lt 80 ] || { echo "examples/minimal/minimal.cpp has $lines lines; it should stay under 80"; exit 1; }

"$work/prefix/bin/zero3d" train --help | grep -q -- --export
