#!/bin/sh
# kvdim-jct against what customers type: options without effect, files that no method reads, inputs named as outputs, what is left out.
command -v h5dump >/dev/null || { echo "skip kvdim_jct_faults: no h5dump (package hdf5-tools)"; exit 0; }
set -u
B=${BUILD:-build}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
jct="$B/bin/kvdim-jct"
small="--threads 2 --device cpu"
l="--input-len 9 --output-len 2"

ok() { echo "ok $1"; }
not_ok() { echo "not ok $1"; sed 's/^/# /' "$tmp/log"; }
refused() { # NAME STATUS WANTED-TEXT COMMAND...: nothing is written
  name=$1 status=$2 text=$3; shift 3
  "$@" >"$tmp/log" 2>&1; got=$?
  if [ $got -eq "$status" ] && grep -qF -- "$text" "$tmp/log" && [ ! -e "$tmp/no.h5" ]; then ok "$name"; else echo "status $got" >>"$tmp/log"; not_ok "$name"; fi
}
says() { # NAME WANTED-TEXT COMMAND...: it runs, and says so
  name=$1 text=$2; shift 2
  if "$@" >"$tmp/log" 2>&1 && grep -qF -- "$text" "$tmp/log"; then ok "$name"; else not_ok "$name"; fi
}
attribute() { h5dump -a "$2" "$1" | sed -n 's/.*([0-9]*): //p'; }
is() { # name want got
  if [ "$2" = "$3" ]; then ok "$1"; else echo "want '$2', got '$3'" >"$tmp/log"; not_ok "$1"; fi
}

"$B/tests/tool_checkpoint" --vocab 40 "$tmp/model" && "$B/bin/kvdim-collect" "$tmp/model" --random 400 --moments -q -o "$tmp/m.h5" &&
  "$B/bin/kvdim-spectrum" "$tmp/m.h5" -q -o "$tmp/s.h5" && "$B/bin/kvdim-fit" "$tmp/s.h5" --overall-p 0.25 -q -o "$tmp/r.h5" ||
  { echo "not ok cannot make a model and its bases"; exit 1; }
printf 'arrival_s,input_tokens,output_tokens\n0,10,3\n0.01,30,1\n' >"$tmp/trace.csv"

# ---- options that cannot act -------------------------------------------------------------------------
run="$jct $tmp/model $small -o $tmp/no.h5"
refused "a length twice" 2 "--input-len: 9 is given twice" $run --input-len 9,8,9 --output-len 2
refused "a batch twice" 2 "--batch: 2 is given twice" $run $l --batch 2,2
refused "a grid of a trace" 2 "--iterations goes with --input-len" $run --requests "$tmp/trace.csv" --iterations
refused "repeats of a trace" 2 "--requests are replayed once" $run --requests "$tmp/trace.csv" --repeats 3
refused "whole prompts in pieces" 2 "--max-tokens is of whole prompts" $run $l --chunk 8 --max-tokens 8
refused "graphs of a CPU" 1 "--graphs on: no GPU is used here" $run $l --graphs on
refused "many prompts at once by tokens" 2 "--parallel sequence goes without --max-batch" $run --gpus 2 --parallel sequence --max-batch 2 --input-len 9 --output-len 1
says "rates that nobody reads" "no method here has a use for --rates '$tmp/r.h5'" "$jct" "$tmp/model" $small $l --method none,zack,p=0.5 --spectrum "$tmp/s.h5" --rates "$tmp/r.h5" --repeats 1 -q -o "$tmp/a.h5"
is "and nothing else" 1 "$(grep -c . "$tmp/log")"
says "bases that nobody reads" "no method here has a use for --spectrum '$tmp/s.h5'" "$jct" "$tmp/model" $small $l --method kivi --spectrum "$tmp/s.h5" --repeats 1 -q -o "$tmp/a.h5"
says "widths that nobody reads" "no method here has a use for --spread" "$jct" "$tmp/model" $small $l --spread data/widths/kvdim25m-sigma.csv --repeats 1 -q -o "$tmp/a.h5"

