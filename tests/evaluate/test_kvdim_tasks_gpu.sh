#!/bin/sh
# kvdim-tasks on a GPU: paths in the file, parts and their table, several GPUs, --resume on another number of GPUs. Skips without a GPU.
. tests/lib/cases.sh
tasks="$B/bin/kvdim-tasks data/models/kvdim-6m --ruler niah_single_1,fwe --seq-len 520 --items 40 --max-new-tokens 4 --device cuda --compute bf16 --method h2o --method quest,budget=0.25,page=48"
if ! $tasks --items 1 -q -o "$D/try.h5" 2>"$log"; then
  if grep -q 'no CUDA' "$log"; then echo "skip kvdim-tasks on a GPU: $(sed 's/.*cuda: //' "$log")"; exit 0; fi
  not_ok "kvdim-tasks on a GPU"; exit 1
fi
untimed() { grep -v -E '"(prompt_s|step_s|free_seconds|output)": ' "$1" >"$1.untimed"; }
same() { untimed "$2"; if cmp -s "$D/one.json.untimed" "$2.untimed"; then ok "$1"; else not_ok "$1" "$(cat "$log")" "$(diff "$D/one.json.untimed" "$2.untimed" | head -n 10)"; fi; }
$tasks --json -o "$D/one.h5" >"$D/one.json" 2>"$D/one.log" || { not_ok "one GPU" "$(cat "$D/one.log")"; exit 1; }
untimed "$D/one.json"
is "paths" "GPU engine,GPU engine,products on the GPU, cache on the CPU," "$(sed -n 's/^ *"path": "\(.*\)",*$/\1/p' "$D/one.json" | uniq -c | awk '{ for (i = 0; i < $1 / 3; i++) { x = $0; sub(/^ *[0-9]+ /, "", x); printf "%s,", x } }')"
check "the path on the terminal" grep -q "^kvdim-tasks: quest: products on the GPU, cache on the CPU, because " "$D/one.log"

# Methods that decide by numbers: the engine holds the bytes of the CPU, except where rounding changes a code or a choice.
last() { sed -n "s/^ *\"$1\": \"*\([^\",]*\)\"*,*\$/\1/p" "$2" | tail -n 1; }
check "calibration" "$B/bin/kvdim-collect" data/models/kvdim-6m --text data/texts/articles.txt --tokens 3000 --rope both --dtype f16 --fisher="$D/f.h5" -q -o "$D/d.h5"
projected=
write() { "$B/bin/kvdim-spectrum" "$D/d.h5" --pair "$1,$2" --rope "$3" -q -o "$D/s.h5" && "${PYTHON:-python3}" docs/examples/write_projections.py "$D/s.h5" "$1" "$2" "$4" "$D/$3.h5"; }
if write qk vw after 32 2>"$log" && write k v before 24 2>"$log"; then projected="projected,file=$D/after.h5 projected,file=$D/before.h5 projected+kivi,file=$D/before.h5,residual=32"
else echo "skip projected: $(tail -n 1 "$log")"; fi
for method in h2o+kivi,residual=32 streaming+fp8 tova+hetero keyformer+nvfp4 adakv+fp8 pyramidkv+kivi,residual=32 kvzip+mxfp4 snapkv+kivi,residual=32 $projected palu+kivi,heads=1,p=0.625,residual=32 waterfill,step=0.02,block=64 kvtc,window=0,lanes=1 cachegen,group=8,groups=8,lanes=1 waterfill,step=0.02 kvtc,window=64 cachegen minicache xkv,layers=2 mikv; do
  coded="$B/bin/kvdim-tasks data/models/kvdim-6m --ruler niah_single_1 --seq-len 400 --items 3 --max-new-tokens 6 --cache bf16 --calibration $D/d.h5 --fisher $D/f.h5 --method $method -q --json"
  if $coded --device cuda --compute bf16 -o "$D/g.h5" >"$D/g.json" 2>"$log" && $coded --device cpu -o "$D/c.h5" >"$D/c.json" 2>"$log"; then
    is "$method, the path" "GPU engine" "$(last path "$D/g.json")"
    check "$method, bytes: $(last bytes_stored "$D/g.json"), on the CPU $(last bytes_stored "$D/c.json")" \
      awk "BEGIN { r = $(last bytes_stored "$D/g.json") / $(last bytes_stored "$D/c.json"); exit !(r > 0.98 && r < 1.02) }"
  else not_ok "$method on both devices"; fi
done

# Parts and their table.
$tasks --part 1/2 -q -o "$D/p.h5" 2>"$log" && $tasks --part 2/2 -q -o "$D/p.h5" 2>"$log" && $tasks --resume -q --json -o "$D/p.h5" >"$D/p.json" 2>"$log"
same "the table of two parts" "$D/p.json"

# Several GPUs. A part that one GPU began goes on with two.
there=$($tasks --gpus 16 -q -o "$D/none.h5" 2>&1 | sed -n 's/.*--gpus 16: \([0-9]*\) can be used here/\1/p')
if [ "${there:-1}" -lt 2 ]; then echo "skip kvdim-tasks on several GPUs: ${there:-1} here"; exit 0; fi
for n in 2 4; do
  [ "$n" -le "$there" ] || continue
  $tasks --gpus "$n" -q --json -o "$D/$n.h5" >"$D/$n.json" 2>"$log"
  same "$n GPUs" "$D/$n.json"
done
$tasks --part 2/2 -q -o "$D/r.h5" 2>"$log" && mv "$D/r.h5.items.2-of-2" "$D/r.h5.items" && $tasks --gpus 2 --resume -q --json -o "$D/r.h5" >"$D/r.json" 2>"$log"
same "one GPU, then two" "$D/r.json"
