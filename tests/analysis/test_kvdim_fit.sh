#!/bin/sh
# kvdim-fit: both ways of asking, tables by error, and what it refuses.
. tests/lib/cases.sh
needs h5dump hdf5-tools
make_file="$B/tests/tool_synthetic"
fit="$B/bin/kvdim-fit"

"$make_file" moments "$D/m.h5" 300 1 && "$B/bin/kvdim-spectrum" "$D/m.h5" --pair qk,vw,wv,bqk,bvw,k -q -o "$D/s.h5" &&
  "$B/bin/kvdim-spectrum" "$D/m.h5" --pairing per-query -q -o "$D/pq.h5" &&
  "$B/bin/kvdim-spectrum" "$D/m.h5" --pair bqk,wv -q -o "$D/b.h5" &&
  "$B/bin/kvdim-spectrum" "$D/m.h5" --pair k,vw -q -o "$D/k.h5" &&
  "$make_file" error-table "$D/t.h5" 0 1 && "$make_file" error-table "$D/t_other.h5" 0 1 hash=xxh3:9 || { echo "not ok cannot make inputs"; exit 1; }

check "removal rates" "$fit" "$D/s.h5" --removal-rate 0:0.9:0.1 -o "$D/r.h5"
awk '$1 ~ /^[0-9.]+$/ && NF == 9 { if ($2 < p || $4 < 1 || $9 > 8) exit 1; p = $2; n++ } END { exit n != 10 }' "$D/log" &&
  ok "p rises with r, widths within 1 .. d_head" || not_ok "p rises with r, widths within 1 .. d_head"
check "wanted p" "$fit" "$D/s.h5" --overall-p 0,0.25,0.5,0.875 -o "$D/p.h5"
awk 'NF == 10 && $1 ~ /^[0-9.]+$/ { if ($3 < $1 || $3 > $1 + 0.05) exit 1; n++ } END { exit n != 4 }' "$D/log" &&
  ok "p is at or just above what was wanted" || not_ok "p is at or just above what was wanted"
check "energy" "$fit" "$D/s.h5" --removal-rate 0.1 --energy --pair bqk,bvw -q -o "$D/e.h5"
h5dump -a /rule "$D/e.h5" 2>/dev/null | grep -q eq6-energy && ok "rule is recorded" || not_ok "rule is recorded"
check "falls back on bqk and wv" "$fit" "$D/b.h5" --removal-rate 0.1 -o "$D/x.h5"
grep -q "pairs bqk and wv" "$D/log" && ok "and says so" || not_ok "and says so"
check "by error" "$fit" "$D/s.h5" --error-table "$D/t.h5" --overall-p 0.1,0.5 -o "$D/t1.h5"
grep -q "rule error, pairs bqk and bvw" "$D/log" && grep -q "nan  *0.500000" "$D/log" && ok "rule error" || not_ok "rule error"

if "$PYTHON" -c 'import h5py, numpy' 2>/dev/null; then
  check "NumPy finds the same widths" "$PYTHON" tests/oracle/results.py rates "$D/s.h5" "$D/r.h5"
else
  echo "skip NumPy finds the same widths: no h5py for $PYTHON"
fi
"$fit" "$D/s.h5" --overall-p 0.5 --json -o "$D/j.h5" >"$D/j.json" 2>"$D/log" && "$PYTHON" -c '
import json, sys
x = json.load(open(sys.argv[1]))
assert x["pairs"] == ["qk", "vw"] and x["points"][0]["overall_p"] >= 0.5 == x["points"][0]["wanted_p"]' "$D/j.json" 2>>"$D/log" && ok "json" || not_ok "json"

refused "more than is attainable" 1 "the largest attainable is 0.875" "$fit" "$D/s.h5" --overall-p 0.5,0.9 -o "$D/y.h5"
refused "more than the table has" 1 "is not attainable: the table's smallest width is 2 of 8" "$fit" "$D/s.h5" --error-table "$D/t.h5" --overall-p 0.8 -o "$D/y.h5"
refused "a table of another model" 1 "different models" "$fit" "$D/s.h5" --error-table "$D/t_other.h5" --overall-p 0.5 -o "$D/y.h5"
refused "a table of pairs that are missing" 1 "is about pair 'bvw'" "$fit" "$D/b.h5" --error-table "$D/t.h5" --overall-p 0.5 -o "$D/y.h5"
refused "per-query bases" 1 "widths need pairing 'shared'" "$fit" "$D/pq.h5" --removal-rate 0.1 -o "$D/y.h5"
refused "no pair of the Q-K side" 1 "has no pair of the Q-K side" "$fit" "$D/k.h5" --removal-rate 0.1 -o "$D/y.h5"
check "k when asked for" "$fit" "$D/k.h5" --removal-rate 0.1 --pair k,vw -q -o "$D/x.h5"
refused "a pair that is missing" 1 "k.h5' has no pair 'qk': give it to kvdim-spectrum --pair" "$fit" "$D/k.h5" --removal-rate 0.1 --pair qk,vw -o "$D/y.h5"
refused "two pairs of one side" 1 "names 2 pairs of the Q-K side" "$fit" "$D/s.h5" --removal-rate 0.1 --pair qk,k -o "$D/y.h5"
refused "moments are no spectrum" 1 "m.h5" "$fit" "$D/m.h5" --removal-rate 0.1 -o "$D/y.h5"
[ ! -e "$D/y.h5" ] && ok "failures leave nothing" || not_ok "failures leave nothing"
refused "r = 1" 2 "--removal-rate: 1 is not below 1" "$fit" "$D/s.h5" --removal-rate 0.5,1 -o "$D/y.h5"
refused "both" 2 "--removal-rate cannot be used with --overall-p" "$fit" "$D/s.h5" --removal-rate 0.5 --overall-p 0.1 -o "$D/y.h5"
refused "neither" 2 "no --removal-rate, --overall-p or --loss given" "$fit" "$D/s.h5" -o "$D/y.h5"
refused "table without p" 2 "--error-table requires --overall-p" "$fit" "$D/s.h5" --removal-rate 0.5 --error-table "$D/t.h5" -o "$D/y.h5"
