#!/bin/sh
# kvdim-eval with methods of the bits axis that code by formats, rotations and entropy, and xquant: bytes, losses, compositions, refusals; the
# bytes of methods of all axes.
. tests/lib/cases.sh
EVAL="$B/bin/kvdim-eval data/models/kvdim-6m --text data/texts/stories.txt --tokens 400 --seq-len 200 -q"
run() { $EVAL --cache f16 --json -o "$D/a.h5" "$@" >"$D/a.json" 2>"$D/err"; }
# rows OPTIONS...: "METHOD SHARE KL" of each row, into $D/rows
rows() {
  run "$@" || return 1
  field method >"$D/m"; field cache_share >"$D/c"; field kl >"$D/k"
  paste -d' ' "$D/m" "$D/c" "$D/k" >"$D/rows"
}
# fails NAME TEXT OPTIONS...: status 1 and one line
fails() { name=$1 text=$2; shift 2; no_output "$name" 1 "$text" $EVAL "$@"; }

$B/bin/kvdim-collect data/models/kvdim-6m --text data/texts/articles.txt --tokens 1024 --seq-len 256 --rope both -q -o "$D/d.h5" &&
$B/bin/kvdim-spectrum "$D/d.h5" --pair qk,vw -q -o "$D/s.h5" || { not_ok prepare; exit 1; }

# ---- floating-point formats: bytes to the bit, and the wider format loses less ---------------------
if rows --calibration "$D/d.h5" --method fp8 --method fp8,mantissa=2 --method fp8,scale=1 --method fp8,scale=2 --method mxfp4 --method nvfp4 --method nvfp4,scale=2; then
  if awk 'function at(x, y) { return x > y - 1e-6 && x < y + 1e-6 }
       NR > 1 && NR < 6 { ok += at($2, 0.5) && $3 > 1e-7 && $3 < 0.02 } NR == 6 { ok += at($2, 4.25 / 16) && $3 < 0.5; mx = $3 }
       NR > 6 { ok += at($2, 4.5 / 16) && $3 < mx && $3 > 1e-4 } END { exit !(NR == 8 && ok == 7) }' "$D/rows"
  then ok "formats take their bytes and act"; else not_ok "formats take their bytes and act" "$(cat "$D/rows")"; fi
else not_ok "formats run" "$(cat "$D/err")"; fi

# ---- with methods of other axes -------------------------------------------------------------------
if rows --prompt 50 --calibration "$D/d.h5" --spectrum "$D/s.h5" --method h2o --method h2o+fp8 --method zack+fp8,p=0.5 --method palu+fp8,palu.p=0.5 --method zack+nvfp4,p=0.5,scale=1; then
  if awk '$1 == "h2o" { h2o = $2 } $1 == "h2o+fp8" { ok += $2 > 0.5 * h2o - 1e-6 && $2 < 0.5 * h2o + 0.01 }
       $1 == "zack+fp8" || $1 == "palu+fp8" { ok += $2 > 0.24 && $2 < 0.26 } $1 == "zack+nvfp4" { ok += $2 > 0.14 && $2 < 0.2 }
       NR > 1 && !($3 > 1e-3 && $3 < 3) { wrong = 1 } END { exit wrong || ok != 4 || NR != 6 }' "$D/rows"
  then ok "formats with other axes"; else not_ok "formats with other axes" "$(cat "$D/rows")"; fi
else not_ok "formats with other axes" "$(cat "$D/err")"; fi
# ---- turboquant: more bits, less lost; the seed decides; latents and cut heads ---------------------
if rows --prompt 50 --method turboquant,bits=2 --method turboquant,bits=4 --method turboquant,bits=8 --method turboquant,bits=2,qjl=0 --method turboquant,bits=4,qjl=0 --method turboquant,bits=8,qjl=0; then
  if awk 'function at(x, y) { return x > y - 1e-6 && x < y + 1e-6 }
       NR > 1 { bits = 2 ^ ((NR - 2) % 3 + 1); ok += at($2, (bits + (NR < 5 ? 24 : 16) / 64) / 16) && (bits == 2 || $3 < kl / 4); kl = $3 } bits == 8 { ok += $3 < 0.001 }
       END { exit !(NR == 7 && ok == 8) }' "$D/rows"
  then ok "turboquant's bytes and losses"; else not_ok "turboquant's bytes and losses" "$(cat "$D/rows")"; fi
