#!/bin/sh
# kvdim-fit: both ways of asking, tables by error, regression over a sweep, and what it refuses.
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
grep -q "rule error, pairs bqk and bvw" "$D/log" && grep -q "^ *0\.5  *-  *0\.500000" "$D/log" && ok "rule error" || not_ok "rule error"

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

# --regression: the lines that NumPy fits to the same sweep, proposals that kvdim-eval takes, for the model that was swept and for another one.
EVAL="$B/bin/kvdim-eval data/models/kvdim-6m --text data/texts/stories.txt --tokens 300 --seq-len 100 --prompt 60 --cache f16 -q"
if ! "$PYTHON" -c 'import h5py, numpy' 2>/dev/null; then echo "skip regression: python3 has no h5py"; exit 0; fi

$B/bin/kvdim-collect data/models/kvdim-6m --text data/texts/articles.txt --tokens 512 --seq-len 256 --moments -q -o "$D/m.h5" &&
$B/bin/kvdim-spectrum "$D/m.h5" --pair qk,vw -q -o "$D/s.h5" &&
$EVAL --spectrum "$D/s.h5" --method zdc,p_i.qk=0.2/0.5,p_i.v=0.2/0.5,p_u.qk=0.6/0.85,p_u.v=0.6/0.85,g=0.2/0.6 --method zack,p=0.5 -o "$D/sweep.h5" &&
$EVAL --spectrum "$D/s.h5" --method zdc,p=0.2,p_u=0.6/0.85 -o "$D/few.h5" &&
$EVAL --spectrum "$D/s.h5" --method zack,p=0.2 -o "$D/none.h5" &&
$EVAL --spectrum "$D/s.h5" --method zdc,p=0.2,p_u=0.6,mean=0/1 -o "$D/two.h5" &&
$EVAL --spectrum "$D/s.h5" --method zdc,p=0.2,p_u=0.6,mean=1 -o "$D/twin.h5" || { not_ok "sweeps"; exit 1; }

if "$fit" "$D/s.h5" --regression "$D/sweep.h5" --loss 0.001,0.05,0.2,50 --json -o "$D/r.h5" >"$D/r.json" 2>"$D/err" &&
   "$PYTHON" - "$D/sweep.h5" "$D/r.h5" "$D/r.json" >"$D/log" 2>&1 <<'END'
import json, re, sys
import h5py
import numpy as np
sweep, rates = h5py.File(sys.argv[1])["rows"], h5py.File(sys.argv[2])
said = json.load(open(sys.argv[3]))["regression"]
text = lambda r, c: [x.decode() for x in r[c]]
method, settings = text(sweep, "method"), text(sweep, "settings")
loss = sweep["perplexity"][:] / sweep["perplexity"][method.index("none")] - 1
share = sweep["cache_share"][:]
zdc = [i for i in range(len(method)) if method[i] == "zdc"]
assert len(zdc) == 32 == said["n_tried"]
value = lambda i, key: float(re.search(key + "=([^,]*)", settings[i])[1])
# Nobody cheaper loses no more.
best = [i for i in zdc if not any(share[j] <= share[i] and max(0, loss[j]) <= max(0, loss[i]) and (share[j] < share[i] or loss[j] < loss[i])
                                  for j in zdc)]
best = [i for i in best if loss[i] > 0]
assert len(best) == said["n_settings"] >= 4, (best, said)
names = ["g", "rise", "p_qk", "p_v", "p_u_qk", "p_u_v"]
y = np.array([[value(i, r"importance\.g"), value(i, r"importance\.rise"), sweep["overall_p_qk"][i], sweep["overall_p_v"][i],
               sweep["low_p_qk"][i], sweep["low_p_v"][i]] for i in best])
slope, at_one = np.polyfit(np.log(loss[best]), y, 1)
for j, n in enumerate(names):
    assert abs(said["lines"][n]["slope"] - slope[j]) < 1e-9 and abs(said["lines"][n]["at_one"] - at_one[j]) < 1e-9, n
    assert np.allclose(rates["regression/lines"][:2, j], [at_one[j], slope[j]])
for p in said["proposals"]:
    want = at_one + slope * np.log(p["loss"])
    assert p["extrapolated"] == (p["loss"] < loss[best].min() or p["loss"] > loss[best].max()), p
    for j, n in enumerate(names):
        assert n in p["moved"].split(", ") or abs(p[n] - want[j]) < 1.001e-4, (p, n, want[j])
    assert p["p_u_qk"] >= p["p_qk"] and p["p_u_v"] >= p["p_v"] and 0 <= p["g"] <= p["g"] + p["rise"] <= 1
    # The widths of both levels are just above the rates.
    for level, point in (("p_", p["point_high"]), ("p_u_", p["point_low"])):
        for pair, side in (("qk", "qk"), ("vw", "v")):
            kept = rates[pair + "/kept"][point]
            assert -1e-9 <= 1 - kept.mean() / 64 - p[level + side] < 0.01, (p, level, pair)
assert said["proposals"][0]["extrapolated"] and said["proposals"][3]["extrapolated"] and said["measured"] and said["n_models"] == 1
assert rates.attrs["rule"] == b"eq6-by-pair" and np.isnan(rates["removal_rate"][:]).all()
assert text(rates["rows"], "method") == [p["method"] for p in said["proposals"]]
open(sys.argv[3] + ".method", "w").write(said["proposals"][2]["method"])
END
then ok "the lines that NumPy fits"; else not_ok "the lines that NumPy fits" "$(cat "$D/err" "$D/log")"; fi

