#!/bin/sh
# kvdim-jct on the CPU: rows and their sums, resuming after kill -9, replays, traces, what it refuses.
. tests/lib/cases.sh
needs h5dump hdf5-tools
jct="$B/bin/kvdim-jct"
small="--threads 2 --device cpu"

"$B/tests/tool_checkpoint" --vocab 40 "$D/model" && "$B/bin/kvdim-collect" "$D/model" --random 400 --moments -q -o "$D/m.h5" &&
  "$B/bin/kvdim-spectrum" "$D/m.h5" -q -o "$D/s.h5" && "$B/bin/kvdim-fit" "$D/s.h5" --overall-p 0.25,0.5 -q -o "$D/r.h5" ||
  { echo "not ok cannot make a model and its bases"; exit 1; }

# ---- weights of 4 bits need a GPU -----------------------------------------------------------------
refused "weights of 8 bits" 2 "--weights-bits 8: the engine has weights of 4 and of 16 bits" "$jct" "$D/model" $small --method none --weights-bits 8 --input-len 8 --output-len 2 -o "$D/none.h5"
refused "weights of 4 bits on a CPU" 1 "none@w4: left out: the CPU engine has no product with weights of 4 bits" "$jct" "$D/model" $small --method none --weights-bits 4 --input-len 8 --output-len 2 -o "$D/none.h5"

# ---- jobs -------------------------------------------------------------------------------------------
check "jobs of three methods" "$jct" "$D/model" $small --method none,zack,p=0.5 --method h2o,heavy=0.2,recent=0.2 --spectrum "$D/s.h5" \
  --input-len 20,60 --output-len 1,8 --batch 1,3 --repeats 3 --timeline "$D/t.json" -o "$D/a.h5"
cp "$D/log" "$D/said"
grep -q '^job *h2o,heavy=0\.2,recent=0\.2  *1 ' "$D/said" && grep -q '^attention: share of JCT; residue: ' "$D/said" && ok "names in full, and the columns" || not_ok "names in full, and the columns"
is "no nan in the table" 0 "$(grep -ci nan "$D/said")"
is "a row each" "24" "$(column "$D/a.h5" kind | tr ' ' '\n' | grep -c job)"
is "methods in order" "none zack,p=0.5 h2o,heavy=0.2,recent=0.2" "$(column "$D/a.h5" method | tr ' ' '\n' | uniq | tr '\n' ' ' | sed 's/ $//')"
is "points" "24 24" "$(attribute "$D/a.h5" /points) $(attribute "$D/a.h5" /points_done)"
grep -q 'zack,p=0.5, batch 1, output 8: .*input length' "$D/said" && grep -q 'zack,p=0.5, batch 3, input 60: .*output length' "$D/said" && ok "break-even lengths" || { cp "$D/said" "$D/log"; not_ok "break-even lengths"; }
check "lengths of one run each" "$jct" "$D/model" $small --method none,h2o,heavy=0.2,recent=0.2 --input-len 20,60 --output-len 4 --repeats 1 -o "$D/once.h5"
grep -q '^h2o,.*faster than none.*(one run of each job)$' "$D/log" && ok "the summary says so" || not_ok "the summary says so"
if "$PYTHON" -c 'import h5py, numpy' 2>/dev/null; then
  check "parts sum to what was measured, samples agree" "$PYTHON" tests/oracle/results.py jct "$D/a.h5"
  # Equal runs that differ by 1000 s: the page has no length from which on a method is faster, but one at which runs are too noisy.
  cp "$D/a.h5" "$D/noisy.h5" && "$PYTHON" -c 'import h5py, sys; h5py.File(sys.argv[1], "r+")["rows/jct_max_s"][...] = 1000' "$D/noisy.h5" &&
    "$B/bin/kvdim-report" "$D/noisy.h5" --no-plots -q -o "$D/page"
  is "no break-even length on the page of noisy runs" 0 "$(awk -F, 'NR > 1 && ($(NF - 1) != "" || $NF == "")' "$D/page/tables/jct-break-even.csv" | wc -l)"
  # Noise at the short prompts alone, while every method is 10 s slower than none at the long ones: there is no such length, whatever the noise.
  "$PYTHON" - "$D/noisy.h5" <<'P' && "$B/bin/kvdim-report" "$D/noisy.h5" --no-plots -q -o "$D/page"