else not_ok "turboquant runs" "$(cat "$D/err")"; fi
if rows --prompt 50 --calibration "$D/d.h5" --spectrum "$D/s.h5" --method palu+turboquant,p=0.5 --method zack+turboquant,p=0.5 --method snapkv+turboquant,window=8 && [ "$(awk '$3 > 1e-3 && $3 < 3 && $2 < 0.25' "$D/rows" | wc -l)" -eq 3 ] &&
   run --method turboquant,bits=3 --seed 4 && field kl >"$D/k1" && run --method turboquant,bits=3 --seed 5 && field kl >"$D/k2" && ! cmp -s "$D/k1" "$D/k2"
then ok "turboquant with other axes and seeds"; else not_ok "turboquant with other axes and seeds" "$(cat "$D/rows" "$D/err")"; fi
if rows --prompt 160 --spectrum "$D/s.h5" --method turboquant,bits=2/2.5/3/3.5,group=8 --method zack+turboquant,p=0.5,bits=2.5,group=8 --method h2o+turboquant,bits=2.5,group=8; then
  if awk '{ kl[NR] = $3; share[NR] = $2 } END { more = share[5] - share[3]; exit !(NR == 7 && kl[3] < kl[2] / 2 && kl[5] < kl[4] / 2 && share[3] > share[2] + 0.5 / 16 && more > 0.9 / 16 && more < 1 / 16 &&
       share[6] < 0.65 * share[3] && share[7] < 0.3 * share[3] && kl[6] < 1 && kl[7] < 1) }' "$D/rows"
  then ok "turboquant with half bits"; else not_ok "turboquant with half bits" "$(cat "$D/rows")"; fi
else not_ok "turboquant with half bits runs" "$(cat "$D/err")"; fi

# ---- codes per channel of a block of tokens --------------------------------------------------------
if rows --prompt 128 --method comet,bits=2/4/8,group=32 --method comet,bits=4,group=32,symmetric=0 --method vidkv,residual=32,k=1/1.5/2 --method vidkv,residual=32,k=2,ternary=0 --method snapkv+comet,window=8,group=32 --method h2o+vidkv,residual=32; then
  if awk 'NR > 2 && NR < 5 { ok += $3 < kl && $2 > share } NR == 4 { ok += $3 < 0.002 } NR == 5 { ok += $2 > 0.25 && $2 < 0.4 && $3 < 0.1 }
       NR == 7 || NR == 8 { ok += $3 < kl && $2 > share } NR == 9 { ok += $3 < kl && $2 > share } { kl = $3; share = $2 } END { exit !(NR == 11 && ok == 7) }' "$D/rows"
  then ok "comet's and vidkv's bits"; else not_ok "comet's and vidkv's bits" "$(cat "$D/rows")"; fi
else not_ok "comet and vidkv run" "$(cat "$D/err")"; fi

# ---- entropy codes: finer steps lose less; the finest is close to the model ------------------------
if rows --prompt 50 --calibration "$D/d.h5" --spectrum "$D/s.h5" --method cachegen,bin=0.1/0.5/1/2 --method snapkv+cachegen,window=8 --method zack+cachegen,p=0.3 --method palu+cachegen,palu.p=0.3; then
  if awk 'NR == 2 { ok += $3 < 0.002 && $2 < 0.5 } NR > 2 && NR < 6 { ok += $3 > kl && $2 < share } { kl = $3; share = $2 }
       NR > 5 { ok += $3 > 1e-3 && $3 < 1 && $2 < 0.25 } END { exit !(NR == 8 && ok == 7) }' "$D/rows"
  then ok "cachegen's steps"; else not_ok "cachegen's steps" "$(cat "$D/rows")"; fi
