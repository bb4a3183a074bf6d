#!/bin/sh
# kvdim-jct against what customers type: options without effect, files that no method reads, inputs named as outputs, what is left out.
. tests/lib/cases.sh
needs h5dump hdf5-tools
jct="$B/bin/kvdim-jct"
small="--threads 2 --device cpu"
l="--input-len 9 --output-len 2"

says() { # NAME WANTED-TEXT COMMAND...: it runs, and says so
  name=$1 text=$2; shift 2
  if "$@" >"$D/log" 2>&1 && grep -qF -- "$text" "$D/log"; then ok "$name"; else not_ok "$name"; fi
}

"$B/tests/tool_checkpoint" --vocab 40 "$D/model" && "$B/bin/kvdim-collect" "$D/model" --random 400 --moments -q -o "$D/m.h5" &&
  "$B/bin/kvdim-spectrum" "$D/m.h5" -q -o "$D/s.h5" && "$B/bin/kvdim-fit" "$D/s.h5" --overall-p 0.25 -q -o "$D/r.h5" ||
  { echo "not ok cannot make a model and its bases"; exit 1; }
printf 'arrival_s,input_tokens,output_tokens\n0,10,3\n0.01,30,1\n' >"$D/trace.csv"

# ---- options that cannot act -------------------------------------------------------------------------
run="$jct $D/model $small -o $D/none.h5"
refused "a length twice" 2 "--input-len: 9 is given twice" $run --input-len 9,8,9 --output-len 2
refused "a batch twice" 2 "--batch: 2 is given twice" $run $l --batch 2,2
refused "a grid of a trace" 2 "--requests cannot be used with --iterations" $run --requests "$D/trace.csv" --iterations
refused "repeats of a trace" 2 "--requests cannot be used with --repeats" $run --requests "$D/trace.csv" --repeats 3
refused "whole prompts in pieces" 2 "--max-tokens limits whole prompts and cannot be used with --chunk" $run $l --chunk 8 --max-tokens 8
refused "graphs of a CPU" 1 "--graphs on: no GPU is used here" $run $l --graphs on
refused "many prompts at once by tokens" 2 "--parallel sequence cannot be used with --max-batch" $run --gpus 2 --parallel sequence --max-batch 2 --input-len 9 --output-len 1
says "rates that nobody reads" "no method here has a use for --rates '$D/r.h5'" "$jct" "$D/model" $small $l --method none,zack,p=0.5 --spectrum "$D/s.h5" --rates "$D/r.h5" --repeats 1 -q -o "$D/a.h5"
is "and nothing else" 1 "$(grep -c . "$D/log")"
"$B/bin/kvdim-collect" "$D/model" --random 300 --moments -q -o "$D/m2.h5" && "$B/bin/kvdim-spectrum" "$D/m2.h5" -q -o "$D/s2.h5" || echo "not ok another spectrum of the model"
says "rates of another spectrum" "warning: '$D/r.h5' was fitted to other bases of qk and vw than '$D/s2.h5' holds" "$jct" "$D/model" $small $l --method zack --spectrum "$D/s2.h5" --rates "$D/r.h5" --repeats 1 -q -o "$D/a.h5"
is "and nothing else of them" 1 "$(grep -c . "$D/log")"
"$jct" "$D/model" $small $l --method zack --spectrum "$D/s.h5" --rates "$D/r.h5" --repeats 1 -q -o "$D/a.h5" >"$D/log" 2>&1
is "rates of this spectrum" 0 "$(grep -c . "$D/log")"
says "bases that nobody reads" "no method here has a use for --spectrum '$D/s.h5'" "$jct" "$D/model" $small $l --method kivi --spectrum "$D/s.h5" --repeats 1 -q -o "$D/a.h5"
says "widths that nobody reads" "no method here has a use for --spread" "$jct" "$D/model" $small $l --spread data/widths/kvdim25m-sigma.csv --repeats 1 -q -o "$D/a.h5"

# ---- inputs are not written over, and that is known before any work ------------------------------------
cp "$D/s.h5" "$D/before.h5"
cp "$D/trace.csv" "$D/before.csv"
ln -s s.h5 "$D/link.json"
bases="--method zack,p=0.5 --spectrum $D/s.h5 --repeats 1 -q"
refused "a timeline over the bases" 1 "cannot write '$D/s.h5': it is the input '$D/s.h5'" $run $l $bases --timeline "$D/s.h5"
refused "through a link" 1 "cannot write '$D/link.json': it is the input '$D/s.h5'" $run $l $bases --timeline "$D/link.json"
refused "over the requests" 1 "it is the input" $run --requests "$D/trace.csv" -q --timeline "$D/trace.csv"
refused "into the model" 1 "it would be part of the input folder" $run $l -q --timeline "$D/model/config.json"
refused "the file of rows" 2 "--timeline and -o name the same file '$D/none.h5'" $run $l -q --timeline "$D/none.h5"
refused "by another name" 2 "--timeline and -o name the same file '$D/./none.h5'" $run $l -q --timeline "$D/./none.h5"
for ending in .partial .lock .rows .rows.partial .rows.lock; do
  refused "a file that the run keeps, $ending" 2 "-o '$D/none.h5' and --timeline '$D/none.h5$ending' would both write '$D/none.h5$ending'" $run $l -q --timeline "$D/none.h5$ending"
