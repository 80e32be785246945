#!/bin/sh
# The module as `dkms` builds it from the folder that kernel_compat/README.md says to make, for each kernel whose headers are here.
# Nothing is installed, and no tree of dkms but a temporary one is touched. By name: tools/setup --lab --next-kernel.
set -eu
here=$(cd "$(dirname "$0")/../../kernel_compat" && pwd)
PATH=$PATH:/usr/sbin:/sbin  # which Bazel leaves out
command -v dkms >/dev/null || { echo "FAILED: dkms is not installed: tools/setup --next-kernel" >&2; exit 1; }
work=$(mktemp -d)
keys=/var/lib/dkms/mok.key
[ -e $keys ] && kept=yes || kept=no
cleanup() {
  rm -rf "$work"
  # dkms makes keys to sign with where there are none.
  [ $kept = yes ] || rm -f $keys /var/lib/dkms/mok.pub
}
trap cleanup EXIT
mkdir -p "$work/source" "$work/tree"
cp -rL "$here" "$work/source/sluice-1"
cp -L "$here/module/dkms.conf" "$work/source/sluice-1/"
built=0
for headers in /usr/src/linux-headers-*-amd64; do
  release=${headers#/usr/src/linux-headers-}
  [ -d "/lib/modules/$release/build" ] || continue
  if ! dkms --sourcetree "$work/source" --dkmstree "$work/tree" build sluice/1 -k "$release" >"$work/log" 2>&1; then
    cat "$work/log" "$work/tree/sluice/1/build/make.log" >&2 || true
    echo "FAILED: dkms does not build sluice/1 for $release" >&2
    exit 1
  fi
  made=$(find "$work/tree/sluice/1/$release" -name 'sluice.ko*')
  [ -n "$made" ] || { echo "FAILED: dkms made no module for $release" >&2; exit 1; }
  echo "sluice/1 for $release"
  built=$((built + 1))
done
[ $built -gt 0 ] || { echo "FAILED: no headers of a kernel with /lib/modules/RELEASE/build: tools/setup --lab --next-kernel" >&2; exit 1; }