import h5py, sys
r = h5py.File(sys.argv[1], "r+")["rows"]
long = r["input"][:] == 60
r["jct_s"][...] = r["jct_s"][:] + 10 * (long & (r["name"][:] != b"none"))
for name in ("jct_min_s", "jct_max_s"): r[name][...] = r["jct_s"][:] + 1000 * ~long * (name == "jct_max_s")
P
  is "nor a length that is too noisy where noise has no part" "yes" "$(awk -F, '/,input,/ { n++; bad += $(NF - 1) $NF != "" } END { print n && !bad ? "yes" : n " rows, " bad }' "$D/page/tables/jct-break-even.csv")"
else
  echo "skip parts sum to what was measured, samples agree: no h5py for $PYTHON"
fi
# Without NumPy as well: the largest share of time that no part has.
is "residue below 3 %" "yes" "$(column "$D/a.h5" residue_share | tr ' ' '\n' | awk '{ if ($1 > worst || -$1 > worst) worst = $1 < 0 ? -$1 : $1 } END { print worst < 0.03 ? "yes" : worst }')"
"$PYTHON" -c 'import json, sys
t = json.load(open(sys.argv[1]))["traceEvents"]
x = [e for e in t if e["ph"] == "X"]; it = [e for e in x if e["cat"] == "iteration"]; parts = sum(e["dur"] for e in x if e["cat"] == "phase")
assert len(it) > 24 and sum(e["ph"] == "b" for e in t) == sum(e["ph"] == "e" for e in t) == 12 * (1 + 3)
assert abs(parts - sum(e["dur"] for e in it)) < 0.03 * parts' "$D/t.json" >"$D/log" 2>&1 && ok "the trace" || not_ok "the trace"

check "points of a rates file" "$jct" "$D/model" $small --method zack --spectrum "$D/s.h5" --rates "$D/r.h5" --input-len 9 --output-len 2 --repeats 1 --phases off --dtype f16 -q -o "$D/rates.h5"
is "one row a point" "2" "$(column "$D/rates.h5" kind | wc -w)"
is "no parts when off" "NaN NaN" "$(column "$D/rates.h5" decode_mlp_s | sed 's/nan/NaN/g')"
check "in pieces, few at once" "$jct" "$D/model" $small --input-len 40 --output-len 4 --batch 5 --max-batch 2 --chunk 16 --repeats 1 --json -o "$D/c.h5"
grep -q '"running": 2' "$D/log" && grep -q '"chunk": 16' "$D/log" && ok "and says so" || not_ok "and says so"

# ---- several GPUs: what is refused before one is asked for ----------------------------------------------
refused "prompts by tokens of one GPU" 2 "--parallel sequence requires --gpus of at least 2" "$jct" "$D/model" $small --parallel sequence --input-len 9 --output-len 1 -o "$D/no.h5"
refused "prompts by tokens, and then steps" 2 "requires --output-len 1" "$jct" "$D/model" $small --gpus 2 --parallel sequence --input-len 9 --output-len 1,2 -o "$D/no.h5"
refused "prompts by tokens on stock attention" 2 "cannot be used with --attention papers or stock" "$jct" "$D/model" $small --gpus 2 --parallel sequence --attention stock --input-len 9 --output-len 1 -o "$D/no.h5"
refused "prompts by tokens in pieces" 2 "cannot be used with --chunk" "$jct" "$D/model" $small --gpus 2 --parallel sequence --chunk 8 --input-len 9 --output-len 1 -o "$D/no.h5"
refused "another way to share" 2 "--parallel: 'heads' is none of tensor, sequence" "$jct" "$D/model" $small --gpus 2 --parallel heads --input-len 9 --output-len 1 -o "$D/no.h5"
refused "two GPUs where none is used" 1 "--gpus 2: no GPU can be used here" "$jct" "$D/model" $small --gpus 2 --input-len 9 --output-len 1 -o "$D/no.h5"

# A method whose budget or exact window holds the requests whole compresses nothing: said, with the numbers.
check "requests shorter than a method's window" "$jct" "$D/model" $small --method none,kivi,h2o --input-len 20 --output-len 4 --repeats 1 -q -o "$D/idle.h5"
is "nothing saved" "1 kvdim-jct: kivi, 1 x (20 + 4): NOTHING SAVED: its cache held 512 bytes a token, an uncompressed one holds 512" "$(grep -c . "$D/log") $(cat "$D/log")"

# ---- iterations, requests ---------------------------------------------------------------------------
check "iterations" "$jct" "$D/model" $small --method none,kivi,bits=4,group=16,residual=32 --input-len 64 --output-len 16 --batch 4 --iterations --repeats 2 -o "$D/i.h5"
is "pieces and steps" "yes" "$(column "$D/i.h5" kind | tr ' ' '\n' | sort | uniq -c | awk "\$2 == \"iteration\" { print (\$1 >= 16) ? \"yes\" : \$1 }")"
check "only the longest steps" "$jct" "$D/model" $small --method none --input-len 64 --output-len 16 --batch 4 --iterations --step-batch 1,3 --repeats 2 -q -o "$D/i3.h5"
is "one job and a step for each number of requests" "job iteration iteration, 4 1 3" "$(column "$D/i3.h5" kind), $(column "$D/i3.h5" batch)"
refused "more requests than run at a time" 1 "step-batch 1,9: at most 4 requests run at the same time; raise --max-batch" "$jct" "$D/model" $small --input-len 64 --output-len 16 --batch 4 --iterations --step-batch 1,9 -o "$D/i9.h5"
printf 'arrival_s,input_tokens,output_tokens\n0,10,3\n0.01,30,1\n0.2,5,6\n' >"$D/trace.csv"
check "a trace" "$jct" "$D/model" $small --requests "$D/trace.csv" --method none,zack,p=0.5 --spectrum "$D/s.h5" -o "$D/q.h5"
is "a row for each request" "0 0.01 0.2 0 0.01 0.2" "$(column "$D/q.h5" arrival_s)"
check "Poisson arrivals" "$jct" "$D/model" $small --requests poisson:200 --lengths fixed:20:4 --n-requests 9 --chunk 64 -o "$D/p.h5"
grep -q 'none: 9 requests in ' "$D/log" && ok "and their summary" || not_ok "and their summary"
# Eight requests of 60 + 30 tokens grow from one page to two; six pages hold three of them whole. Every preemption computes at least 60 tokens again.
for rule in whole stored; do
  check "few pages, admission $rule" "$jct" "$D/model" $small --requests poisson:1e6 --lengths fixed:60:30 --n-requests 8 --pages 6 --max-batch 8 --admission $rule -o "$D/$rule.h5"
  is "all requests have their tokens, $rule" "8" "$(column "$D/$rule.h5" jct_s | wc -w)"
  is "the rule in rows, $rule" "$rule" "$(column "$D/$rule.h5" admission | tr ' ' '\n' | sort -u)"
done
total() { column "$D/$1.h5" "$2" | tr ' ' '\n' | awk '{ n += $1 } END { print n + 0 }'; }
is "whole preempts nobody" "0 0" "$(total whole preempted) $(total whole recomputed)"
is "stored preempts, and counts the tokens" "yes" "$(echo "$(total stored preempted) $(total stored recomputed)" | awk '{ print ($1 > 0 && $2 >= 60 * $1 ? "yes" : $0) }')"

# ---- kill -9, resume --------------------------------------------------------------------------------
long="--method none,zack,p=0.5 --spectrum $D/s.h5 --input-len 20,40,60,80 --output-len 30 --batch 1,4 --repeats 2"
"$jct" "$D/model" $small $long -q -o "$D/k.h5" >"$D/log" 2>&1 &
pid=$!
i=0
while [ ! -e "$D/k.h5.rows" ] && [ $i -lt 1200 ]; do sleep 0.02; i=$((i + 1)); done
kill -9 $pid; wait $pid 2>/dev/null
before=$(column "$D/k.h5.rows" jct_s)
n=$(echo "$before" | wc -w)
[ "$n" -ge 1 ] && [ "$n" -lt 16 ] && ok "killed with $(echo "$n" | awk "{ print (\$1 > 0) ? \"some\" : \"no\" }") rows on disk" || { echo "$n rows" >"$D/log"; not_ok "killed with some rows on disk"; }
refused "a resumed sweep must be the same" 1 "is of another sweep" "$jct" "$D/model" $small $long --chunk 32 --resume -o "$D/k.h5"
check "resume" "$jct" "$D/model" $small $long --resume -q -o "$D/k.h5"
after=$(column "$D/k.h5" jct_s)
is "all rows" "16" "$(echo "$after" | wc -w)"
case "$after" in "$before"*) ok "those before are kept" ;; *) echo "$before / $after" >"$D/log"; not_ok "those before are kept" ;; esac
[ ! -e "$D/k.h5.rows" ] && ok "the saved rows go when the file is there" || { ls "$D" >"$D/log"; not_ok "the saved rows go when the file is there"; }
cp "$D/k.h5" "$D/whole.h5"
check "resume of a complete sweep" "$jct" "$D/model" $small $long --resume -o "$D/k.h5"
grep -qF "'$D/k.h5' is complete: nothing to do" "$D/log" && cmp -s "$D/k.h5" "$D/whole.h5" && ok "has nothing to do" || not_ok "has nothing to do"
# A flipped bit is refused in one line, or is in a place that no value comes from.
refused_ones=0 unharmed=0 wrong=
for seed in 1 2 3 4 5 6 7 8; do
  cp "$D/whole.h5" "$D/f.h5"
  place=$("$B/tests/tool_flip" "$D/f.h5" $seed)
  cp "$D/f.h5" "$D/flipped.h5"
  if "$jct" "$D/model" $small $long --resume -o "$D/f.h5" >"$D/log" 2>&1; then
    [ "$(column "$D/f.h5" jct_s)" = "$after" ] && unharmed=$((unharmed + 1)) || wrong="$wrong seed $seed, $place;"
  elif [ "$(wc -l <"$D/log")" -eq 1 ] && grep -q "cannot resume: .*run without --resume" "$D/log" && cmp -s "$D/f.h5" "$D/flipped.h5"; then
    refused_ones=$((refused_ones + 1))
  else wrong="$wrong seed $seed, $place: $(head -1 "$D/log");"
  fi
done
echo "$refused_ones refused, $unharmed unharmed$wrong" >"$D/log"
[ -z "$wrong" ] && [ $refused_ones -gt 0 ] && ok "resume of a flipped bit" || not_ok "resume of a flipped bit"
check "resume of what is not there begins" "$jct" "$D/model" $small --input-len 9 --output-len 2 --repeats 1 --resume -q -o "$D/new.h5"

