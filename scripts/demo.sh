#!/bin/sh
# make demo, after set-up and build. usage: demo.sh BUILD
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
start=$(date +%s)
make --no-print-directory -s -C "$root/experiments/demo" BIN="$build/bin" OUT="$root/demo" PLOTS=1
mkdir -p "$root/demo"
rm -rf "$root/demo/report"
ln -sfn demo/report "$root/demo/report"
echo "demo: $(($(date +%s) - start)) s"
echo "page: $root/demo/report/index.html"
