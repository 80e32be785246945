#!/usr/bin/env bash
# protoc-gen-sluice: what it refuses, with the reason, and that it then writes nothing.
# Arguments: the plugin, and options.proto.
set -euo pipefail
plugin=$(readlink -f "$1")
imports=$(dirname "$(dirname "$(readlink -f "$2")")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

generate() {  # flag, body of a message
  rm -rf out && mkdir out
  printf 'syntax = "proto3"; package x; import "sluice/options.proto"; message M { %s }' "$2" >m.proto
  protoc -I. -I"$imports" --plugin="protoc-gen-sluice=$plugin" --sluice_out="$1out" m.proto 2>errors
}
refused() {  # body, part of the reason
  if generate "" "$1"; then echo "taken: $1"; exit 1; fi
  grep -q -- "$2" errors || { echo "$1: not '$2' but:"; cat errors; exit 1; }
  [ -z "$(ls out)" ] || { echo "$1: files were written"; exit 1; }
}
shared='[(sluice.v1.shared) = true]'
refused "repeated bytes a = 1 $shared;" "it is repeated"
refused "oneof o { bytes a = 1 $shared; }" "it is in a oneof"
refused "string a = 1 $shared;" "is for bytes fields"
refused "bytes a = 1 $shared; int32 a_tensor = 2;" "the accessor's name"

refused "} import \"google/protobuf/descriptor.proto\"; extend google.protobuf.FieldOptions { bytes a = 50001 $shared;" \
  "it is an extension"

# With all_bytes what cannot be changed stays as it is, and so does what says false.
generate all_bytes: "bytes a = 1; repeated bytes b = 2; oneof o { bytes c = 3; } bytes d = 4 [(sluice.v1.shared) = false];"
grep -q "set_a_tensor" out/m.pb.h
if grep -q "set_[bcd]_tensor" out/m.pb.h; then echo "all_bytes changed too much"; exit 1; fi
generate all_bytes: "map<string, bytes> m = 1; bytes a = 2;"
grep -q "set_a_tensor" out/m.pb.h
generate "" "bytes a = 1;"
if grep -q sluice::grpc out/m.pb.h; then echo "a field without the option was changed"; exit 1; fi
