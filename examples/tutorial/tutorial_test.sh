#!/usr/bin/env bash
# What docs/tutorial.md says: its programs are these, and they do what it shows when processes die and come back.
set -euo pipefail
publisher=$1 reader=$2
python3 -B - docs/tutorial.md examples/tutorial/publisher.cc examples/tutorial/reader.cc <<'PROGRAM'
import re, sys
document, *programs = (open(name, encoding="utf-8").read() for name in sys.argv[1:])
shown = re.findall(r"^```cpp\n(.*?)^```$", document, re.M | re.S)
sys.exit(0 if shown == programs else "docs/tutorial.md shows other programs than examples/tutorial has")
PROGRAM
work=$(mktemp -d)
address="shm:tutorial-$$-$RANDOM"
one='' two='' server=''
trap 'kill -9 $one $two $server 2>/dev/null || true; rm -rf "$work"' EXIT
await() {  # FILE TEXT COUNT: until the file has so many such lines
  for _ in $(seq 300); do
    [ "$(grep -c -- "$2" "$1" 2>/dev/null || true)" -ge "$3" ] && return
    sleep 0.1
  done
  echo "no '$2' in $1:"; cat "$work"/*; exit 1
}
"$publisher" "$address" >"$work/publisher" 2>&1 & server=$!
await "$work/publisher" listening 1
"$reader" "$address" 1000 >"$work/one" 2>&1 & one=$!
"$reader" "$address" 40 >"$work/two" 2>&1 & two=$!
await "$work/one" 'by shm, copied 0 bytes' 5
# A reader dies with whatever it holds, and another comes.
kill -9 $one; wait $one 2>/dev/null || true
"$reader" "$address" 10 >"$work/again" 2>&1
# The publisher dies; the reader that is left connects to the next one.
await "$work/two" 'by shm, copied 0 bytes' 5
kill -9 $server; wait $server 2>/dev/null || true
"$publisher" "$address" >"$work/publisher" 2>&1 & server=$!
wait $two || { cat "$work/two"; exit 1; }
two=''
[ "$(grep -c 'copied 0 bytes' "$work/two")" -eq 40 ] || { cat "$work/two"; exit 1; }
[ "$(grep -c 'copied 0 bytes' "$work/again")" -eq 10 ] || { cat "$work/again"; exit 1; }
kill -0 $server || { cat "$work/publisher"; exit 1; }
