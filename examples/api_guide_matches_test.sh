#!/usr/bin/env bash
# Each block of code in docs/api.md is a part of examples/api_guide.cc, line by line.
set -euo pipefail
python3 -B - docs/api.md examples/api_guide.cc <<'PROGRAM'
import re, sys
document, program = (open(name, encoding="utf-8").read() for name in sys.argv[1:])
blocks = re.findall(r"^```cpp\n(.*?)^```$", document, re.M | re.S)
strange = [block for block in blocks if block not in program]
for block in strange:
    print(f"docs/api.md shows what examples/api_guide.cc has not:\n{block}")
sys.exit(1 if strange or len(blocks) < 5 else 0)
PROGRAM