else not_ok "cachegen runs" "$(cat "$D/err")"; fi
if rows --prompt 50 --calibration "$D/d.h5" --method kvtc,bits=1/2/6,window=16,block=32; then
  if awk 'NR > 1 { ok += $2 < 0.6 && (NR == 2 || ($3 < kl && $2 > share)); kl = $3; share = $2 } END { exit !(NR == 4 && ok == 3 && kl < 0.001) }' "$D/rows"
  then ok "kvtc's budgets"; else not_ok "kvtc's budgets" "$(cat "$D/rows")"; fi
else not_ok "kvtc runs" "$(cat "$D/err")"; fi
fails "all heads with widths" "'kvtc' codes all heads of a layer together" --spectrum "$D/s.h5" --calibration "$D/d.h5" --method zack+kvtc,p=0.3
fails "a window that holds every token" "'kvtc' coded no entry" --calibration "$D/d.h5" --method kvtc,window=200
if rows --prompt 100 --method cachegen,bin=0.2/1,own=1,groups=4 && awk 'NR == 2 { ok = $3 < 0.01 && $2 < 0.6; kl = $3; share = $2 } NR == 3 { exit !(ok && $3 > kl && $2 < share) }' "$D/rows"
then ok "cachegen without calibration"; else not_ok "cachegen without calibration" "$(cat "$D/rows" "$D/err")"; fi
fails "frequencies without calibration" "'cachegen' needs activations of calibration text" --method cachegen
fails "a stream that loses entries" "'cachegen' codes a block of entries as one stream, from which 'h2o' cannot drop" --prompt 50 --calibration "$D/d.h5" --method h2o+cachegen
for method in quest mpcache a2ats; do
  fails "a step that reads a part of a stream ($method)" "'cachegen' codes a block of entries as one stream, from which '$method' cannot choose entries at a step" --prompt 50 --calibration "$D/d.h5" --method $method+cachegen
done

# ---- waterfill: finer steps lose less, the finest is the model --------------------------------------
$B/bin/kvdim-collect data/models/kvdim-6m --text data/texts/articles.txt --tokens 1024 --seq-len 256 --fisher="$D/f.h5" -q -o "$D/of-fisher.h5" || not_ok "squared gradients"
if rows --prompt 50 --calibration "$D/d.h5" --fisher "$D/f.h5" --method waterfill,step=0.02/0.005/0.00001; then
  if awk 'NR == 2 { ok += $3 < 0.1 && $2 < 0.12 } NR == 3 { ok += $3 < kl / 4 && $2 > share && $2 < 0.3 } NR == 4 { ok += $3 < 1e-5 } { kl = $3; share = $2 } END { exit !(NR == 4 && ok == 3) }' "$D/rows"
  then ok "waterfill's steps"; else not_ok "waterfill's steps" "$(cat "$D/rows")"; fi
else not_ok "waterfill runs" "$(cat "$D/err")"; fi
fails "waterfill without gradients" "'waterfill' needs squared gradients" --calibration "$D/d.h5" --method waterfill

# ---- settings under which nothing is coded, and rows that save nothing ------------------------------
for m in kvquant rotatekv allot; do fails "sinks of $m that hold every token" "'$m' coded no entry: no sequence is longer than what it leaves exact" --calibration "$D/d.h5" --method $m,sink=200; done
fails "a low level of as many bits" "'hetero' gives entries at the low level as many bits as others, or more" --method lower+hetero,k=4,v=4,lk=4,lv=4
fails "a low level of more bits" "'hetero' gives entries at the low level as many bits as others, or more" --method sparsity+hetero,k=4,v=4,lk=8,lv=1 --prompt 100
fails "salient tokens of fewer bits" "high = 2 bits of salient tokens is below low = 4" --method zipcache,high=2,low=4
fails "heads that no group divides" "heads = 3 does not divide the 2 KV heads of the model" --calibration "$D/d.h5" --method palu,heads=3
fails "heads that no rotation has" "heads = 4 is not a power of two that divides the 2 KV heads of the model" --calibration "$D/d.h5" --method rotatekv,heads=4
if rows --method comet,group=1 --method comet && [ "$(grep -c "NOTHING SAVED" "$D/err")" = 1 ] && grep -q "'comet' with comet.bits=4,comet.group=1,comet.symmetric=1: NOTHING SAVED: it stored 3840 bytes per token" "$D/err"
then ok "a row that saves nothing is said"; else not_ok "a row that saves nothing is said" "$(cat "$D/err")"; fi

