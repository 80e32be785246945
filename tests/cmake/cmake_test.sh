#!/usr/bin/env bash
# Builds the library with CMake, installs it, and builds and runs the README's program
# against what was installed. Without optimisation: the files and targets are tested, not the code.
set -euo pipefail
# Bazel's runfiles are links into the tree.
root=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake -S "$root" -B "$work/build" -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O0 -DCMAKE_INSTALL_PREFIX="$work/usr" >"$work/log"
{ cmake --build "$work/build" -j2 && cmake --install "$work/build"; } >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake -S "$root/tests/cmake/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$work/usr" \
  -DREADME_PROGRAM="$(readlink -f "$root/examples/readme.cc")" >>"$work/log"
cmake --build "$work/consumer" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
output=$("$work/consumer/readme")
[ "$output" = "3 by shm, copied 0 bytes" ] || { echo "the program printed: $output"; exit 1; }
