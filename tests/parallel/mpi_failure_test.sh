#!/bin/sh
# Usage: mpi_failure_test.sh TEST_BINARY RANK MPIEXEC [flags]: a rank that throws ends all processes
# within seconds, with a non-zero exit code, and the first line printed is the cause.
binary=$1
rank=$2
shift 2
output=$("$@" "$binary" "--fail=$rank" 2>&1)
code=$?
printf '%s\n' "$output"
[ "$code" -ne 0 ] || { echo "exit code 0 after a failure"; exit 1; }
first=$(printf '%s\n' "$output" | grep -n 'h.0.attn' | head -n 1)
case $first in
  *"rank $rank failed: tensor h.0.attn is missing"*) exit 0 ;;
esac
echo "the cause is not what is shown first"
exit 1