# ---- inputs are not written over, and that is known before any work ------------------------------------
cp "$tmp/s.h5" "$tmp/before.h5"
cp "$tmp/trace.csv" "$tmp/before.csv"
ln -s s.h5 "$tmp/link.json"
bases="--method zack,p=0.5 --spectrum $tmp/s.h5 --repeats 1 -q"
refused "a timeline over the bases" 1 "cannot write '$tmp/s.h5': it is the input '$tmp/s.h5'" $run $l $bases --trace "$tmp/s.h5"
refused "through a link" 1 "cannot write '$tmp/link.json': it is the input '$tmp/s.h5'" $run $l $bases --trace "$tmp/link.json"
refused "over the requests" 1 "it is the input" $run --requests "$tmp/trace.csv" -q --trace "$tmp/trace.csv"
refused "into the model" 1 "it would be part of the input folder" $run $l -q --trace "$tmp/model/config.json"
refused "the file of rows" 2 "--trace and --output are both" $run $l -q --trace "$tmp/no.h5"
refused "by another name" 1 "with --trace '$tmp/./no.h5'" $run $l -q --trace "$tmp/./no.h5"
refused "rows over the bases" 1 "it is the input" "$jct" "$tmp/model" $small $l $bases -o "$tmp/s.h5"
refused "rows over the requests" 1 "it is the input" "$jct" "$tmp/model" $small --requests "$tmp/trace.csv" -q -o "$tmp/trace.csv"
cmp -s "$tmp/s.h5" "$tmp/before.h5" && cmp -s "$tmp/trace.csv" "$tmp/before.csv" && ok "all inputs are as they were" || { ls -l "$tmp" >"$tmp/log"; not_ok "all inputs are as they were"; }

# ---- what is left out --------------------------------------------------------------------------------
"$jct" "$tmp/model" $small --input-len 9,10 --output-len 2 --iterations --method none,minicache --repeats 1 -q -o "$tmp/o.h5" >"$tmp/log" 2>&1
is "a method's points are counted" 1 "$(grep -c '^kvdim-jct: 3 of 6 points were left out' "$tmp/log")"
attribute "$tmp/o.h5" /skipped | grep -q "minicache: method 'minicache' wants a first pass" && ok "the last of the methods too" || not_ok "the last of the methods too"
is "and were reached" "6 6" "$(attribute "$tmp/o.h5" /points) $(attribute "$tmp/o.h5" /points_done)"
"$B/bin/kvdim-report" "$tmp/o.h5" --no-plots -q -o "$tmp/page" >"$tmp/log" 2>&1 && grep -q 'left out: minicache: method &#39;minicache&#39; wants a first pass\|left out: minicache: method .minicache. wants a first pass' "$tmp/page/index.html" && ok "the page says it" ||
  { grep -A4 'id="jct"' "$tmp/page/index.html" | cut -c1-400 >>"$tmp/log"; not_ok "the page says it"; }

# A stopped sweep: 'none' is killed behind its first rows.
"$jct" "$tmp/model" $small --input-len 20,40,60,80 --output-len 30 --iterations --repeats 2 -q -o "$tmp/k.h5" >"$tmp/log" 2>&1 &
pid=$!
i=0
while [ ! -e "$tmp/k.h5" ] && [ $i -lt 1200 ]; do sleep 0.02; i=$((i + 1)); done
kill -9 $pid; wait $pid 2>/dev/null
done=$(attribute "$tmp/k.h5" /points_done)
"$B/bin/kvdim-report" "$tmp/k.h5" --no-plots -q -o "$tmp/page" >"$tmp/log" 2>&1
grep -q "holds $done of the 5 points of its sweep" "$tmp/page/index.html" && ok "a stopped sweep on the page" || not_ok "a stopped sweep on the page"
says "a timeline of a resumed sweep" "will not hold what was measured before" "$jct" "$tmp/model" $small --input-len 20,40,60,80 --output-len 30 --iterations --repeats 2 --resume -q --trace "$tmp/t.json" -o "$tmp/k.h5"

# ---- lengths are an input ------------------------------------------------------------------------------
printf 'num_prefill_tokens,num_decode_tokens\n9,2\n' >"$tmp/lengths.csv"
poisson="--requests poisson:1000 --lengths $tmp/lengths.csv --n-requests 4 -q --resume"
"$jct" "$tmp/model" $small $poisson -o "$tmp/p.h5" >"$tmp/log" 2>&1 && "$jct" "$tmp/model" $small $poisson -o "$tmp/p.h5" >"$tmp/log" 2>&1 && ok "lengths of a file, resumed" || not_ok "lengths of a file, resumed"
printf '12,2\n' >>"$tmp/lengths.csv"
refused "other lengths under the same name" 1 "is of another sweep" "$jct" "$tmp/model" $small $poisson -o "$tmp/p.h5"