if $EVAL --spectrum "$D/s.h5" --method "$(cat "$D/r.json.method")" -o "$D/p.h5" 2>"$D/err" && "$PYTHON" - "$D/p.h5" "$D/r.h5" >"$D/log" 2>&1 <<'END'
import sys, h5py
row, rates = h5py.File(sys.argv[1])["rows"], h5py.File(sys.argv[2])
for column, pair, point in (("overall_p_qk", "qk", 4), ("overall_p_v", "vw", 4), ("low_p_qk", "qk", 5), ("low_p_v", "vw", 5)):
    assert abs(row[column][1] - (1 - rates[pair + "/kept"][point].mean() / 64)) < 1e-12, column
END
then ok "kvdim-eval takes a proposal, at the widths of the file"; else not_ok "kvdim-eval takes a proposal, at the widths of the file" "$(cat "$D/err" "$D/log")"; fi

# If a proposal was measured, the report says how far it is from the best of the sweep.
if "$B/bin/kvdim-report" "$D/sweep.h5" "$D/r.h5" "$D/p.h5" --no-plots -q -o "$D/report" >"$D/log" 2>&1 &&
   "$PYTHON" - "$D/sweep.h5" "$D/p.h5" "$D/report/tables" >>"$D/log" 2>&1 <<'END'
import csv, sys, h5py
def rows(path):
    r = h5py.File(path)["rows"]
    loss = r["perplexity"][:] / r["perplexity"][0] - 1
    return [(r["cache_share"][i], loss[i]) for i in range(len(loss)) if r["method"][i] == b"zdc"]
table = list(csv.DictReader(open(sys.argv[3] + "/accuracy-proposals.csv")))
(share, loss), tried = rows(sys.argv[2])[0], rows(sys.argv[1])
assert len(table) == 1 and float(table[0]["loss_asked"]) == 0.2 and table[0]["note"] == "", table
assert abs(float(table[0]["loss"]) - loss) < 1e-9 and abs(float(table[0]["cache_share"]) - share) < 1e-9
for column, within in (("oracle_asked", 0.2), ("oracle_measured", loss)):
    best = min((s for s, l in tried if l <= within), default=None)
    assert table[0][column] == "" if best is None else abs(float(table[0][column]) - best) < 1e-9, (column, table, best)
ledger = next(t for t in csv.DictReader(open(sys.argv[3] + "/ledger.csv")) if t["id"] == "ZDC Oracle")
assert ledger["verdict"] in ("reproduced", "cannot tell", "not reproduced", "not measured"), ledger
assert (table[0]["over_oracle"] == "") == (ledger["verdict"] == "not measured")
END
then ok "proposals beside the Oracle"; else not_ok "proposals beside the Oracle" "$(cat "$D/log")"; fi

# A model of 8 dimensions per head, which was never swept.
if "$B/tests/tool_synthetic" moments "$D/om.h5" 300 1 && $B/bin/kvdim-spectrum "$D/om.h5" --pair qk,vw -q -o "$D/os.h5" &&
   "$fit" "$D/os.h5" --regression "$D/sweep.h5" --loss 0.1 -o "$D/o.h5" >"$D/log" 2>"$D/err" && grep -q "nothing was measured of" "$D/log" &&
   grep -q -- "--method zdc,g=" "$D/log"
then ok "a proposal for another model"; else not_ok "a proposal for another model" "$(cat "$D/err" "$D/log")"; fi
if "$fit" "$D/s.h5" --regression "$D/sweep.h5" --regression "$D/few.h5" --loss 0.1 --json -q -o "$D/both.h5" >"$D/log" 2>"$D/err" && grep -q '"n_tried": 34' "$D/log"
then ok "two sweeps are pooled"; else not_ok "two sweeps are pooled" "$(cat "$D/err" "$D/log")"; fi
# Widths of a proposal are a rates file like any other.
if $EVAL --spectrum "$D/s.h5" --rates "$D/o.h5" --method zack -o "$D/x.h5" 2>"$D/err"; [ $? -eq 1 ] && grep -q "different models" "$D/err" &&
   $EVAL --spectrum "$D/s.h5" --rates "$D/both.h5" --method zack -o "$D/x.h5" 2>"$D/err"
then ok "its widths are those of a rates file"; else not_ok "its widths are those of a rates file" "$(cat "$D/err")"; fi
rm -f "$D/x.h5"

mv "$D/none.h5" "$D/zack.h5"
refused() { name=$1 status=$2 text=$3; shift 3; no_output "$name" "$status" "$text" "$fit" "$D/s.h5" "$@"; }
refused "too few settings" 1 "a regression over 1 model wants at least 4 settings" --regression "$D/few.h5" --loss 0.1
refused "no such rows" 1 "no row is of a method with two levels of tokens by importance" --regression "$D/zack.h5" --loss 0.1
refused "rows of two methods" 1 "differs from 'zdc' in more than rates, g and rise" --regression "$D/two.h5" --loss 0.1
refused "sweeps of two methods" 1 "one method at a time" --regression "$D/sweep.h5" --regression "$D/twin.h5" --loss 0.1
refused "no accuracy file" 1 "m.h5" --regression "$D/m.h5" --loss 0.1
refused "a loss without a sweep" 2 "--loss requires --regression" --loss 0.1
refused "a sweep without a loss" 2 "no --removal-rate, --overall-p or --loss given" --regression "$D/sweep.h5"
refused "a sweep and p" 2 "--regression requires --loss" --regression "$D/sweep.h5" --overall-p 0.5
refused "pairs of another rule" 2 "--regression cannot be used with --energy" --regression "$D/sweep.h5" --loss 0.1 --energy
refused "a loss of nothing" 2 "--loss" --regression "$D/sweep.h5" --loss 0