fails "a scale without calibration" "'fp8' needs activations of calibration text: give --calibration" --method fp8,scale=1
$EVAL -o "$D/none.h5" --method fp8 --sweep 3 >"$D/out" 2>"$D/err"
[ $? -eq 2 ] && grep -q "method 'fp8' has no key that trades bytes for quality" "$D/err" && ok "a sweep of a fixed width" || not_ok "a sweep of a fixed width" "$(cat "$D/err")"

# ---- xquant: many bits give the model in every family, bytes to the bit, generation, and what it is not combined with ----
awk 'BEGIN { s = 1; for (i = 0; i < 2; i++) { for (j = 0; j < 40; j++) { s = (s * 16807) % 2147483647; printf "%s%d", j ? "," : "", s % 80 } print "" } }' >"$D/ids.csv"
# Biases, norms of K by head and over all heads, a norm after the branch, windows, no RoPE, one KV head, routed experts.
for f in llama-biases mistral-window qwen3-mqa olmo2-mha opt-before opt-after falcon-40b gemma3-text glm-half qwen3-moe-norm gpt-oss; do
  if "$B/bin/kvdim-eval" tests/data/families/$f --ids "$D/ids.csv" --seq-len 40 --prompt 10 --method xquant,bits=16/2,group=8 -q --json -o "$D/e.h5" >"$D/e.json" 2>"$D/err" &&
     values kl "$D/e.json" | awk 'NR == 2 { many = $1 } NR == 3 { few = $1 } END { exit !(NR == 3 && many < 2e-5 && few > 30 * many && few > 1e-6) }'
  then ok "$f: 16 bits are the model"; else not_ok "$f: 16 bits are the model" "$(values kl "$D/e.json")" "$(cat "$D/err")"; fi
done

# X has as many numbers as K and V of this model: 8 bits and two scales of 32 bits per 256 numbers
if $EVAL --cache f16 --method xquant,latent=0,bits=8/4/2 --method xquant,group=16,bits=8/4/2 --json -o "$D/a.h5" >"$D/a.json" 2>"$D/err" && values cache_share "$D/a.json" >"$D/c" && values kl "$D/a.json" >"$D/k" && paste -d' ' "$D/c" "$D/k" >"$D/rows" &&
   awk 'function at(x, y) { return x > y - 1e-9 && x < y + 1e-9 } NR > 1 && NR < 5 { bits = 16 / 2 ^ (NR - 1); ok += at($1, (bits + 64 / 256) / 16) } NR == 2 || NR == 5 { ok += $2 < 0.001; kl = $2; next } NR > 2 { ok += $2 > 4 * kl; kl = $2 } END { exit !(NR == 7 && ok == 9) }' "$D/rows"
then ok "bytes and losses"; else not_ok "bytes and losses" "$(cat "$D/rows" "$D/err")"; fi
if $EVAL --cache f16 --method xquant,latent=0 --target 0.95 -o "$D/t.h5" 2>"$D/err" && $EVAL --cache f16 --method xquant,latent=0,keep_layers=1:1,bits=2 --prompt 100 -o "$D/t.h5" 2>>"$D/err"; then ok "a search, and whole layers"; else not_ok "a search, and whole layers" "$(cat "$D/err")"; fi
if "$B/bin/kvdim-tasks" data/models/kvdim-6m --text data/texts/stories.txt --tokens 400 --seq-len 200 --prompt 40 --generate 20 --method xquant,latent=0,bits=16 --method xquant,group=16,bits=1 -q --json -o "$D/g.h5" >"$D/g.json" 2>"$D/err" &&
   values exact "$D/g.json" | awk 'NR == 2 { many = $1 } NR == 3 { few = $1 } END { exit !(NR == 3 && many == 1 && few < 1) }'
