#!/bin/sh
# Writes about 4 MB of English prose to a file, to train the demo on: the King James Bible of Debian's package bible-kjv (public
# domain), one verse a line. Installs nothing.
# Usage: tools/demo_text.sh FILE
set -eu

if [ $# -ne 1 ]; then
  echo "usage: $0 FILE" >&2
  exit 2
fi
if ! command -v bible >/dev/null; then
  echo "$0: the program 'bible' is missing; install it with: apt-get install bible-kjv (2.5 MB)," >&2
  echo "or train on any text file of your own: zero3d takes one as it is" >&2
  exit 1
fi

# Without formatting, a verse is one line that starts with its reference ("Ge1:1 In the beginning").
temporary="$1.tmp-$$"
trap 'rm -f "$temporary"' EXIT
bible -f 'gen1:1-rev22:21' </dev/null | sed 's/^[^ ]* *//' >"$temporary"
verses=$(wc -l <"$temporary")
if [ "$verses" -lt 31000 ]; then
  echo "$0: expected about 31,102 verses from 'bible', got $verses" >&2
  exit 1
fi
mv "$temporary" "$1"
echo "$1: $verses verses, $(wc -c <"$1") bytes"
