#!/usr/bin/env bash
# Runs an example and looks for the lines it must print.
set -euo pipefail
output=$(timeout 60 "$1" 2>&1) || { echo "$output"; echo "exit status $?"; exit 1; }
shift
for line in "$@"; do
  grep -qF -- "$line" <<<"$output" || { echo "$output"; echo "missing: $line"; exit 1; }
done
