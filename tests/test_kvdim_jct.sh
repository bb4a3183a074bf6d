#!/bin/sh
# kvdim-jct on the CPU: rows and their sums, resuming after kill -9, replays, traces, what it refuses.
command -v h5dump >/dev/null || { echo "skip kvdim_jct: no h5dump (package hdf5-tools)"; exit 0; }
set -u
B=${BUILD:-build}
PYTHON=${PYTHON:-/usr/bin/python3}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
jct="$B/bin/kvdim-jct"
small="--threads 2 --device cpu"

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
column() { h5dump -y -w 0 -d "/rows/$2" "$1" 2>/dev/null | awk '/DATA \{/ { on = 1; next } on && /\}/ { exit } on { gsub(/\\000/, ""); gsub(/"/, ""); gsub(/, /, " "); print }' | tr -s ' \n' ' ' | sed 's/^ //; s/ $//'; }
is() { # name want got
  if [ "$2" = "$3" ]; then ok "$1"; else echo "want '$2', got '$3'" >"$tmp/log"; not_ok "$1"; fi
}
attribute() { h5dump -a "$2" "$1" | sed -n 's/.*([0-9]*): //p'; }

"$B/tests/tool_checkpoint" --vocab 40 "$tmp/model" && "$B/bin/kvdim-collect" "$tmp/model" --random 400 --moments -q -o "$tmp/m.h5" &&
  "$B/bin/kvdim-spectrum" "$tmp/m.h5" -q -o "$tmp/s.h5" && "$B/bin/kvdim-fit" "$tmp/s.h5" --overall-p 0.25,0.5 -q -o "$tmp/r.h5" ||
  { echo "not ok cannot make a model and its bases"; exit 1; }

# ---- jobs -------------------------------------------------------------------------------------------
check "jobs of three methods" "$jct" "$tmp/model" $small --method none,zack,p=0.5 --method h2o,heavy=0.2,recent=0.2 --spectrum "$tmp/s.h5" \
  --input-len 20,60 --output-len 1,8 --batch 1,3 --repeats 3 --trace "$tmp/t.json" -o "$tmp/a.h5"
cp "$tmp/log" "$tmp/said"
is "a row each" "24" "$(column "$tmp/a.h5" kind | tr ' ' '\n' | grep -c job)"
is "methods in order" "none zack,p=0.5 h2o,heavy=0.2,recent=0.2" "$(column "$tmp/a.h5" method | tr ' ' '\n' | uniq | tr '\n' ' ' | sed 's/ $//')"
is "points" "24 24" "$(attribute "$tmp/a.h5" /points) $(attribute "$tmp/a.h5" /points_done)"
grep -q 'zack,p=0.5, batch 1, output 8: .*input length' "$tmp/said" && grep -q 'zack,p=0.5, batch 3, input 60: .*output length' "$tmp/said" && ok "break-even lengths" || { cp "$tmp/said" "$tmp/log"; not_ok "break-even lengths"; }
if "$PYTHON" -c 'import h5py, numpy' 2>/dev/null; then
  check "parts sum to what was measured, samples agree" "$PYTHON" tests/oracle/jct_file.py "$tmp/a.h5"
else
  echo "skip parts sum to what was measured, samples agree: no h5py for $PYTHON"
fi
# Without NumPy as well: the largest share of time that no part has.
is "residue below 3 %" "yes" "$(column "$tmp/a.h5" residue_share | tr ' ' '\n' | awk '{ if ($1 > worst || -$1 > worst) worst = $1 < 0 ? -$1 : $1 } END { print worst < 0.03 ? "yes" : worst }')"
"$PYTHON" -c 'import json, sys
t = json.load(open(sys.argv[1]))["traceEvents"]
x = [e for e in t if e["ph"] == "X"]; it = [e for e in x if e["cat"] == "iteration"]; parts = sum(e["dur"] for e in x if e["cat"] == "phase")
assert len(it) > 24 and sum(e["ph"] == "b" for e in t) == sum(e["ph"] == "e" for e in t) == 12 * (1 + 3)
assert abs(parts - sum(e["dur"] for e in it)) < 0.03 * parts' "$tmp/t.json" >"$tmp/log" 2>&1 && ok "the trace" || not_ok "the trace"

check "points of a rates file" "$jct" "$tmp/model" $small --method zack --spectrum "$tmp/s.h5" --rates "$tmp/r.h5" --input-len 9 --output-len 2 --repeats 1 --phases off --dtype f16 -q -o "$tmp/rates.h5"
is "one row a point" "2" "$(column "$tmp/rates.h5" kind | wc -w)"
is "no parts when off" "NaN NaN" "$(column "$tmp/rates.h5" decode_mlp_s | sed 's/nan/NaN/g')"
check "in pieces, few at once" "$jct" "$tmp/model" $small --input-len 40 --output-len 4 --batch 5 --max-batch 2 --chunk 16 --repeats 1 --json -o "$tmp/c.h5"
grep -q '"running": 2' "$tmp/log" && grep -q '"chunk": 16' "$tmp/log" && ok "and says so" || not_ok "and says so"