then ok "generation"; else not_ok "generation" "$(values exact "$D/g.json")" "$(cat "$D/err")"; fi
fails "another axis" "codes all heads of a layer together: it cannot be combined" --method h2o+xquant --prompt 100
if "$B/bin/kvdim-jct" data/models/kvdim-6m --input-len 20 --output-len 4 --repeats 1 --device cpu --method xquant,group=8 -q -o "$D/jct.h5" 2>"$D/err"; then ok "the timing engine"; else not_ok "the timing engine" "$(cat "$D/err")"; fi

# ---- bytes of every method whose bytes do not depend on the text, by the formulas of docs/methods.md ----
set -- --method none,h2o,heavy=0.13,recent=9,d2o,heavy=0.2,recent=5,keyformer,keys=0.2,recent=7,streaming,sink=3,recent=0.17 \
  --method tova,budget=0.23,scissorhands,budget=0.21,recent=0.07,drop=5,scissorhands,budget=50,recent=3,drop=7 \
  --method snapkv,budget=0.23,window=7,kvcrush,budget=0.31,window=7,ems,budget=0.11,window=7,threshold=-1 \
  --method adakv,budget=0.23,window=7,cake,budget=0.23,window=7,pyramidkv,budget=0.5,window=7,knorm,budget=0.37,keydiff,budget=11 \
  --method expectedattention,budget=0.37,kvzip,budget=0.37,prefixkv,budget=0.37,prefixkv,budget=5,elasticcache,budget=0.37,elasticcache,budget=13 \
  --method quest,budget=0.23,page=7,quest,budget=9,page=5,alisa,budget=0.23,history=3,a2ats,size=100,local=5,sink=2,budget=5 \
  --method kivi,bits=3,group=8,residual=16,kivi,bits=2,group=7,residual=0,hetero,k=5,v=3,fp8,mxfp4,nvfp4,comet,bits=3,group=9 \
  --method comet,bits=3,group=16,symmetric=0,turboquant,bits=3,turboquant,bits=3,qjl=0,turboquant,bits=2.5,group=9 \
  --method turboquant,bits=2.3,group=16,qjl=0,zipcache,block=13,zipcache,block=13,share=0.37,high=8,low=3 \
  --method gear,buffer=7,group=9,outliers=0.1,gear,buffer=7,group=9,rank=0,rank2=0,outliers=0.3,bits=4,rotatekv,sink=3,group=16 \
  --method rotatekv,sink=60,group=40,bits=4,allot,bits=2.5,sink=3,xquant,bits=3,group=9,xquant,bits=3,group=100,latent=0 \
  --method vidkv,group=5,residual=10,vidkv,group=7,residual=7,k=1.3,ternary=0,think,p=0.3,window=7,strawman,p=0.3 \
  --method palu,p=0.37,heads=1,palu,p=0.41,heads=2,xkv,layers=2,xkv,layers=4,rank_k=5,rank_v=0.03
if $B/bin/kvdim-eval data/models/kvdim-6m --text data/texts/stories.txt -q --tokens 101 --seq-len 101 --prompt 47 --cache f16 --calibration "$D/d.h5" --json -o "$D/a.h5" "$@" >"$D/a.json" 2>"$D/err" &&
   $PYTHON tests/oracle/method_bytes.py "$D/a.json" 47 101 6 2 64 256 >"$D/rows" 2>&1 && [ ! -s "$D/rows" ] && [ "$(grep -c '"method"' "$D/a.json")" = 55 ]
then ok "bytes by formula"; else not_ok "bytes by formula" "$(cat "$D/rows" "$D/err")"; fi