# ---- an earlier complete result stays until the new one is whole ----------------------------------------
check "a complete result" "$jct" "$D/model" $small --input-len 9 --output-len 2 --repeats 1 -q -o "$D/e.h5"
cp "$D/e.h5" "$D/earlier.h5"
killed() { # kills a run without --resume when it has saved a row
  rm -f "$D/e.h5.rows"
  "$jct" "$D/model" $small $long -q -o "$D/e.h5" >"$D/log" 2>&1 &
  pid=$!
  i=0
  while [ ! -e "$D/e.h5.rows" ] && [ $i -lt 1200 ]; do sleep 0.02; i=$((i + 1)); done
  refused "a second program, while the first runs" 1 "is being written by another program" "$jct" "$D/model" $small $long -q -o "$D/e.h5"
  kill -9 $pid; wait $pid 2>/dev/null
  cmp -s "$D/e.h5" "$D/earlier.h5" && [ -e "$D/e.h5.rows" ]
}
killed && ok "a kill leaves the earlier result and the rows" || { ls -l "$D" >"$D/log"; not_ok "a kill leaves the earlier result and the rows"; }
check "resume beside an earlier result" "$jct" "$D/model" $small $long --resume -o "$D/e.h5"
grep -q "going on after [0-9]* rows of '$D/e.h5.rows'" "$D/log" && ok "goes on with the rows" || not_ok "goes on with the rows"
is "and replaces it whole" "16 16 16" "$(attribute "$D/e.h5" /points) $(attribute "$D/e.h5" /points_done) $(column "$D/e.h5" jct_s | wc -w)"
cp "$D/e.h5" "$D/earlier.h5"
killed && "$jct" "$D/model" $small --input-len 9 --output-len 2 --repeats 1 -q -o "$D/e.h5" >"$D/log" 2>&1 && grep -qF "replacing what an interrupted run left in '$D/e.h5.rows'" "$D/log" && [ ! -e "$D/e.h5.rows" ] &&
  ok "without --resume such rows are replaced" || not_ok "without --resume such rows are replaced"
mkdir "$D/disk"
if mount -t tmpfs -o size=4m tmpfs "$D/disk" 2>/dev/null; then
  trap 'umount "$D/disk"; rm -rf "$D"' EXIT
  cp "$D/earlier.h5" "$D/disk/e.h5"
  cat /dev/zero >"$D/disk/ballast" 2>/dev/null
  truncate -s -120000 "$D/disk/ballast" # room for some rows, not for all
  refused "a disk that fills up" 1 "No space left on device" "$jct" "$D/model" $small $long -q -o "$D/disk/e.h5"
  cmp -s "$D/disk/e.h5" "$D/earlier.h5" && [ ! -e "$D/disk/e.h5.partial" ] && ok "leaves the earlier result" || { ls -l "$D/disk" >>"$D/log"; not_ok "leaves the earlier result"; }
  rm "$D/disk/ballast"
  check "resume after a full disk" "$jct" "$D/model" $small $long --resume -q -o "$D/disk/e.h5"
  is "has all rows" "16" "$(column "$D/disk/e.h5" jct_s | wc -w)"
else
  echo "skip a disk that fills up: no right to mount a tmpfs"
fi

# ---- what does not fit ------------------------------------------------------------------------------
refused "a request longer than memory" 1 "none, 1 x (150 + 4): left out: a request of 154 tokens takes 3 pages of the cache, there are 2" \
  "$jct" "$D/model" $small --input-len 20,150 --output-len 4 --pages 2 --repeats 1 -o "$D/f.h5"
is "the others are kept" "20" "$(column "$D/f.h5" input)"
h5dump -a /skipped "$D/f.h5" | grep -q 'takes 3 pages' && ok "and the file says what is missing" || not_ok "and the file says what is missing"
refused "a cache larger than memory" 1 "cache of 1000000000000 pages" "$jct" "$D/model" $small --input-len 20 --output-len 4 --pages 1000000000000 -o "$D/x.h5"
grep -Eq 'left out: [0-9.]+ GiB of memory are needed \(weights in f32 [0-9.]+, activations [0-9.]+, cache of [0-9]+ pages [0-9.]+\), [0-9.]+ GiB are available \(.*\): lower --pages' "$D/log" &&
  ok "is told with all numbers" || not_ok "is told with all numbers"
