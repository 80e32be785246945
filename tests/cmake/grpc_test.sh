#!/usr/bin/env bash
# Builds and installs the library and the gRPC bridge with CMake, then builds and runs a gRPC program of another project
# against them. In the long tier: tests/full.py --only cmake/grpc. Usage: tests/cmake/grpc_test.sh
set -euo pipefail
root=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake -S "$root" -B "$work/build" -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O0 -DCMAKE_INSTALL_PREFIX="$work/usr" -DSLUICE_BUILD_GRPC=ON >"$work/log"
{ cmake --build "$work/build" -j2 && cmake --install "$work/build"; } >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake -S "$root/tests/cmake/grpc_consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$work/usr" >>"$work/log"
cmake --build "$work/consumer" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
said=$("$work/consumer/echo")
[ "$said" = "hello by shm" ] || { echo "the program printed: $said"; exit 1; }
# The bridge is plain gRPC where the user wants it.
said=$(SLUICE_GRPC=off "$work/consumer/echo")
[ "$said" = "hello by ipv4" ] || { echo "with SLUICE_GRPC=off the program printed: $said"; exit 1; }
# A server without a line listens where the variable says so.
said=$(SLUICE_GRPC_LISTEN=1 "$work/consumer/echo_auto")
[ "$said" = "hello by shm" ] || { echo "with SLUICE_GRPC_LISTEN=1 the program printed: $said"; exit 1; }
said=$("$work/consumer/echo_auto")
[ "$said" = "hello by ipv4" ] || { echo "without SLUICE_GRPC_LISTEN the program printed: $said"; exit 1; }
# Messages that protoc-gen-sluice generates.
said=$("$work/consumer/step")
[ "$said" = "right, no copy" ] || { echo "the program with tensors printed: $said"; exit 1; }
said=$(SLUICE_GRPC=off "$work/consumer/step")
[ "$said" = "right, copied" ] || { echo "with SLUICE_GRPC=off the program with tensors printed: $said"; exit 1; }
headers=$(find "$work/usr/include/sluice/grpc" -type f -printf '%f\n' | sort | tr '\n' ' ')
[ "$headers" = "bridge.h payload_field.h serialize.h tensor_message.h " ] || { echo "other headers of the bridge are installed than expected: $headers"; exit 1; }
# Without gRPC the text names what to install.
if cmake -S "$root" -B "$work/without" -DSLUICE_BUILD_GRPC=ON -DGRPC_INCLUDE_DIR= >"$work/refusal" 2>&1; then
  echo "the bridge was configured without gRPC"; exit 1
fi
tr -s ' \n' ' ' <"$work/refusal" | grep -q 'apt-get install libgrpc++-dev libprotobuf-dev; or set it to OFF' || { cat "$work/refusal"; exit 1; }
# Without protoc's library the bridge is built, and who asks for messages is told what to install.
cmake -S "$root" -B "$work/without" -DSLUICE_BUILD_GRPC=ON -DPROTOC_LIBRARY= -UGRPC_INCLUDE_DIR >"$work/refusal" 2>&1 || { cat "$work/refusal"; exit 1; }
grep -q 'libprotoc-dev is missing: without protoc-gen-sluice' "$work/refusal" || { cat "$work/refusal"; exit 1; }
echo "the CMake recipe of the gRPC bridge works"
