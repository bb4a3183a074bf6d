#!/bin/sh
# Installs the Debian/Ubuntu packages that a make target needs, and nothing when all are there.
# usage: setup.sh demo|check [EXTRA_PREFIX]
#
# EXTRA_PREFIX: libraries were unpacked there by hand; packages are then the user's business.
# nvcc compiles the host part of a .cu file with g++, which is installed if there is an nvcc.
set -eu

build="gcc make git pkg-config libhdf5-dev libopenblas-dev liblapacke-dev libcsv-dev libjansson-dev
       libpcre2-dev libutf8proc-dev libxxhash-dev libdeflate-dev zlib1g-dev xz-utils"
command -v "${NVCC:-nvcc}" >/dev/null 2>&1 && build="$build g++"
plots="gnuplot-nox"
tests="libcmocka-dev hdf5-tools python3-h5py python3-numpy"

case "${1:-}" in
  demo)  wanted="$build $plots" ;;
  check) wanted="$build $plots $tests" ;;
  *) echo "usage: setup.sh demo|check [EXTRA_PREFIX]" >&2; exit 2 ;;
esac
[ -z "${2:-}" ] || exit 0

if ! command -v dpkg-query >/dev/null 2>&1; then
  echo "setup: not a Debian or Ubuntu machine; these packages or their like are needed:" $wanted
  exit 0
fi

missing=""
for p in $wanted; do
  s=$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)
  [ "$s" = installed ] || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

echo "setup: installing missing packages:$missing"
as_root=""
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null 2>&1 || {
    echo "setup: not root and no sudo; as root, run: apt-get install$missing" >&2
    exit 1
  }
  as_root=sudo
fi
$as_root apt-get update -q
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing
