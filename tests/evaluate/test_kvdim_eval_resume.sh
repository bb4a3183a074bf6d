#!/bin/sh
# kvdim-eval --sweep, --resume and --target: killed without warning and continued, rows are those of a run that nobody disturbed.
. tests/lib/cases.sh
EVAL="$B/bin/kvdim-eval data/models/kvdim-6m --text data/texts/stories.txt --tokens 400 --seq-len 100 --prompt 40 --cache f16 --threads 1"
# values KEY FILE.json: the values of a key, also empty ones
values() { sed -n "s/^ *\"$1\": \"*\([^\",]*\)\"*,*\$/\1/p" "$2"; }
# rows FILE.json: what must be the same whatever happened: all but the time and the path
rows() { grep -v -e '"seconds"' -e '"output"' "$1"; }

"$B/bin/kvdim-collect" data/models/kvdim-6m --text data/texts/articles.txt --tokens 1024 --seq-len 256 --rope both -q -o "$D/d.h5" &&
"$B/bin/kvdim-spectrum" "$D/d.h5" --pair qk,vw,wv,bqk,bvw -q -o "$D/s.h5" || { not_ok prepare; exit 1; }

# ---- a sweep: bytes fall with every value of every method's key ---------------------------------------
sweep="--spectrum $D/s.h5 --calibration $D/d.h5 --sweep 2 --method zack --method palu --method think,window=8 --method h2o --method kivi,residual=32
  --method sparsity,window=16 --method zdc --method mikv --method xkv,layers=2 --method snapkv,window=8+balanced"
sweep=$(echo $sweep | sed 's/snapkv,window=8+balanced/snapkv+balanced,window=8/')
if $EVAL $sweep -q --json -o "$D/at-once.h5" >"$D/at-once.json" 2>"$D/err" &&
   values cache_share "$D/at-once.json" >"$D/c" && values rate_key "$D/at-once.json" >"$D/k" &&
   [ "$(wc -l <"$D/c")" -eq 21 ] && awk 'NR > 1 && NR % 2 == 1 && !($1 < last) { wrong = 1 } { last = $1 } END { exit wrong }' "$D/c"
then ok "a sweep goes from many bytes to few"; else not_ok "a sweep goes from many bytes to few" "$(paste "$D/k" "$D/c")" "$(cat "$D/err")"; fi
if [ "$(sort -u "$D/k" | tr '\n' ' ')" = " h2o.heavy kivi.bits lower.heavy p palu.p sparsity.tl think.p xkv.rank_k " ]
then ok "rows name the key"; else not_ok "rows name the key" "$(sort -u "$D/k" | tr '\n' ' ')"; fi

# ---- one by one, all at once: the same rows -------------------------------------------------------------
if $EVAL $sweep -q --json --resume -o "$D/one.h5" >"$D/one.json" 2>"$D/err" && rows "$D/at-once.json" >"$D/1" && rows "$D/one.json" >"$D/2" &&
   cmp -s "$D/1" "$D/2" && [ ! -e "$D/one.h5.rows" ]
then ok "rows one by one are those of one pass"; else not_ok "rows one by one are those of one pass" "$(diff "$D/1" "$D/2" | head -5)" "$(cat "$D/err")"; fi

# ---- killed, twice, and continued, in the points and in the search -------------------------------------
search="--spectrum $D/s.h5 --method h2o --method uniform --method kivi,residual=32 --sweep 3 --target 0.9"
$EVAL $search -q --json --resume -o "$D/whole.h5" >"$D/whole.json" 2>"$D/err" || not_ok "search" "$(cat "$D/err")"
rows "$D/whole.json" >"$D/whole.rows"
# interrupt N: starts the run and kills it when it has saved at least N rows
interrupt() {
  $EVAL $search -q --resume -o "$D/killed.h5" >"$D/out" 2>"$D/err" & pid=$!
  saved=0
  while kill -0 $pid 2>/dev/null && [ "$saved" -lt "$1" ]; do
    sleep 0.02
    [ -e "$D/killed.h5.rows" ] && cp "$D/killed.h5.rows" "$D/copy" 2>/dev/null &&
      saved=$("$B/tests/tool_h5list" "$D/copy" 2>/dev/null | sed -n 's/^dataset|\/rows\/kl|.*//p' | wc -l)
    [ "$saved" -gt 0 ] && saved=$(cksum <"$D/copy" | cut -d' ' -f1 >>"$D/seen"; sort -u "$D/seen" | wc -l)
  done
  kill -9 $pid 2>/dev/null; wait $pid 2>/dev/null
  [ ! -e "$D/killed.h5" ]
}
: >"$D/seen"
if interrupt 3 && interrupt 14; then ok "killed in the points and in the search"
else not_ok "killed in the points and in the search" "$(sort -u "$D/seen" | wc -l) states seen" "$(cat "$D/err")"; fi
if $EVAL $search --json --resume -o "$D/killed.h5" >"$D/killed.json" 2>"$D/err" && rows "$D/whole.json" >"$D/1" && rows "$D/killed.json" >"$D/2" &&
   cmp -s "$D/1" "$D/2" && [ ! -e "$D/killed.h5.rows" ] && grep -q "going on after" "$D/err"
then ok "continued, the same rows and targets"; else not_ok "continued, the same rows and targets" "$(diff "$D/1" "$D/2" | head -5)" "$(cat "$D/err")"; fi

cksum "$D/killed.h5" >"$D/1"
if $EVAL $search --json --resume -o "$D/killed.h5" >"$D/out" 2>"$D/err" && cksum "$D/killed.h5" | cmp -s - "$D/1" && grep -q "is complete: nothing to do" "$D/err" &&
   grep -q '"complete": true' "$D/out"
then ok "complete: nothing to do"; else not_ok "complete: nothing to do" "$(cat "$D/err")"; fi

# ---- interrupted: what is kept, and how to go on ---------------------------------------------------------
# stopped NAME TEXT OPTIONS...: a long run, stopped after a second and when it has saved a row, says the text
stopped() {
  name=$1 text=$2; shift 2
  $EVAL --tokens 9000 --method kivi,residual=32,bits=1/2/3/4/5/6/7/8 --method hetero,k=8,v=2/4/8 -q -o "$D/stopped.h5" "$@" >"$D/out" 2>"$D/err" & pid=$!
  sleep 1
  while [ $# -gt 0 ] && [ ! -e "$D/stopped.h5.rows" ] && kill -0 $pid 2>/dev/null; do sleep 0.02; done
  kill -TERM $pid; wait $pid; rc=$?
  if [ $rc -eq 1 ] && [ "$(wc -l <"$D/err")" -eq 1 ] && grep -Eq "$text" "$D/err"; then ok "$name"; else not_ok "$name" "status $rc" "$(cat "$D/err")"; fi
}
stopped "nothing is kept of a run without --resume" '^kvdim-eval: nothing is kept \(--resume saves every row\): interrupted$'
stopped "rows are kept with --resume" "^kvdim-eval: [0-9]+ rows? (is|are) in '$D/stopped.h5.rows', the same command continues: interrupted\$" --resume

# ---- a link where the rows are saved -------------------------------------------------------------------
echo precious >"$D/victim"
taken=
for name in taken.h5.rows taken.h5.rows.partial; do
  ln -s victim "$D/$name"
  $EVAL --method kivi,residual=32 -q --resume -o "$D/taken.h5" >"$D/out" 2>"$D/err"
  [ $? -eq 1 ] && [ "$(wc -l <"$D/err")" -eq 1 ] && grep -qF "cannot write '$D/$name': it is a symbolic link; remove it first" "$D/err" &&
    [ "$(cat "$D/victim")" = precious ] && [ ! -e "$D/taken.h5" ] || taken="$taken $name: $(cat "$D/err")"
  rm "$D/$name"
done
if [ -z "$taken" ]; then ok "rows are not saved through a link"; else not_ok "rows are not saved through a link" "$taken"; fi

by_python "bit for bit by h5py" "$D/whole.h5" "$D/killed.h5" <<'END'
import sys, h5py
a, b = (h5py.File(p) for p in sys.argv[1:])
for group in ('rows', 'sequences', 'attention_error'):
    assert sorted(a[group]) == sorted(b[group])
    for name in a[group]:
        if name != 'seconds':
            assert a[group][name][()].tobytes() == b[group][name][()].tobytes(), name
assert sorted(a['target']) == ['h2o', 'kivi', 'uniform']
for t in a['target']:
    for k, x in a['target'][t].attrs.items():
        y = b['target'][t].attrs[k]
        assert x == y or (x != x and y != y), (t, k, x, y)
h, u = a['target/h2o'].attrs, a['target/uniform'].attrs
assert h['key'] == b'h2o.heavy' and h['p'] != h['p'] and u['key'] == b'p' and u['p'] == u['value']
assert abs(u['saving'] - u['p']) < 1e-6   # two widths of a head in the cache's type: p of the bytes
for t in (h, u):
    if t['value_misses'] == t['value_misses'] and t['value'] == t['value']:
        assert t['saving'] < t['saving_misses']
END

# ---- the report's fronts, from its own points by another way --------------------------------------------
if "$B/bin/kvdim-report" "$D/whole.h5" --no-plots -q -o "$D/report" 2>"$D/err" && "$PYTHON" - "$D/report/tables" >"$D/log" 2>&1 <<'END'
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1] + '/pareto-1.csv')))
assert len(rows) == 9, len(rows)   # three settings of three methods; what a search visited is not among them
best = {0: lambda r: float(r['kl']), 1: lambda r: -float(r['top1_share']), 2: lambda r: float(r['perplexity_ratio'])}
for r in rows:
    bits = 0
    for k, f in best.items():
        cheaper = [f(x) for x in rows if x is not r and float(x['cache_share']) <= float(r['cache_share'])]
        equal = [f(x) for x in rows if x is not r and float(x['cache_share']) == float(r['cache_share'])]
        if all(f(r) < y or (f(r) == y and y in equal) for y in cheaper):
            bits |= 1 << k
    assert bits == int(r['fronts']), (r, bits)
