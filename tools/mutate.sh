#!/bin/bash
# Proof that the tests bite: deletes, one at a time, each call in engine/ that orders work (event record and wait, slot wait, release,
# ready, publish, finish, synchronise), rebuilds and runs the engine's tests; a mutant that passes them all has survived.
# Works on a copy of the tree; prints a line per mutant and ends with 'N passed, N failed' (killed, survived).
# Usage: tools/mutate.sh [--list] [REGEX over "file:line: text"]
set -euo pipefail
cd "$(dirname "$0")/.."

list_only=no
if [ "${1:-}" = --list ]; then list_only=yes; shift; fi
pattern=${1:-.}

# A statement that is one such call, perhaps behind a condition on its line; definitions and declarations are not.
call='((\.|->)(wait|record|release|ready|finish|publish|synchronize|end_step|acquire)|[^a-z_:>.](give_up|publish|gather_published|synchronize))\('
sites=$(grep -nE "$call.*;" engine/*.cpp engine/zero/*.cpp | grep -vE '::|return|= ' | grep -E "$pattern" || true)
if [ "$list_only" = yes ]; then echo "$sites"; exit 0; fi
[ -n "$sites" ] || { echo "no call matches"; exit 2; }

work=build/mutate
mkdir -p "$work/tree"
git ls-files -z | grep -zv '^\.ci/' | xargs -0 cp --parents -u -t "$work/tree"
cmake -S "$work/tree" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DZERO3D_BUILD_BENCH=OFF -DZERO3D_WITH_MPI=OFF >/dev/null
tests=$(cd "$work/build" && ctest -N -R '^engine_' | sed -n 's/.*: \(engine_[a-z_]*\)$/\1/p')

run() { # builds and runs the engine's tests; 0 when all pass
  # shellcheck disable=SC2086  # a list of words
  cmake --build "$work/build" --target $tests >"$work/log" 2>&1 || return 3
  (cd "$work/build" && ctest -R '^engine_' -j 2 --timeout 120 --stop-on-failure) >>"$work/log" 2>&1
}

run || { echo "the tests fail without any mutation: see $work/log"; exit 2; }
killed=0
survived=0
while IFS= read -r site; do
  file=${site%%:*}
  line=${site#*:}; line=${line%%:*}
  python3 - "$work/tree/$file" "$line" <<'P'
import re, sys
path, line = sys.argv[1], int(sys.argv[2])
lines = open(path).read().split('\n')
call = re.compile(r'((?:\(\*\w+\)|[\w\->.*]|\[[^\]]*\]|\([\w, ]*\))+(?:\.|->)(?:wait|record|release|ready|finish|publish|synchronize|end_step|acquire)|'
                  r'\b(?:give_up|publish|gather_published|synchronize))\(.*?\);')
mutant = call.sub('(void)0;', lines[line - 1], count=1)
if mutant == lines[line - 1]: sys.exit(f'{path}:{line}: cannot cut the call out of: {mutant}')
lines[line - 1] = mutant
open(path, 'w').write('\n'.join(lines))
P
  code=0
  run || code=$?
  if [ "$code" -eq 0 ]; then
    survived=$((survived + 1)); echo "SURVIVED $site"
  else
    killed=$((killed + 1)); echo "killed   $site$([ "$code" -eq 3 ] && echo '   (does not build)' || true)"
  fi
  cp "$file" "$work/tree/$file"
done <<<"$sites"
echo "$killed passed, $survived failed"
[ "$survived" -eq 0 ]