( ulimit -v 4000000
  "$jct" --version >/dev/null 2>&1 || { echo "skip a shape larger than memory: this build does not start in 4 GB of address space"; exit 0; }
  refused "a shape larger than memory" 1 "GiB are available (limit on address space, ulimit -v): lower --max-tokens" \
  timeout 60 "$jct" --shape mistral-7b $small --input-len 20 --output-len 4 --repeats 1 -o "$D/x.h5" )
refused "a method that cannot run" 1 "'minicache' wants a first pass" "$jct" "$D/model" $small --method minicache,start=0 --input-len 20 --output-len 4 -o "$D/x.h5"
refused "beyond the model's positions" 1 "the model was made for at most" "$jct" "$D/model" $small --input-len 100000 --output-len 4 -o "$D/x.h5"
if "$jct" "$D/model" --device cuda --input-len 9 --output-len 2 -q -o "$D/x.h5" >"$D/log" 2>&1; then
  echo "skip no GPU: there is one"
else
  grep -q -- '--device cuda: no CUDA' "$D/log" && ok "no GPU" || not_ok "no GPU"
fi

# ---- usage ------------------------------------------------------------------------------------------
l="--input-len 9 --output-len 2"
refused "a folder that is not there, before any work" 1 "cannot write '$D/none/x.h5': folder '$D/none'" "$jct" "$D/model" $small --input-len 20 --output-len 4 -o "$D/none/x.h5"
refused "no model" 2 "no MODEL or --shape given" "$jct" $l -o "$D/x.h5"
refused "no output" 2 "no -o OUT.h5 given" "$jct" "$D/model" $l
refused "no lengths" 2 "no --input-len or --requests given" "$jct" "$D/model" -o "$D/x.h5"
refused "lengths and requests" 2 "--requests cannot be used with --input-len" "$jct" "$D/model" $l --requests "$D/trace.csv" -o "$D/x.h5"
refused "Poisson without lengths" 2 "--requests poisson:3 requires --lengths" "$jct" "$D/model" --requests poisson:3 -o "$D/x.h5"
refused "an unknown method" 2 "--method none,magic: 'magic' is neither a method nor KEY=VALUE" "$jct" "$D/model" $l --method none,magic -o "$D/x.h5"
refused "no such attention" 2 "--attention: 'fast' is none of ours, papers, stock" "$jct" "$D/model" $l --attention fast -o "$D/x.h5"
refused "neither on nor off" 2 "--graphs: 'maybe' is none of off, on" "$jct" "$D/model" $l --graphs maybe -o "$D/x.h5"
refused "an unknown shape" 2 "llama-3.1-8b" "$jct" --shape nothing $l -o "$D/x.h5"
refused "zack without bases" 1 "spectrum" "$jct" "$D/model" $small $l --method zack,p=0.5 -o "$D/x.h5"
refused "a method without a point" 1 "has nothing to run" "$jct" "$D/model" $small $l --method zack --spectrum "$D/s.h5" -o "$D/x.h5"
refused "a method twice" 2 "--method: 'none' is given twice" "$jct" "$D/model" $small $l --method none,none -o "$D/x.h5"
refused "a chunk below the batch" 1 "is less than a step of 4 requests" "$jct" "$D/model" $small $l --batch 4 --chunk 3 -o "$D/x.h5"
printf 'arrival_s,input_tokens,output_tokens\n0,10,0\n' >"$D/bad.csv"
refused "a bad trace" 1 "output_tokens" "$jct" "$D/model" $small --requests "$D/bad.csv" -o "$D/x.h5"
refused "an output that cannot be written" 1 "cannot write" "$jct" "$D/model" $small $l --repeats 1 -o /dev/full
[ ! -e "$D/x.h5" ] && ok "failures leave nothing" || { ls "$D" >"$D/log"; not_ok "failures leave nothing"; }