assert any(int(r['fronts']) for r in rows)
front = list(csv.DictReader(open(sys.argv[1] + '/pareto.csv')))
assert {(x['method'], x['setting']) for x in front} - {('none', '')} == {(x['series'], '%s = %.4g' % (x['rate_key'], float(x['rate_value']))) for x in rows if int(x['fronts'])}
saving = {r['method']: r for r in csv.DictReader(open(sys.argv[1] + '/saving.csv'))}
assert set(saving) == {'h2o', 'kivi', 'uniform'}
target = {(r['method'], r['how']): r for r in csv.DictReader(open(sys.argv[1] + '/target.csv'))}
assert target['uniform', 'search']['key'] == 'p' and target['h2o', 'search']['p'] == '' and target['h2o', 'search']['key'] == 'h2o.heavy'
END
then ok "fronts in the report"; else not_ok "fronts in the report" "$(cat "$D/err" "$D/log")"; fi

# ---- what is refused -------------------------------------------------------------------------------------
# fails NAME STATUS TEXT OPTIONS...
fails() {
  name=$1 want=$2 text=$3; shift 3
  "$@" >"$D/out" 2>"$D/err"; rc=$?
  if [ $rc -eq "$want" ] && grep -q -- "$text" "$D/err"; then ok "$name"; else not_ok "$name" "status $rc" "$(cat "$D/err")"; fi
}
cksum "$D/killed.h5" >"$D/1"
fails "a complete result of other options" 1 "nothing to resume: '$D/killed.h5' is complete, but not from this run: method was 'none h2o uniform kivi,residual=32', is now 'none h2o'; write to another file" \
  $EVAL --spectrum "$D/s.h5" --method h2o --sweep 3 --target 0.9 --resume -q -o "$D/killed.h5"
cksum "$D/killed.h5" | cmp -s - "$D/1" && ok "it is kept" || not_ok "it is kept" "$(cksum "$D/killed.h5")"
$EVAL --method h2o -q -o "$D/plain.h5" 2>"$D/err"
fails "a result made without --resume" 1 "nothing to resume: '$D/plain.h5' was made without --resume; write to another file" $EVAL --method tova --resume -q -o "$D/plain.h5"
cp "$D/d.h5" "$D/other.h5"
fails "a file of another program" 1 "nothing to resume: '$D/other.h5' .*; write to another file" $EVAL --method tova --resume -q -o "$D/other.h5"
cmp -s "$D/d.h5" "$D/other.h5" && ok "it is kept" || not_ok "it is kept"
rm -f "$D/other.h5"
cp "$D/copy" "$D/other.h5.rows"
fails "rows of other options" 1 "cannot be resumed: method was 'none h2o uniform kivi,residual=32', is now 'none h2o'" \
  $EVAL --spectrum "$D/s.h5" --method h2o --sweep 3 --target 0.9 --resume -q -o "$D/other.h5"
