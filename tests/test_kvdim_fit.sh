#!/bin/sh
# kvdim-fit: both ways of asking, tables by error, and what it refuses.
command -v h5dump >/dev/null || { echo "skip kvdim_fit: no h5dump (package hdf5-tools)"; exit 0; }
set -u
B=${BUILD:-build}
PYTHON=${PYTHON:-/usr/bin/python3}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
make_file="$B/tests/tool_synthetic"
fit="$B/bin/kvdim-fit"

ok() { echo "ok $1"; }
not_ok() { echo "not ok $1"; sed 's/^/# /' "$tmp/log"; }
check() {
  name=$1; shift
  if "$@" >"$tmp/log" 2>&1; then ok "$name"; else not_ok "$name"; fi
}
refused() {
  name=$1 status=$2 text=$3; shift 3
  "$@" >"$tmp/log" 2>&1; got=$?
  if [ $got -eq "$status" ] && grep -qF -- "$text" "$tmp/log"; then ok "$name"; else echo "status $got" >>"$tmp/log"; not_ok "$name"; fi
}

"$make_file" moments "$tmp/m.h5" 300 1 && "$B/bin/kvdim-spectrum" "$tmp/m.h5" --pair qk,vw,wv,bqk,bvw,k -q -o "$tmp/s.h5" &&
  "$B/bin/kvdim-spectrum" "$tmp/m.h5" --pairing per-query -q -o "$tmp/pq.h5" &&
  "$B/bin/kvdim-spectrum" "$tmp/m.h5" --pair bqk,wv -q -o "$tmp/b.h5" &&
  "$B/bin/kvdim-spectrum" "$tmp/m.h5" --pair k,vw -q -o "$tmp/k.h5" &&
  "$make_file" error-table "$tmp/t.h5" 0 1 && "$make_file" error-table "$tmp/t_other.h5" 0 1 hash=xxh3:9 || { echo "not ok cannot make inputs"; exit 1; }

check "removal rates" "$fit" "$tmp/s.h5" --removal-rate 0:0.9:0.1 -o "$tmp/r.h5"
awk '$1 ~ /^[0-9.]+$/ && NF == 9 { if ($2 < p || $4 < 1 || $9 > 8) exit 1; p = $2; n++ } END { exit n != 10 }' "$tmp/log" &&
  ok "p rises with r, widths within 1 .. d_head" || not_ok "p rises with r, widths within 1 .. d_head"
check "wanted p" "$fit" "$tmp/s.h5" --overall-p 0,0.25,0.5,0.875 -o "$tmp/p.h5"
awk 'NF == 10 && $1 ~ /^[0-9.]+$/ { if ($3 < $1 || $3 > $1 + 0.05) exit 1; n++ } END { exit n != 4 }' "$tmp/log" &&
  ok "p is at or just above what was wanted" || not_ok "p is at or just above what was wanted"
check "energy" "$fit" "$tmp/s.h5" --removal-rate 0.1 --energy --pair bqk,bvw -q -o "$tmp/e.h5"
h5dump -a /rule "$tmp/e.h5" 2>/dev/null | grep -q eq6-energy && ok "rule is recorded" || not_ok "rule is recorded"
check "falls back on bqk and wv" "$fit" "$tmp/b.h5" --removal-rate 0.1 -o "$tmp/x.h5"
grep -q "pairs bqk and wv" "$tmp/log" && ok "and says so" || not_ok "and says so"
check "by error" "$fit" "$tmp/s.h5" --error-table "$tmp/t.h5" --overall-p 0.1,0.5 -o "$tmp/t1.h5"
grep -q "rule error, pairs bqk and bvw" "$tmp/log" && grep -q "nan  *0.500000" "$tmp/log" && ok "rule error" || not_ok "rule error"

if "$PYTHON" -c 'import h5py, numpy' 2>/dev/null; then
  check "NumPy finds the same widths" "$PYTHON" tests/oracle/rates.py "$tmp/s.h5" "$tmp/r.h5"
else
  echo "skip NumPy finds the same widths: no h5py for $PYTHON"
fi
"$fit" "$tmp/s.h5" --overall-p 0.5 --json -o "$tmp/j.h5" >"$tmp/j.json" 2>"$tmp/log" && "$PYTHON" -c '
import json, sys
x = json.load(open(sys.argv[1]))
assert x["pairs"] == ["qk", "vw"] and x["points"][0]["overall_p"] >= 0.5 == x["points"][0]["wanted_p"]' "$tmp/j.json" 2>>"$tmp/log" && ok "json" || not_ok "json"

refused "more than is attainable" 1 "the largest attainable is 0.875" "$fit" "$tmp/s.h5" --overall-p 0.5,0.9 -o "$tmp/y.h5"
refused "more than the table has" 1 "is not attainable: the table's smallest width is 2 of 8" "$fit" "$tmp/s.h5" --error-table "$tmp/t.h5" --overall-p 0.8 -o "$tmp/y.h5"
refused "a table of another model" 1 "different models" "$fit" "$tmp/s.h5" --error-table "$tmp/t_other.h5" --overall-p 0.5 -o "$tmp/y.h5"
refused "a table of pairs that are missing" 1 "is about pair 'bvw'" "$fit" "$tmp/b.h5" --error-table "$tmp/t.h5" --overall-p 0.5 -o "$tmp/y.h5"
refused "per-query bases" 1 "widths need pairing 'shared'" "$fit" "$tmp/pq.h5" --removal-rate 0.1 -o "$tmp/y.h5"
refused "no pair of the Q-K side" 1 "has no pair of the Q-K side" "$fit" "$tmp/k.h5" --removal-rate 0.1 -o "$tmp/y.h5"
check "k when asked for" "$fit" "$tmp/k.h5" --removal-rate 0.1 --pair k,vw -q -o "$tmp/x.h5"
refused "a pair that is missing" 1 "the spectrum has no pair 'qk'" "$fit" "$tmp/k.h5" --removal-rate 0.1 --pair qk,vw -o "$tmp/y.h5"
refused "two pairs of one side" 1 "names 2 pairs of the Q-K side" "$fit" "$tmp/s.h5" --removal-rate 0.1 --pair qk,k -o "$tmp/y.h5"
refused "moments are no spectrum" 1 "m.h5" "$fit" "$tmp/m.h5" --removal-rate 0.1 -o "$tmp/y.h5"
[ ! -e "$tmp/y.h5" ] && ok "failures leave nothing" || not_ok "failures leave nothing"
refused "r = 1" 2 "--removal-rate: '1'" "$fit" "$tmp/s.h5" --removal-rate 0.5,1 -o "$tmp/y.h5"
refused "both" 2 "give one of --removal-rate, --overall-p and --loss, once" "$fit" "$tmp/s.h5" --removal-rate 0.5 --overall-p 0.1 -o "$tmp/y.h5"
refused "neither" 2 "give --removal-rate or --overall-p" "$fit" "$tmp/s.h5" -o "$tmp/y.h5"
refused "table without p" 2 "--error-table goes with --overall-p" "$fit" "$tmp/s.h5" --removal-rate 0.5 --error-table "$tmp/t.h5" -o "$tmp/y.h5"
