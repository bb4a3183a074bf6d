#!/bin/sh
# make demo, after set-up and build: runs experiments/demo and prints a table of its results.
# usage: demo.sh BUILD
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
start=$(date +%s)
# The -j of `make -j8 demo` is for the build; this make gives it none of its job slots.
MAKEFLAGS=$(echo " ${MAKEFLAGS:-}" | sed 's/ -j[0-9]*//; s/ --jobserver-[a-z]*=[^ ]*//')
export MAKEFLAGS
make --no-print-directory -s -C "$root/experiments/demo" BIN="$build/bin" OUT="$root/demo" PLOTS=1
mkdir -p "$root/demo"
rm -rf "$root/demo/report"
ln -sfn demo/report "$root/demo/report"

# usage: column FILE NAME: the number of a column of a CSV file
column() { awk -F, -v name="$2" '{ for (i = 1; i <= NF; i++) if ($i == name) print i; exit }' "$1"; }
tables=$root/demo/demo/report/tables
t=$tables/target.csv a=$tables/accuracy.csv
echo
echo "How much of the KV cache can go? Text: $(awk -F, 'NR == 2 { print $1 }' "$t"), which no method was calibrated on."
echo "p: fraction of the dimensions that is removed. KL: divergence from the uncompressed predictions, nats."
echo
awk -F, -v label="$(awk -F, 'NR == 2 { print $1 }' "$t")" -v m="$(column "$t" method)" -v p="$(column "$t" p)" -v lo="$(column "$t" p_surely_kept)" \
  -v hi="$(column "$t" p_surely_lost)" -v am="$(column "$a" method)" -v ar="$(column "$a" rule)" \
  -v ap="$(column "$a" overall_p)" -v akl="$(column "$a" kl)" '
  FNR == 1 { file++; next }
  file == 1 && $1 == label && ($ar == "eq6" || $ar == "uniform" || $ar == "error") {
    name = $ar == "error" ? $am " error" : $am
    off = ($ap - 0.5) ^ 2
    if (off < 1e-4 && (!(name in kl) || off < least[name])) { kl[name] = $akl; least[name] = off }
    next
  }
  file == 2 && $1 == label && $p != "" && $lo != "" {
    shown = $m
    gsub(/ /, "-", shown)
    printf "%s %s %s %s %s\n", shown, $p, $lo, $hi, ($m in kl) ? kl[$m] : "-"
  }
' "$a" "$t" | sort -k2,2gr -u | head -n 5 | awk '
  BEGIN { printf "  %-14s %28s %18s\n", "method", "largest p with 99 % of top-1", "KL at p = 0.5" }
  { printf "  %-14s %9.3f (%.2f to %.2f) %20.4f\n", $1, $2, $3, $4, $5 }'
echo
echo "page: $root/demo/report/index.html ($(($(date +%s) - start)) s)"