fails "rows of other threads" 1 "cannot be resumed: threads was '1', is now '2'; give the options of that run, --threads too, or remove the file$" \
  $EVAL $search --threads 2 --resume -q -o "$D/other.h5"
# Without --resume these rows stay, which is said.
if $EVAL --method h2o -q -o "$D/other.h5" 2>"$D/err" && grep -qF "warning: '$D/other.h5.rows' has results of an interrupted run; this run does not use them (--resume does) and does not remove them" "$D/err" && cmp -s "$D/copy" "$D/other.h5.rows"
then ok "rows of an interrupted run beside a run without --resume"; else not_ok "rows of an interrupted run beside a run without --resume" "$(cat "$D/err")"; fi
rm "$D/other.h5"
head -c 1000 "$D/copy" >"$D/other.h5.rows"
fails "damaged rows" 1 "cannot resume: '$D/other.h5.rows'.*run without --resume" $EVAL $search --resume -q -o "$D/other.h5"
# A flipped bit in saved rows is refused in one line, or is in a place that no value comes from.
refused=0 unharmed=0 wrong=
for seed in 1 2 3 4 5 6; do
  cp "$D/copy" "$D/other.h5.rows"
  place=$("$B/tests/tool_flip" "$D/other.h5.rows" $seed)
  if $EVAL $search --json --resume -o "$D/other.h5" >"$D/other.json" 2>"$D/err"; then
    rows "$D/other.json" | cmp -s - "$D/whole.rows" && unharmed=$((unharmed + 1)) || wrong="$wrong seed $seed, $place;"
  elif [ "$(wc -l <"$D/err")" -eq 1 ] && grep -q "cannot resume: .*run without --resume" "$D/err" && [ -e "$D/other.h5.rows" ]; then refused=$((refused + 1))
  else wrong="$wrong seed $seed, $place: $(head -1 "$D/err");"
  fi
  rm -f "$D/other.h5"
done
if [ -z "$wrong" ] && [ $refused -gt 0 ]; then ok "flipped rows"; else not_ok "flipped rows" "$refused refused, $unharmed unharmed$wrong"; fi
fails "a key that trades nothing" 2 "key 'kivi.group' is none that trades bytes for quality (--list-methods names them after --target)" $EVAL --method kivi --target 0.9 --target-key kivi.group -o "$D/x.h5"
fails "a method without such a key" 1 "needs --spectrum" $EVAL --sweep 2 -o "$D/x.h5"
fails "a key without a search" 2 "--target-key requires --target" $EVAL --method kivi --target-key bits -o "$D/x.h5"
fails "bits of widths that nobody gave" 1 "dims need p= or r=" $EVAL --spectrum "$D/s.h5" --method zack+kivi,residual=32 --target 0.9 -q -o "$D/x.h5"

# ---- a value without an effect is left out, at once, one by one and continued ---------------------------
search="--method h2o --method snapkv --method tova --sweep 3"
left="kvdim-eval: warning: snapkv.budget=0.45 is left out of the sweep: method 'snapkv': 'snapkv' dropped and lowered no entry"
if $EVAL $search -q --json -o "$D/left.h5" >"$D/left.json" 2>"$D/err" && grep -q "^$left" "$D/err" && rows "$D/left.json" >"$D/1" &&
   [ "$(values method "$D/left.json" | tr '\n' ' ')" = "none h2o h2o h2o snapkv snapkv tova tova tova " ]
then ok "a value without an effect is left out"; else not_ok "a value without an effect is left out" "$(values method "$D/left.json")" "$(cat "$D/err")"; fi
rm -f "$D/killed.h5"
: >"$D/seen"
if interrupt 6 && $EVAL $search -q --json --resume -o "$D/killed.h5" >"$D/killed.json" 2>"$D/err" && grep -q "^$left" "$D/err" && rows "$D/killed.json" >"$D/2" &&
   cmp -s "$D/1" "$D/2" && [ ! -e "$D/killed.h5.rows" ]
