#!/usr/bin/env bash
# Builds the library with CMake, installs it, and builds and runs the README's program
# against what was installed. Without optimisation: the files and targets are tested, not the code.
# Usage: cmake_test.sh [command]: the command is built, too, for two minutes more (the long tier,
# tests/full.py --only cmake/command); without that word it is only configured.
set -euo pipefail
# Bazel's runfiles are links into the tree.
root=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../..
with_command=OFF
if [ "${1-}" = command ]; then with_command=ON; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Most of a file's time goes to the standard library's headers, so they are compiled once. Includes
# that are missing show in Bazel's build, which does not have this.
printf '#include <%s>\n' algorithm array atomic chrono cstring deque functional map memory mutex \
  optional set span string unordered_map utility vector >"$work/std.h"
c++ -O0 -fPIC -std=gnu++20 -x c++-header "$work/std.h" -o "$work/std.h.gch"
cmake -S "$root" -B "$work/build" -DCMAKE_BUILD_TYPE=None -DCMAKE_INSTALL_PREFIX="$work/usr" \
  -DCMAKE_CXX_FLAGS="-O0 -include $work/std.h -Werror=invalid-pch" \
  -DSLUICE_BUILD_COMMAND=$with_command >"$work/log"
{ cmake --build "$work/build" -j2 && cmake --install "$work/build"; } >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake -S "$root/tests/cmake/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$work/usr" \
  -DREADME_PROGRAM="$(readlink -f "$root/examples/readme.cc")" >>"$work/log"
cmake --build "$work/consumer" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
check() {
  local output
  output=$("$1")
  [ "$output" = "3 by shm, copied 0 bytes" ] || { echo "$1 printed: $output"; exit 1; }
}
check "$work/consumer/readme"

if [ $with_command = ON ]; then
  # With the Python parts of lab and tune system. That of bench needs the sources.
  command=$work/usr/bin/sluice
  "$command" version | grep -qx 'sluice [0-9.]*' || { echo "$command version printed something else"; exit 1; }
  "$command" perf send_lat --self --transport shm --iters 100 --size 64 >>"$work/log" || { cat "$work/log"; exit 1; }
  for part in lab bench; do
    "$command" "$part" --help | grep -q '^usage: sluice '"$part" || { echo "$command $part --help printed something else"; exit 1; }
  done
  for part in lab "tune system"; do  # two words
    if "$command" $part --help | grep -q 'without the Python part'; then echo "$command $part is installed without its Python part"; exit 1; fi
  done
else  # all its sources and packages are found
  cmake -S "$root" -B "$work/configured" -DSLUICE_BUILD_COMMAND=ON >>"$work/log"
fi

# Without the packages of the command the text names them.
if cmake -S "$root" -B "$work/without" -DSLUICE_BUILD_COMMAND=ON -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON >"$work/refusal" 2>&1; then
  echo "the command was configured without CLI11"; exit 1
fi
tr -s ' \n' ' ' <"$work/refusal" | grep -q 'apt-get install libcli11-dev; or set it to OFF' || { cat "$work/refusal"; exit 1; }

# The same by hand, with what pkg-config says.
PKG_CONFIG_PATH=$(dirname "$(find "$work/usr" -name sluice.pc)")
export PKG_CONFIG_PATH
read -ra flags < <(pkg-config --cflags --libs --static sluice)
c++ -O0 -o "$work/by_hand" "$root/examples/readme.cc" "${flags[@]}"
check "$work/by_hand"
# Installed elsewhere than was configured, it still says where it is.
cmake --install "$work/build" --prefix "$work/moved" >>"$work/log"
moved=$(PKG_CONFIG_PATH=$(dirname "$(find "$work/moved" -name sluice.pc)") pkg-config --cflags --libs sluice)
case "$moved" in *"$work/usr"*) echo "pkg-config names the configured prefix: $moved"; exit 1 ;; *"$work/moved"*) ;; *) echo "pkg-config: $moved"; exit 1 ;; esac

# Whoever says nothing gets an optimised library.
cmake -S "$root" -B "$work/default" >>"$work/log"
grep -qx 'CMAKE_BUILD_TYPE:STRING=Release' "$work/default/CMakeCache.txt" || { echo "the default build type is not Release"; exit 1; }

# A shared library where that is asked for; a static one otherwise. Not built here: it takes as long again.
cmake -S "$root" -B "$work/shared" -DBUILD_SHARED_LIBS=ON >>"$work/log"
grep -q -- '-shared .*-soname,libsluice\.so' "$work/shared/CMakeFiles/sluice.dir/link.txt" || { echo "BUILD_SHARED_LIBS makes no shared library"; exit 1; }
grep -q -- -fPIC "$work/shared/CMakeFiles/sluice.dir/flags.make" || { echo "BUILD_SHARED_LIBS compiles without -fPIC"; exit 1; }
if grep -q 'libsluice\.so' "$work/default/CMakeFiles/sluice.dir/link.txt"; then echo "the library is shared by default"; exit 1; fi

# Each installed header compiles alone, of what is installed; no more of them than those that
# CMakeLists.txt lists, and nothing in them that is for tests or for paths.
python3 -B - "$work/usr/include" <<'PROGRAM'
import concurrent.futures, pathlib, re, subprocess, sys
root = pathlib.Path(sys.argv[1])
headers = sorted(str(header.relative_to(root)) for header in root.rglob("*.h"))
def faults(header):
    text = (root / header).read_text(encoding="utf-8")
    inside = [header + " shows " + word for word in re.findall(r"proto::|[Ff]or tests|\bProvider\b", text)
              if header.startswith("sluice/api/")]
    made = subprocess.run(["c++", "-std=c++20", "-fsyntax-only", "-x", "c++", "-I", str(root), "-"],
                          input="#include <%s>\n" % header, capture_output=True, text=True)
    return inside + ([made.stderr[:2000]] if made.returncode else [])
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    found = sum(pool.map(faults, headers), [])
print("\n".join(found))
sys.exit(1 if found or not 40 < len(headers) < 60 else 0)
PROGRAM