# ---- several GPUs: what is refused before one is asked for ----------------------------------------------
refused "prompts by tokens of one GPU" 2 "--parallel sequence: give --gpus of 2 or more" "$jct" "$tmp/model" $small --parallel sequence --input-len 9 --output-len 1 -o "$tmp/no.h5"
refused "prompts by tokens, and then steps" 2 "give --output-len 1" "$jct" "$tmp/model" $small --gpus 2 --parallel sequence --input-len 9 --output-len 1,2 -o "$tmp/no.h5"
refused "prompts by tokens on stock attention" 2 "goes without --attention papers and stock" "$jct" "$tmp/model" $small --gpus 2 --parallel sequence --attention stock --input-len 9 --output-len 1 -o "$tmp/no.h5"
refused "prompts by tokens in pieces" 2 "goes without --chunk" "$jct" "$tmp/model" $small --gpus 2 --parallel sequence --chunk 8 --input-len 9 --output-len 1 -o "$tmp/no.h5"
refused "another way to share" 2 "--parallel: 'heads' is neither tensor nor sequence" "$jct" "$tmp/model" $small --gpus 2 --parallel heads --input-len 9 --output-len 1 -o "$tmp/no.h5"
refused "two GPUs where none is used" 1 "--gpus 2: no GPU can be used here" "$jct" "$tmp/model" $small --gpus 2 --input-len 9 --output-len 1 -o "$tmp/no.h5"

# A method whose budget or exact window holds the requests whole compresses nothing: said, with the numbers.
check "requests shorter than a method's window" "$jct" "$tmp/model" $small --method none,kivi,h2o --input-len 20 --output-len 4 --repeats 1 -q -o "$tmp/idle.h5"
is "nothing saved" "1 kvdim-jct: kivi, 1 x (20 + 4): NOTHING SAVED: its cache held 512 bytes a token, an uncompressed one holds 512" "$(grep -c . "$tmp/log") $(cat "$tmp/log")"

# ---- iterations, requests ---------------------------------------------------------------------------
check "iterations" "$jct" "$tmp/model" $small --method none,kivi,bits=4,group=16,residual=32 --input-len 64 --output-len 16 --batch 4 --iterations --repeats 2 -o "$tmp/i.h5"
is "pieces and steps" "yes" "$(column "$tmp/i.h5" kind | tr ' ' '\n' | sort | uniq -c | awk "\$2 == \"iteration\" { print (\$1 >= 16) ? \"yes\" : \$1 }")"
printf 'arrival_s,input_tokens,output_tokens\n0,10,3\n0.01,30,1\n0.2,5,6\n' >"$tmp/trace.csv"
check "a trace" "$jct" "$tmp/model" $small --requests "$tmp/trace.csv" --method none,zack,p=0.5 --spectrum "$tmp/s.h5" -o "$tmp/q.h5"
is "a row for each request" "0 0.01 0.2 0 0.01 0.2" "$(column "$tmp/q.h5" arrival_s)"
check "Poisson arrivals" "$jct" "$tmp/model" $small --requests poisson:200 --lengths fixed:20:4 --n-requests 9 --chunk 64 -o "$tmp/p.h5"
grep -q 'none: 9 requests in ' "$tmp/log" && ok "and their summary" || not_ok "and their summary"

# ---- kill -9, resume --------------------------------------------------------------------------------
long="--method none,zack,p=0.5 --spectrum $tmp/s.h5 --input-len 20,40,60,80 --output-len 30 --batch 1,4 --repeats 2"
"$jct" "$tmp/model" $small $long -q -o "$tmp/k.h5" >"$tmp/log" 2>&1 &
pid=$!
i=0
while [ ! -e "$tmp/k.h5" ] && [ $i -lt 1200 ]; do sleep 0.02; i=$((i + 1)); done
kill -9 $pid; wait $pid 2>/dev/null
before=$(column "$tmp/k.h5" jct_s)
n=$(echo "$before" | wc -w)
[ "$n" -ge 1 ] && [ "$n" -lt 16 ] && ok "killed with $(echo "$n" | awk "{ print (\$1 > 0) ? \"some\" : \"no\" }") rows on disk" || { echo "$n rows" >"$tmp/log"; not_ok "killed with some rows on disk"; }
refused "a resumed sweep must be the same" 1 "is of another sweep" "$jct" "$tmp/model" $small $long --chunk 32 --resume -o "$tmp/k.h5"
check "resume" "$jct" "$tmp/model" $small $long --resume -q -o "$tmp/k.h5"
after=$(column "$tmp/k.h5" jct_s)
is "all rows" "16" "$(echo "$after" | wc -w)"
case "$after" in "$before"*) ok "those before are kept" ;; *) echo "$before / $after" >"$tmp/log"; not_ok "those before are kept" ;; esac
check "resume of what is not there begins" "$jct" "$tmp/model" $small --input-len 9 --output-len 2 --repeats 1 --resume -q -o "$tmp/new.h5"

