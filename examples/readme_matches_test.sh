#!/usr/bin/env bash
# README.md's program is examples/readme.cc, line by line (from its first include on).
set -euo pipefail
program=$(sed -n '/^#include <sluice/,$p' examples/readme.cc)
shown=$(awk '/^```cpp$/ {inside = 1; next} /^```$/ {inside = 0} inside' README.md)
diff <(echo "$program") <(echo "$shown") || { echo "README.md and examples/readme.cc differ"; exit 1; }
