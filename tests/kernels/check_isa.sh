#!/bin/bash
# usage: check_isa.sh LIBRARY NAMESPACE_PATTERN
# Fails when a function outside the namespaces of wider instruction sets uses their registers: it might run on a CPU
# that lacks them. Mask registers and zmm stand for AVX-512, ymm for AVX.
set -euo pipefail
command -v objdump >/dev/null || { echo "objdump is not installed: skipped"; exit 77; }
objdump -d --no-show-raw-insn -C "$1" | awk -v allowed="$2" '
  /^[0-9a-f]+ <.*>:$/ { name = $0; sub(/^[0-9a-f]+ </, "", name); sub(/>:$/, "", name); functions++ }
  /%[yz]mm[0-9]|%xmm(1[6-9]|2[0-9]|3[01])|%k[0-7]/ { vectors++; if (name !~ allowed && !bad[name]++) count++ }
  END {
    for (name in bad) print "wide instructions in " name
    print functions + 0 " functions, " vectors + 0 " wide instructions"
    exit (count > 0 || functions == 0) ? 1 : 0
  }'
