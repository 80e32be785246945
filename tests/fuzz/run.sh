#!/bin/bash
# Fuzzes parsers with clang's libFuzzer, ASan and UBSan, for a bounded time.
#   tests/fuzz/run.sh [--seconds N] [--runs N] [--seed N] [--merge] TARGET...|all
# Stops a target at whichever bound comes first (default: 60 s). --seed repeats a run, on the same
# sources and corpus (default: another one each time). --merge minimises what
# was found into the committed corpus. tests/full.py keeps the ledger.
# Exit: 0 nothing found, 1 a target failed (the input is printed), 2 usage.
set -euo pipefail

usage() { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }

seconds=60 runs=-1 seed=0 merge=0 targets=()
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds) seconds="${2:?--seconds needs a number}"; shift ;;
    --runs) runs="${2:?--runs needs a number}"; shift ;;
    --seed) seed="${2:?--seed needs a number}"; shift ;;
    --merge) merge=1 ;;
    -*) usage ;;
    *) targets+=("$1") ;;
  esac
  shift
done
[ ${#targets[@]} -gt 0 ] || usage

root="$(cd "$(dirname "$0")/../.." && pwd)"
cd "$root"
corpora="$root/tests/fuzz/corpus"
messages=(hello offer want data done release cancel credit ping bye)
every=("${messages[@]}" header stream layout address remote_key session slp capture graph grpc_frames broker)
[ "${targets[0]}" != all ] || targets=("${every[@]}")

work="$(mktemp -d "${TMPDIR:-/tmp}/sluice-fuzz.XXXXXX")"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/include/sluice" "$work/objects"
ln -s "$root/allocator" "$work/include/sluice/allocator"
ln -s "$root/plugins/grpc" "$work/include/sluice/grpc"
for room in "$root"/transport/*/; do ln -s "$room" "$work/include/sluice/$(basename "$room")"; done

c_flags=(-O2 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -Wall -Wextra -Werror)
watched=(-fsanitize=fuzzer-no-link)  # what the fuzzer sees the paths of
flags=(-std=c++20 "${c_flags[@]}" -I"$work/include" -I"$root" -Wno-unused-parameter -DSLUICE_FAULT_POINTS=1 -DFMT_HEADER_ONLY)

# Objects are shared by the targets of one run.
object() {
  local out="$work/objects/${1//\//_}.o"
  case "$1" in
    *.c) [ -e "$out" ] || clang -std=c11 "${c_flags[@]}" "${watched[@]}" -c "$root/$1" -o "$out" ;;
    # The judge and the toy cipher are not what is being searched, and would take two thirds of the time.
    tests/slp/*) [ -e "$out" ] || clang++ "${flags[@]}" -c "$root/$1" -o "$out" ;;
    *) [ -e "$out" ] || clang++ "${flags[@]}" "${watched[@]}" -c "$root/$1" -o "$out" ;;
  esac
  objects+=("$out")
}

base=(transport/base/status.cc transport/base/dtype.cc transport/base/tensor_descriptor.cc)
wire=(transport/wire/{messages,hello,tlv}.cc tests/wire/{hello,oracle,random_messages,layout_oracle}.cc)

build() {
  local target="$1" source sources=() extra=()
  objects=()
  case "$target" in
    header|stream) source="fuzz_$target" sources=("${wire[@]}" "${base[@]}") ;;
    layout) source=fuzz_layout sources=(tests/wire/layout_check.cc tests/wire/layout_oracle.cc "${base[@]}") ;;
    address) source=fuzz_address sources=(tests/wire/address_check.cc transport/api/{address,path_names}.cc transport/base/status.cc) ;;
    remote_key) source=fuzz_remote_key sources=(transport/api/remote_key.cc transport/base/status.cc) ;;
    slp) source=fuzz_slp sources=(kernel_compat/slp/*.c tests/slp/judge.cc tests/slp/toy_cipher.cc) ;;
    capture)
      source=fuzz_capture
      sources=(tools/dump/{capture,packet,frame,print,teller}.cc kernel_compat/slp/*.c transport/base/status.cc) ;;
    graph)
      source=fuzz_graph
      sources=(transport/graph/{check,cost,estimate,graph,memory,pass,read,timeline,write}.cc "${base[@]}") ;;
    broker)
      source=fuzz_broker
      sources=(tests/fuzz/broker_judge.cc transport/l2/carrier/{broker_wire,lent_sockets,lent_xdp}.cc transport/base/*.cc) ;;
    grpc_frames) source=fuzz_grpc_frames sources=(plugins/grpc/frames.cc) ;;
    session)
      source=fuzz_session
      sources=("${wire[@]}" transport/base/*.cc allocator/*.cc transport/proto/*.cc tests/fuzz/session_{messages,world}.cc
               transport/api/{completion,path_names,receipt,remote_key}.cc
               transport/runtime/{mailbox,peer_account}.cc) ;;
    *)
      for i in "${!messages[@]}"; do
        [ "${messages[$i]}" != "$target" ] || extra=("-DSLUICE_FUZZ_TYPE=$((i + 1))")
      done
      [ ${#extra[@]} -gt 0 ] || { echo "unknown target '$target'; one of: ${every[*]}" >&2; exit 2; }
      source=fuzz_message sources=("${wire[@]}" "${base[@]}") ;;
  esac
  for file in "${sources[@]}"; do
    case "$file" in *_test.cc) ;; *) object "$file" ;; esac
  done
  clang++ "${flags[@]}" ${extra[@]+"${extra[@]}"} -fsanitize=fuzzer "$root/tests/fuzz/$source.cc" "${objects[@]}" \
    -o "$work/$target"
}

longest() {
  case "$1" in
    header) echo 24 ;; remote_key) echo 48 ;; layout) echo 192 ;; address) echo 400 ;; stream) echo 768 ;; session|slp) echo 600 ;; capture|graph|grpc_frames|broker) echo 2048 ;; *) echo 1088 ;;
  esac
}

fuzz() {
  local target="$1" log="$work/$1.log" started result=ok executions
  mkdir -p "$work/found/$target" "$work/crash" "$corpora/$target"
  started=$SECONDS
  "$work/$target" -max_total_time="$seconds" -runs="$runs" -seed="$seed" -max_len="$(longest "$target")" -timeout=10 \
    -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$work/crash/" \
    "$work/found/$target" "$corpora/$target" "$work/seeds/$target" > "$log" 2>&1 || result=failed
  executions="$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
  echo "$target: ${executions:-0} executions in $((SECONDS - started)) s: $result"
  if [ "$result" = failed ]; then
    tail -40 "$log"
    for input in "$work"/crash/*; do [ ! -e "$input" ] || { echo "input of $target:"; xxd "$input"; }; done
    failures=$((failures + 1))
  fi
  if [ "$merge" = 1 ] && [ "$result" = ok ]; then
    mkdir -p "$work/least/$target"
    if ! "$work/$target" -set_cover_merge=1 -max_len="$(longest "$target")" "$work/least/$target" \
      "$work/seeds/$target" "$corpora/$target" "$work/found/$target" > "$log" 2>&1; then
      echo "$target: merging failed, the corpus is as it was"
      tail -20 "$log"
      failures=$((failures + 1))
      return
    fi
    rm -rf "${corpora:?}/$target"
    cp -r "$work/least/$target" "$corpora/$target"
  fi
}

python3 -B "$root/tests/fuzz/seeds.py" "$work/seeds"
failures=0
for target in "${targets[@]}"; do
  mkdir -p "$work/seeds/$target"
  build "$target"
  fuzz "$target"
done
[ "$failures" = 0 ]
