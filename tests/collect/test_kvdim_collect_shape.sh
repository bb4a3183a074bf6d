#!/bin/sh
# kvdim-collect --shape: what it takes and refuses, and that everything made with random weights says so.
set -u
B=${BUILD:-build}
dir=$(mktemp -d "${TMPDIR:-/tmp}/kvd-shape.XXXXXX")
trap 'rm -rf "$dir"' EXIT
collect=$B/bin/kvdim-collect
note='shape:mistral-7b: random weights: times and memory are those of such a model, spectra and accuracies mean nothing'
fail=0
check() { # name command...: its output, and the lines that the checks look at, go to out
  name=$1; shift
  if "$@" >"$dir/out" 2>&1; then echo "ok $name"; else echo "not ok $name"; sed 's/^/# /' "$dir/out"; fail=1; fi
}
usage() { # name message arguments...
  name=$1 want=$2; shift 2
  "$collect" "$@" -o "$dir/no.h5" >"$dir/out" 2>&1
  if [ $? -eq 2 ] && grep -qF -- "$want" "$dir/out" && [ ! -e "$dir/no.h5" ]; then echo "ok $name"
  else echo "not ok $name"; sed 's/^/# /' "$dir/out"; fail=1; fi
}

usage unknown_shape "no shape 'llama-9': there are llama-3.1-8b, " --shape llama-9 --random 10
usage shape_and_model "--shape cannot be used with MODEL" m --shape yi-34b --random 10
usage shape_and_text "--shape cannot be used with --text" --shape yi-34b --text t.txt
usage neither "no MODEL or --shape given" --random 10
check list sh -c "$collect --shape list | grep -q '^falcon-180b  *Falcon 180B  *178.56  *Hugging Face, tiiuae/falcon-180B'"
check list_is_whole sh -c "[ \"\$($collect --shape list | wc -l)\" -eq 20 ]"

# Memory is counted before anything is allocated or written.
( ulimit -v 1500000
  "$collect" --version >/dev/null 2>&1 || { echo "skip larger_than_memory: this build does not start in 1.5 GB of address space"; exit 0; }
  timeout 60 "$collect" --shape falcon-180b --random 48 --seq-len 16 --moments --threads 2 --device cpu -o "$dir/no.h5" >"$dir/out" 2>&1
  if [ $? -eq 1 ] && [ "$(wc -l <"$dir/out")" -eq 1 ] && [ ! -e "$dir/no.h5" ] && [ ! -e "$dir/no.h5.partial" ] &&
    grep -Eq '^kvdim-collect: [0-9.]+ GiB of memory are needed \(weights of a layer [0-9.]+, activations [0-9.]+, sums [0-9.]+\), [0-9.]+ GiB are available \(limit on address space, ulimit -v\): lower --batch, --seq-len' "$dir/out"
  then echo "ok larger_than_memory"; else echo "not ok larger_than_memory"; sed 's/^/# /' "$dir/out"; exit 1; fi ) || fail=1

# Drawn token ids are in a temporary file: their size is checked before, and drawing them can be interrupted.
check ids_beyond_the_disk sh -c "timeout 20 $collect --shape mistral-7b --random 281474976710656 --moments -o $dir/no.h5 2>$dir/err
  grep -q '281474976710656 token ids take 1.126e+15 bytes of a temporary file, .* are free' $dir/err"
check interrupted_while_drawing sh -c "timeout -k 4 1 $collect --shape mistral-7b --random 1000000000 --moments -q -o $dir/no.h5 2>$dir/err
  grep -Eq 'interrupted|token ids take' $dir/err"

# One layer of a model of 7e9 weights: 0.9 GB, some seconds.
one="--layers 0-0 --seq-len 16"
check random sh -c "$collect --shape mistral-7b $one --random 48 --moments -o $dir/a.h5 2>/dev/null | grep -qxF '$note'"
i=0
while [ $i -lt 3 ]; do echo '17,32767,5,8,1000,2,3,9,400,77,31,12,13,14,15,16'; i=$((i + 1)); done >"$dir/ids.csv"
check ids sh -c "$collect --shape mistral-7b $one --ids $dir/ids.csv --moments --json -o $dir/b.h5 2>/dev/null >$dir/json
  grep -q '\"model\": \"shape:mistral-7b\"' $dir/json && grep -q '\"random_weights\": true' $dir/json"
echo 32768 >"$dir/beyond.csv"; echo 32768,1 >>"$dir/beyond.csv"
check id_beyond_the_vocabulary sh -c "! $collect --shape mistral-7b $one --ids $dir/beyond.csv --moments -o $dir/x.h5 2>$dir/err && grep -q 32768 $dir/err"
check again_nothing_to_do sh -c "$collect --shape mistral-7b $one --random 48 --moments --resume --json -o $dir/a.h5 | grep -q '\"nothing_to_do\": true'"

for x in a b; do
  check "spectrum_$x" sh -c "$B/bin/kvdim-spectrum $dir/$x.h5 --pair qk,vw -o $dir/s$x.h5 | grep -qxF '$note'"
done
check spectrum_json sh -c "$B/bin/kvdim-spectrum $dir/a.h5 --pair qk --json -o $dir/sj.h5 | grep -q '\"random_weights\": true'"
check similarity sh -c "$B/bin/kvdim-similarity $dir/sa.h5 $dir/sb.h5 -o $dir/sim.h5 | grep -qxF '$note'"
check fit sh -c "$B/bin/kvdim-fit $dir/sa.h5 --removal-rate 0.1 -o $dir/f.h5 | grep -qxF '$note'"
check fit_json sh -c "$B/bin/kvdim-fit $dir/sa.h5 --removal-rate 0.1 --json -o $dir/f.h5 | grep -q '\"random_weights\": true'"
check report sh -c "$B/bin/kvdim-report $dir/sa.h5 $dir/sim.h5 $dir/f.h5 --no-plots -o $dir/report >$dir/said
  grep -q 'sa.h5, .*sim.h5 and .*f.h5: random weights: ' $dir/said && grep -q '^0 of the papers. claims are measured' $dir/said"
check report_page sh -c "grep -q '<h2>Random weights</h2>' $dir/report/index.html && grep -q '3 of 3 files are of models with random weights' $dir/report/index.html"
check report_names sh -c "grep -q 'shape:mistral-7b (random weights): random' $dir/report/tables/spectra.csv"
check report_json sh -c "$B/bin/kvdim-report $dir/sa.h5 --no-plots --json -o $dir/report | grep -q '\"random_weights\": \\['"
exit $fail