done
refused "rows over the bases" 1 "it is the input" "$jct" "$D/model" $small $l $bases -o "$D/s.h5"
refused "rows over the requests" 1 "it is the input" "$jct" "$D/model" $small --requests "$D/trace.csv" -q -o "$D/trace.csv"
cmp -s "$D/s.h5" "$D/before.h5" && cmp -s "$D/trace.csv" "$D/before.csv" && ok "all inputs are as they were" || { ls -l "$D" >"$D/log"; not_ok "all inputs are as they were"; }

# ---- names that the run makes up -----------------------------------------------------------------------
echo precious >"$D/victim"
for ending in .partial .lock .rows .rows.partial .rows.lock; do
  ln -s victim "$D/none.h5$ending"
  refused "a link at $ending" 1 "cannot write '$D/none.h5$ending': it is a symbolic link; remove it first" $run $l -q
  rm "$D/none.h5$ending"
  mkfifo "$D/none.h5$ending"
  refused "a FIFO at $ending" 1 "cannot write '$D/none.h5$ending': it is a FIFO; remove it first" timeout 60 $run $l -q
  rm "$D/none.h5$ending"
done
ln -s victim "$D/t.json.partial"
refused "a link where the timeline is written" 1 "cannot write '$D/t.json.partial': it is a symbolic link" $run $l -q --timeline "$D/t.json"
rm "$D/t.json.partial"
[ "$(cat "$D/victim")" = precious ] && ok "nothing went through them" || not_ok "nothing went through them"
mv "$D/before.csv" "$D/none.h5.rows"
refused "requests where the rows are saved" 1 "it is" $run --requests "$D/none.h5.rows" -q
mv "$D/none.h5.rows" "$D/none.h5.partial"
refused "requests at the unfinished file" 1 "it is the input" $run --requests "$D/none.h5.partial" -q
cmp -s "$D/none.h5.partial" "$D/trace.csv" && ok "and stay" || not_ok "and stay"
rm "$D/none.h5.partial"

# ---- what is left out --------------------------------------------------------------------------------
"$jct" "$D/model" $small --input-len 9,10 --output-len 2 --iterations --method none,minicache,start=0 --repeats 1 -q -o "$D/o.h5" >"$D/log" 2>&1
is "a grid that kvdim-serve cannot use" 1 "$(grep -c '^kvdim-jct: warning: --iterations times steps of one request alone, .* give --max-batch N' "$D/log")"
is "a method's points are counted" 1 "$(grep -c '^kvdim-jct: 3 of 6 points were left out' "$D/log")"
attribute "$D/o.h5" /skipped | grep -q "minicache,start=0: method 'minicache' wants a first pass" && ok "the last of the methods too" || not_ok "the last of the methods too"
is "and were reached" "6 6" "$(attribute "$D/o.h5" /points) $(attribute "$D/o.h5" /points_done)"
"$B/bin/kvdim-report" "$D/o.h5" --no-plots -q -o "$D/page" >"$D/log" 2>&1 && grep -q 'left out: minicache,start=0: method &#39;minicache&#39; wants a first pass\|left out: minicache,start=0: method .minicache. wants a first pass' "$D/page/index.html" && ok "the page says it" ||
  { grep -A4 'id="jct"' "$D/page/index.html" | cut -c1-400 >>"$D/log"; not_ok "the page says it"; }

# A stopped sweep: 'none' is killed after its first rows.
"$jct" "$D/model" $small --input-len 20,40,60,80 --output-len 30 --iterations --repeats 2 -q -o "$D/k.h5" >"$D/log" 2>&1 &
pid=$!
i=0
while [ ! -e "$D/k.h5.rows" ] && [ $i -lt 1200 ]; do sleep 0.02; i=$((i + 1)); done
kill -9 $pid; wait $pid 2>/dev/null
done=$(attribute "$D/k.h5.rows" /points_done)
"$B/bin/kvdim-report" "$D/k.h5.rows" --no-plots -q -o "$D/page" >"$D/log" 2>&1
grep -q "holds $done of the 5 points of its sweep" "$D/page/index.html" && ok "a stopped sweep on the page" || not_ok "a stopped sweep on the page"
says "a timeline of a resumed sweep" "will not hold what was measured before" "$jct" "$D/model" $small --input-len 20,40,60,80 --output-len 30 --iterations --repeats 2 --resume -q --timeline "$D/t.json" -o "$D/k.h5"

# ---- lengths are an input ------------------------------------------------------------------------------
printf 'num_prefill_tokens,num_decode_tokens\n9,2\n' >"$D/lengths.csv"
poisson="--requests poisson:1000 --lengths $D/lengths.csv --n-requests 4 -q --resume"
"$jct" "$D/model" $small $poisson -o "$D/p.h5" >"$D/log" 2>&1 && "$jct" "$D/model" $small $poisson -o "$D/p.h5" >"$D/log" 2>&1 && ok "lengths of a file, resumed" || not_ok "lengths of a file, resumed"
printf '12,2\n' >>"$D/lengths.csv"
refused "other lengths under the same name" 1 "is of another sweep" "$jct" "$D/model" $small $poisson -o "$D/p.h5"