then ok "and again in a run that goes on"; else not_ok "and again in a run that goes on" "$(diff "$D/1" "$D/2" | head -5)" "$(cat "$D/err")"; fi
if $EVAL --method snapkv,budget=0.9 --method h2o -q --json -o "$D/left.h5" >"$D/left.json" 2>"$D/err" && [ "$(values method "$D/left.json" | tr '\n' ' ')" = "none h2o " ] &&
  grep -q "^kvdim-eval: warning: 'snapkv.budget=0.9[^']*' is left out: method 'snapkv': " "$D/err" && grep -q "^kvdim-eval: warning: 1 of 2 methods was left out, see above" "$D/err"
then ok "a method without an effect beside another"; else not_ok "a method without an effect beside another" "$(values method "$D/left.json")" "$(cat "$D/err")"; fi
search="--method h2o --method snapkv,budget=0.9 --method kivi,residual=32 --method h2o,heavy=0.3/0.25/0.2/0.15/0.05/0.02"
rm -f "$D/killed.h5"
: >"$D/seen"
if $EVAL $search -q --json -o "$D/left.h5" >"$D/left.json" 2>"$D/err" && rows "$D/left.json" >"$D/1" && interrupt 3 &&
   $EVAL $search -q --json --resume -o "$D/killed.h5" >"$D/killed.json" 2>"$D/err" && rows "$D/killed.json" >"$D/2" && cmp -s "$D/1" "$D/2" &&
   [ ! -e "$D/killed.h5.rows" ] && grep -q "^kvdim-eval: warning: 1 of 9 methods was left out" "$D/err" &&
   $EVAL $search --resume -o "$D/killed.h5" >"$D/out" 2>"$D/err" && grep -q "is complete: nothing to do" "$D/err"
then ok "and again in a run that goes on"; else not_ok "and again in a run that goes on" "$(diff "$D/1" "$D/2" | head -5)" "$(cat "$D/err")"; fi
# The given budget and the first one of the search hold every prompt: the search goes on with smaller ones. kivi leaves 128 tokens exact whatever its bits.
search="--method snapkv,budget=0.9 --method kivi --method h2o --target 0.9"
if $EVAL $search -q --json -o "$D/left.h5" >"$D/left.json" 2>"$D/err" && grep -q '"h2o": {' "$D/left.json" && grep -q '"snapkv": {' "$D/left.json" && ! grep -q '"kivi": {' "$D/left.json" &&
   grep -q "^kvdim-eval: warning: 'snapkv.budget=0.9,[^']*' is left out: " "$D/err" && grep -q "^kvdim-eval: warning: snapkv.budget=0.45 is left out of the search: " "$D/err" &&
   grep -q "^kvdim-eval: warning: 'kivi' is not searched: method 'kivi': no value of kivi.bits changes a cached token" "$D/err"
then ok "a search beyond values without an effect"; else not_ok "a search beyond values without an effect" "$(cat "$D/left.json" "$D/err")"; fi
rows "$D/left.json" >"$D/1"
if $EVAL $search -q --json --resume -o "$D/left2.h5" >"$D/left.json" 2>"$D/err" && rows "$D/left.json" >"$D/2" && cmp -s "$D/1" "$D/2"
then ok "the same one by one"; else not_ok "the same one by one" "$(diff "$D/1" "$D/2" | head -5)" "$(cat "$D/err")"; fi
if ! $EVAL --method kivi --target 0.9 --resume -q -o "$D/nothing.h5" 2>"$D/err" && [ ! -e "$D/nothing.h5" ] && grep -q "^kvdim-eval: --target: no method is left to search: method 'kivi': no value of kivi.bits" "$D/err"
then ok "a search of nothing"; else not_ok "a search of nothing" "$(cat "$D/err")"; fi
if ! $EVAL --method snapkv,budget=0.9 --resume -q -o "$D/none.h5" 2>"$D/err" && grep -q "^kvdim-eval: method 'snapkv': 'snapkv' dropped" "$D/err"
then ok "the same command would fail again"; else not_ok "the same command would fail again" "$(cat "$D/err")"; fi
if $EVAL --method snapkv,window=90 --method h2o --sweep 2 -q --json -o "$D/left.h5" >"$D/left.json" 2>"$D/err" && [ "$(values method "$D/left.json" | tr '\n' ' ')" = "none h2o h2o " ] &&
   grep -q "^kvdim-eval: warning: no value is left of a method: method 'snapkv'" "$D/err"
then ok "a method without a value"; else not_ok "a method without a value" "$(cat "$D/err")"; fi
