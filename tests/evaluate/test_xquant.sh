#!/bin/sh
# xquant in the programs: many bits give the model in every family, bytes to the bit, generation, and what it is not combined with.
. tests/lib/cases.sh
export OMP_WAIT_POLICY=passive

awk 'BEGIN { s = 1; for (i = 0; i < 2; i++) { for (j = 0; j < 40; j++) { s = (s * 16807) % 2147483647; printf "%s%d", j ? "," : "", s % 80 } print "" } }' >"$D/ids.csv"
# Biases, norms of K by head and over all heads, a norm after the branch, windows, no RoPE, one KV head, routed experts.
for f in llama-biases mistral-window qwen3-mqa olmo2-mha opt-before opt-after falcon-40b gemma3-text glm-half qwen3-moe-norm gpt-oss; do
  if "$B/bin/kvdim-eval" tests/data/families/$f --ids "$D/ids.csv" --seq-len 40 --prompt 10 --method xquant,bits=16/2,group=8 -q --json -o "$D/e.h5" >"$D/e.json" 2>"$D/err" &&
     values kl "$D/e.json" | awk 'NR == 2 { many = $1 } NR == 3 { few = $1 } END { exit !(NR == 3 && many < 2e-5 && few > 30 * many && few > 1e-6) }'
  then ok "$f: 16 bits are the model"; else not_ok "$f: 16 bits are the model" "$(values kl "$D/e.json")" "$(cat "$D/err")"; fi
done

MODEL=data/models/kvdim-6m
EVAL="$B/bin/kvdim-eval $MODEL --text data/texts/stories.txt --tokens 400 --seq-len 200 --cache f16 -q"
# X has as many numbers as K and V of this model: 8 bits and two scales of 32 bits per 256 numbers
if $EVAL --method xquant,latent=0,bits=8/4/2 --method xquant,group=16,bits=8/4/2 --json -o "$D/a.h5" >"$D/a.json" 2>"$D/err" && values cache_share "$D/a.json" >"$D/c" && values kl "$D/a.json" >"$D/k" && paste -d' ' "$D/c" "$D/k" >"$D/rows" &&
   awk 'function at(x, y) { return x > y - 1e-9 && x < y + 1e-9 } NR > 1 && NR < 5 { bits = 16 / 2 ^ (NR - 1); ok += at($1, (bits + 64 / 256) / 16) } NR == 2 || NR == 5 { ok += $2 < 0.001; kl = $2; next } NR > 2 { ok += $2 > 4 * kl; kl = $2 } END { exit !(NR == 7 && ok == 9) }' "$D/rows"
then ok "bytes and losses"; else not_ok "bytes and losses" "$(cat "$D/rows" "$D/err")"; fi
if $EVAL --method xquant,latent=0 --target 0.95 -o "$D/t.h5" 2>"$D/err" && $EVAL --method xquant,latent=0,keep_layers=1:1,bits=2 --prompt 100 -o "$D/t.h5" 2>>"$D/err"; then ok "a search, and whole layers"; else not_ok "a search, and whole layers" "$(cat "$D/err")"; fi
if "$B/bin/kvdim-tasks" $MODEL --text data/texts/stories.txt --tokens 400 --seq-len 200 --prompt 40 --generate 20 --method xquant,latent=0,bits=16 --method xquant,group=16,bits=1 -q --json -o "$D/g.h5" >"$D/g.json" 2>"$D/err" &&
   values exact "$D/g.json" | awk 'NR == 2 { many = $1 } NR == 3 { few = $1 } END { exit !(NR == 3 && many == 1 && few < 1) }'
then ok "generation"; else not_ok "generation" "$(values exact "$D/g.json")" "$(cat "$D/err")"; fi
# fails NAME TEXT PROGRAM...: status 1 and one line
fails() { name=$1 text=$2; shift 2; no_output "$name" 1 "$text" "$@"; }
fails "another axis" "codes all heads of a layer together: it cannot be combined" $EVAL --method h2o+xquant --prompt 100
if "$B/bin/kvdim-jct" $MODEL --input-len 20 --output-len 4 --repeats 1 --device cpu --method xquant,group=8 -q -o "$D/jct.h5" 2>"$D/err"; then ok "the timing engine"; else not_ok "the timing engine" "$(cat "$D/err")"; fi