# ---- what does not fit ------------------------------------------------------------------------------
refused "a request longer than memory" 1 "none, 1 x (150 + 4): left out: a request of 154 tokens takes 3 pages of the cache, there are 2" \
  "$jct" "$tmp/model" $small --input-len 20,150 --output-len 4 --pages 2 --repeats 1 -o "$tmp/f.h5"
is "the others are kept" "20" "$(column "$tmp/f.h5" input)"
h5dump -a /skipped "$tmp/f.h5" | grep -q 'takes 3 pages' && ok "and the file says what is missing" || not_ok "and the file says what is missing"
refused "a cache larger than memory" 1 "memory has" "$jct" "$tmp/model" $small --input-len 20 --output-len 4 --pages 1000000000000 -o "$tmp/x.h5"
refused "a method that cannot run" 1 "'minicache' wants a first pass" "$jct" "$tmp/model" $small --method minicache --input-len 20 --output-len 4 -o "$tmp/x.h5"
refused "beyond the model's positions" 1 "the model was made for at most" "$jct" "$tmp/model" $small --input-len 100000 --output-len 4 -o "$tmp/x.h5"
if "$jct" "$tmp/model" --device cuda --input-len 9 --output-len 2 -q -o "$tmp/x.h5" >"$tmp/log" 2>&1; then
  echo "skip no GPU: there is one"
else
  grep -q -- '--device cuda: no CUDA' "$tmp/log" && ok "no GPU" || not_ok "no GPU"
fi

# ---- usage ------------------------------------------------------------------------------------------
l="--input-len 9 --output-len 2"
refused "a folder that is not there, before any work" 1 "cannot write '$tmp/none/x.h5': folder '$tmp/none'" "$jct" "$tmp/model" $small --input-len 20 --output-len 4 -o "$tmp/none/x.h5"
refused "no model" 2 "no MODEL given" "$jct" $l -o "$tmp/x.h5"
refused "no output" 2 "no -o OUT.h5 given" "$jct" "$tmp/model" $l
refused "no lengths" 2 "give --input-len and --output-len, or --requests" "$jct" "$tmp/model" -o "$tmp/x.h5"
refused "lengths and requests" 2 "--requests goes without" "$jct" "$tmp/model" $l --requests "$tmp/trace.csv" -o "$tmp/x.h5"
refused "Poisson without lengths" 2 "give --lengths" "$jct" "$tmp/model" --requests poisson:3 -o "$tmp/x.h5"
refused "an unknown method" 2 "magic" "$jct" "$tmp/model" $l --method none,magic -o "$tmp/x.h5"
refused "no such attention" 2 "--attention: 'fast' is none of ours, papers, stock" "$jct" "$tmp/model" $l --attention fast -o "$tmp/x.h5"
refused "neither on nor off" 2 "--graphs: 'maybe' is neither on nor off" "$jct" "$tmp/model" $l --graphs maybe -o "$tmp/x.h5"
refused "an unknown shape" 2 "llama-3.1-8b" "$jct" --shape nothing $l -o "$tmp/x.h5"
refused "zack without bases" 1 "spectrum" "$jct" "$tmp/model" $small $l --method zack,p=0.5 -o "$tmp/x.h5"
refused "a method without a point" 1 "has nothing to run" "$jct" "$tmp/model" $small $l --method zack --spectrum "$tmp/s.h5" -o "$tmp/x.h5"
refused "a method twice" 1 "is given twice" "$jct" "$tmp/model" $small $l --method none,none -o "$tmp/x.h5"
refused "a chunk below the batch" 1 "is less than a step of 4 requests" "$jct" "$tmp/model" $small $l --batch 4 --chunk 3 -o "$tmp/x.h5"
printf 'arrival_s,input_tokens,output_tokens\n0,10,0\n' >"$tmp/bad.csv"
refused "a bad trace" 1 "output_tokens" "$jct" "$tmp/model" $small --requests "$tmp/bad.csv" -o "$tmp/x.h5"
refused "an output that cannot be written" 1 "cannot write" "$jct" "$tmp/model" $small $l --repeats 1 -o /dev/full
[ ! -e "$tmp/x.h5" ] && ok "failures leave nothing" || { ls "$tmp" >"$tmp/log"; not_ok "failures leave nothing"; }
