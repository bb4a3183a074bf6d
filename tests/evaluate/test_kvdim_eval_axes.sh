#!/bin/sh
# kvdim-eval with methods of every axis: each acts, counts its bytes, loses less the more it keeps, and says what it lacks.
. tests/lib/cases.sh
EVAL="$B/bin/kvdim-eval data/models/kvdim-6m --text data/texts/stories.txt --tokens 400 --seq-len 200 -q"
run() { $EVAL --cache f16 --json -o "$D/a.h5" "$@" >"$D/a.json" 2>"$D/err"; }
# fails NAME TEXT OPTIONS...: status 1 and one line
fails() { name=$1 text=$2; shift 2; no_output "$name" 1 "$text" $EVAL "$@"; }

$B/bin/kvdim-collect data/models/kvdim-6m --text data/texts/articles.txt --tokens 1024 --seq-len 256 --rope both -q -o "$D/d.h5" &&
$B/bin/kvdim-spectrum "$D/d.h5" --pair qk,vw -q -o "$D/s.h5" || { not_ok prepare; exit 1; }

# ---- each kind acts, and its share of a 16-bit cache is where its definition puts it ----------
if run --prompt 50 --calibration "$D/d.h5" --spectrum "$D/s.h5" --method h2o --method keyformer --method scissorhands \
     --method snapkv,window=8 --method leankv,window=16,th=0.3,tl=0.05 --method kivi,residual=32 --method gear --method zipcache \
     --method minicache --method xkv,layers=2,rank_k=10,rank_v=15 --method palu --method palu+kvquant,palu.p=0.3 --method kvquant --method h2o+zack,p=0.3 --method zack+kvquant,p=0.3 --method h2o+kivi,heavy=0.3,residual=32 \
     --method think,window=8 --method h2o+think+kivi,window=8,residual=32 \
     --method mikv --method zdc,p_i=0.3,p_u=0.6 --method rotatekv,bits=3 --method allot --method zack+allot,p=0.1 \
     --method streaming --method tova --method pyramidkv,window=8 --method adakv,window=8 --method expectedattention --method knorm --method keydiff \
     --method cake,window=8 --method kvzip --method kvzip+kivi,residual=32 --method d2o --method d2o+zack,p=0.3 --method streaming+kivi,residual=32 --method adakv+zack,window=8,p=0.3; then
  field method >"$D/m"; field cache_share >"$D/c"; field kl >"$D/k"
  paste -d' ' "$D/m" "$D/c" "$D/k" >"$D/rows"
  if awk '$1 == "none" { ok += $2 == 1 && $3 < 1e-6 } $1 != "none" { ok += $2 > 0.05 && $2 < 0.95 && $3 > 1e-4 && $3 < 3 } { n++ } END { exit !(n == 38 && ok == 38) }' "$D/rows"
  then ok "thirty-eight methods act and count"; else not_ok "thirty-eight methods act and count" "$(cat "$D/rows")"; fi
  # h2o+zack holds 0.7 of what h2o holds.
  if awk '$1 == "h2o" { a = $2 } $1 == "h2o+zack" { b = $2 / a } END { exit !(b > 0.69 && b < 0.71) }' "$D/rows"
  then ok "bytes of a composition multiply"; else not_ok "bytes of a composition multiply" "$(cat "$D/rows")"; fi
else not_ok "every axis runs" "$(cat "$D/err")"; fi

# ---- sequences shorter than two prompts, which kvzip reads ------------------------------------------------------
printf '{"text": "Once upon a time there was a little girl who lived near a wood with her dog."}\n%.0s' 1 2 3 4 5 6 7 8 9 10 11 12 >"$D/short.jsonl"
printf '{"text": "%s"}\n' "$(head -c 900 data/texts/stories.txt | tr '\n"\\' '   ')" >>"$D/short.jsonl"
if $B/bin/kvdim-eval data/models/kvdim-6m --text "$D/short.jsonl" --tokens 500 --seq-len 200 --batch 200 --prompt 15 --cache f16 --method kvzip -q --json -o "$D/a.h5" >"$D/a.json" 2>"$D/err" &&
   field cache_share | awk 'NR == 2 { ok = $1 < 0.99 } END { exit !ok }'
then ok "sequences shorter than two prompts"; else not_ok "sequences shorter than two prompts" "$(cat "$D/err")"; fi

# ---- a column that does not apply to a row is "-" in the table and null in JSON ----------------------------------
table="$B/bin/kvdim-eval data/models/kvdim-6m --text data/texts/stories.txt --tokens 100 --seq-len 100 --method h2o"
if $table -o "$D/t.h5" >"$D/t" 2>"$D/err" && ! grep -qi nan "$D/t" && grep -Eq '^h2o +none +- +- .* - ' "$D/t" &&
   $table --json -q -o "$D/t.h5" >"$D/t.json" 2>"$D/err" && [ "$(grep -c '"overall_p": null' "$D/t.json")" -eq 1 ] && ! grep -qi 'nan' "$D/t.json"
then ok "columns that do not apply"; else not_ok "columns that do not apply" "$(cat "$D/t")" "$(cat "$D/err")"; fi

# ---- latents at full rank are the keys themselves --------------------------------------------------
if run --calibration "$D/d.h5" --method palu,p=0 --method palu,p=0,heads=1 && field kl | awk 'NR > 1 && !($1 < 1e-5) { wrong = 1 } END { exit wrong || NR != 3 }'
then ok "palu at full rank is the model"; else not_ok "palu at full rank is the model" "$(field kl)" "$(cat "$D/err")"; fi

# ---- rows that are cut and rebuilt explicitly give the quality of zack; with R of a prompt its matrices count too
if run --prompt 100 --spectrum "$D/s.h5" --method zack,p=0.4 --method zack,p=0.4,explicit=1 --method zack,p=0.4,online=1 --method zack,p=0,online=1 &&
   { field kl; field cache_share; } | tr '\n' ' ' | awk '{ off = $3 / $2 - 1; exit !(off * off < 4e-4 && $4 > 1e-3 && $4 < 0.5 && $5 < 1e-5 && $8 == $7 && $9 > $8 && $10 > 1) }'
then ok "explicit=1 and online=1"; else not_ok "explicit=1 and online=1" "$(field kl)" "$(field cache_share)" "$(cat "$D/err")"; fi
no_output "online=1 without W_O in the pair" 2 "method 'fdc': online=1 decomposes [Q; K] and [V; W_O]" $EVAL --prompt 50 --spectrum "$D/s.h5" --method fdc,p=0.4,online=1
fails "online=1 with codes" "'online=1' projects rows anew at every step" --prompt 50 --spectrum "$D/s.h5" --method zack+kivi,p=0.4,online=1

# ---- ZDC with one width for both levels is zack; narrower unimportant tokens are between two widths
# zack takes a prompt in blocks and zdc row by row, so float32 products are added in different orders.
# With a float32 cache the two KL divergences differ by at most 1.3e-6 of themselves (OpenBLAS's
# Haswell, SkylakeX, Cooperlake and Prescott kernels). In a float16 cache, entries close to a rounding
# edge move by one step, and the two divergences differ by up to 3.1e-4.
if run --cache f32 --prompt 100 --spectrum "$D/s.h5" --method zack,p=0.2 --method zdc,p_i=0.2,p_u=0.2 \
     --method zdc,p_i=0.2,p_u=0.5,g=0.8 --method zdc,p_i=0.2,p_u=0.5,g=0.3 --method zack,p=0.5; then
  field kl >"$D/k"; field cache_share >"$D/c"
  if paste -d' ' "$D/k" "$D/c" | awk 'NR == 2 { kl = $1; share = $2 }
       NR == 3 && !($1 > (1 - 1e-5) * kl && $1 < (1 + 1e-5) * kl && $2 > share && $2 < share + 0.001) { wrong = 1 }
       NR > 3 && !($1 > last && $2 < before) { wrong = 1 } { last = $1; before = $2 } END { exit wrong || NR != 6 }'
  then ok "zdc between its two rates"; else not_ok "zdc between its two rates" "$(paste "$D/k" "$D/c")"; fi
else not_ok "zdc between its two rates" "$(cat "$D/err")"; fi

# ---- a rate for each pair: p of either, at both levels, and bytes that follow from them -----------------------
# ZDC's levels with another method (H2O-ZDC, GEAR-ZDC), whichever is named first; with one rate they change no number.
if run --prompt 100 --spectrum "$D/s.h5" --method h2o+zack,p=0.2 --method h2o+zdc,p_i=0.2,p_u=0.2,g=0.4 --method h2o+zdc,p_i=0.2,p_u=0.5,g=0.4 --method zdc+h2o,p_i=0.2,p_u=0.5,g=0.4 && field perplexity > "$D/a" && field cache_share > "$D/b"; then
  if [ "$(sed -n 2p "$D/a")" = "$(sed -n 3p "$D/a")" ] && [ "$(sed -n 4p "$D/a")" = "$(sed -n 5p "$D/a")" ] && [ "$(sed -n 3p "$D/a")" != "$(sed -n 4p "$D/a")" ] &&
     awk 'NR == 3 { one = $1 } NR == 4 { exit !($1 < one) }' "$D/b"; then ok "h2o beside zdc"; else not_ok "h2o beside zdc" "$(paste "$D/a" "$D/b")"; fi
else not_ok "h2o beside zdc" "$(cat "$D/err")"; fi
if run --prompt 100 --spectrum "$D/s.h5" --method zack+gear,p=0.2 --method gear+zdc,p_i=0.2,p_u=0.2,g=0.4 --method gear+zdc,p_i=0.2,p_u=0.7,g=0.4 && field perplexity > "$D/a" && field cache_share > "$D/b"; then
  if [ "$(sed -n 2p "$D/a")" = "$(sed -n 3p "$D/a")" ] && awk 'NR == 3 { one = $1 } NR == 4 { exit !($1 < one) }' "$D/b"; then ok "gear behind zdc"; else not_ok "gear behind zdc" "$(paste "$D/a" "$D/b")"; fi
else not_ok "gear behind zdc" "$(cat "$D/err")"; fi

if run --prompt 100 --spectrum "$D/s.h5" --method zack,p.qk=0.5,p.v=0.25 --method zdc,p.qk=0.25,p.v=0.5/0.25,p_u.qk=0.75/0.5,p_u.v=0.5,g=0.4 --method zdc,p=0.3,p_u.qk=0.6,p_u.v=0.7,g=0.4; then
  for c in overall_p_qk overall_p_v low_p_qk low_p_v overall_p p_wanted cache_share; do field $c >"$D/$c"; done
  paste -d' ' "$D/overall_p_qk" "$D/overall_p_v" "$D/low_p_qk" "$D/low_p_v" "$D/overall_p" "$D/p_wanted" "$D/cache_share" >"$D/rows"
  if awk 'function at(x, p) { return x >= p - 1e-9 && x < p + 0.01 }
       function mean(a, b, c) { return a + b - 2 * c < 1e-9 && 2 * c - a - b < 1e-9 }
       NR == 1 { ok += $1 == 0 && $2 == 0 && $3 == "null" && $7 == 1 }
       NR == 2 { ok += at($1, 0.5) && at($2, 0.25) && $3 == "null" && $6 == 0.375 && $7 < 1 - $5 + 1e-9 && $7 > 1 - $5 - 1e-9 }
       NR > 2 && NR < 7 { i = NR - 3; ok += at($1, 0.25) && at($2, i < 2 ? 0.5 : 0.25) && at($3, i % 2 ? 0.5 : 0.75) && at($4, 0.5) && mean($1, $2, $5) && $7 < 1 - $5 && $7 > 1 - ($3 + $4) / 2 }
       NR == 7 { ok += at($3, 0.6) && at($4, 0.7) && $6 == 0.3 && mean($1, $2, $5) }
       END { exit !(NR == 7 && ok == 7) }' "$D/rows"
  then ok "a rate for each pair"; else not_ok "a rate for each pair" "$(cat "$D/rows")"; fi
else not_ok "a rate for each pair" "$(cat "$D/err")"; fi

# ---- layers kept whole: of six layers two, and the other four hold half -------------------------------------------
if run --prompt 50 --spectrum "$D/s.h5" --calibration "$D/d.h5" --method uniform,p=0.5 --method uniform,p=0.5,keep_layers=1:1 --method palu,p=0.5,heads=2 --method palu,p=0.5,heads=2,keep_layers=2:0 \
     --method xkv,layers=2,keep_layers=2:0 --method tova,keep_layers=0:3; then
  field cache_share >"$D/c"; field kl >"$D/k"
  if paste -d' ' "$D/c" "$D/k" | awk 'NR == 3 || NR == 5 { ok += $1 > 0.66666 && $1 < 0.66667 && $2 < before } { before = $2 } NR > 5 { ok += $1 < 1 && $1 > 0.5 } END { exit !(NR == 7 && ok == 4) }'
  then ok "layers kept whole"; else not_ok "layers kept whole" "$(paste "$D/c" "$D/k")"; fi
else not_ok "layers kept whole" "$(cat "$D/err")"; fi

# ---- quest stores all tokens and the bounds of pages of 16, 2 / 16 of the keys, and reads a quarter --------------------
if run --prompt 100 --spectrum "$D/s.h5" --method quest --method quest,budget=0.5 --method quest+zack,p=0.4 --method quest+kivi,residual=32 --method quest,keep_layers=2:0 --method h2o; then
  for c in cache_share bytes_per_token_read bytes_per_token_stored kl; do field $c >"$D/$c"; done
  if paste -d' ' "$D/cache_share" "$D/bytes_per_token_read" "$D/bytes_per_token_stored" "$D/kl" | awk '
       NR == 1 { ok += $2 == $3 } NR == 2 { ok += $1 > 1.0625 && $1 < 1.07 && $2 < 0.4 * $3; read = $2; kl = $4 }
       NR == 3 { ok += $2 > 1.5 * read && $4 < kl } NR == 4 || NR == 5 { ok += $1 < 0.7 && $2 < read } NR == 6 { ok += $2 > read && $4 < kl }
       NR == 7 { ok += $2 > $3 && $2 < 1.1 * $3 } END { exit !(NR == 7 && ok == 7) }'
  then ok "a step reads a part of the cache"; else not_ok "a step reads a part of the cache" "$(paste "$D/cache_share" "$D/bytes_per_token_read" "$D/bytes_per_token_stored" "$D/kl")"; fi
else not_ok "a step reads a part of the cache" "$(cat "$D/err")"; fi

# ---- shadowkv stores keys in low rank, and reads chunks of a prompt -----------------------------------
if run --prompt 160 --method shadowkv,rank=64,outliers=2,budget=0.5/0.25/0.05 --method shadowkv,rank=16,outliers=2,budget=0.5 --method shadowkv,rank=64,outliers=2,budget=0.25,keep_layers=1:1; then
  for c in cache_share bytes_per_token_read bytes_per_token_stored kl; do field $c >"$D/$c"; done
  if paste -d' ' "$D/cache_share" "$D/bytes_per_token_read" "$D/bytes_per_token_stored" "$D/kl" | awk '
       NR > 1 && NR < 5 { ok += $2 < $3 && $4 > kl && (NR == 2 || ($2 < read && $3 == stored)) } NR > 1 { kl = $4; read = $2; stored = $3 } NR == 2 { first = $4; share = $1 } NR == 5 { ok += $1 < share && $4 > first } NR == 6 { ok += $4 > 0 }
       END { exit !(NR == 6 && ok == 5) }'
  then ok "chunks read by their mean keys"; else not_ok "chunks read by their mean keys" "$(paste "$D/cache_share" "$D/bytes_per_token_read" "$D/bytes_per_token_stored" "$D/kl")"; fi
else not_ok "chunks read by their mean keys" "$(cat "$D/err")"; fi

# ---- more kept, less lost -------------------------------------------------------------------------
if run --calibration "$D/d.h5" --method kvquant,bits=2 --method kvquant,bits=3 --method kvquant,bits=5 --method hetero,k=2,v=2 \
     --method hetero,k=4,v=4 --method hetero,k=8,v=8 --method h2o,heavy=0.05,recent=0.05 --method h2o,heavy=0.2,recent=0.2 --method h2o,heavy=0.4,recent=0.4; then
  field kl >"$D/k"; field cache_share >"$D/c"
  if paste -d' ' "$D/k" "$D/c" | awk 'NR > 1 { i = (NR - 2) % 3; if (i && !($1 < kl && $2 > share)) wrong = 1; kl = $1; share = $2 } END { exit wrong || NR != 10 }'
  then ok "more kept, less lost"; else not_ok "more kept, less lost" "$(paste "$D/k" "$D/c")"; fi
  # 4 bits and a scale and zero point of 16 each for 64 numbers, all at the high level: 4.5 of 16
  if awk 'NR == 6 { exit !($1 > 0.28124 && $1 < 0.28126) }' "$D/c"; then ok "hetero's bytes to the bit"; else not_ok "hetero's bytes to the bit" "$(cat "$D/c")"; fi
else not_ok "levels of keeping" "$(cat "$D/err")"; fi

# ---- the same again ---------------------------------------------------------------------------------
# The threads share the rows of a batch, and SGEMM may add the products of a row in another order if
# it gets fewer rows. With a float32 cache, the KL divergences of 1, 2 and 3 threads and of OpenBLAS's
# Haswell, SkylakeX, Cooperlake and Prescott kernels differ by at most 7.5e-7 of themselves. Another
# seed changes the divergence by 3e-2 of itself.
run --cache f32 --prompt 50 --method keyformer --seed 3; field kl >"$D/k1"
run --cache f32 --prompt 50 --method keyformer --seed 3 --threads 1; field kl >"$D/k2"
run --cache f32 --prompt 50 --method keyformer --seed 4; field kl >"$D/k3"
if paste -d' ' "$D/k1" "$D/k2" "$D/k3" | awk 'function far(a, b) { return (a > b ? a - b : b - a) / a }
     NR == 2 { good = far($1, $2) < 1e-5 && far($1, $3) > 1e-3 } END { exit !good }'
then ok "the seed decides, threads do not"; else not_ok "the seed decides, threads do not" "$(paste "$D/k1" "$D/k2" "$D/k3")"; fi

# ---- refusals ------------------------------------------------------------------------------------------
fails "a method that decides at a prompt" "'snapkv' decides at the end of a prompt: give --prompt" --method snapkv
fails "heads of a layer that decide at a prompt" "'adakv' decides at the end of a prompt: give --prompt" --method adakv
fails "an idle budget of a layer" "'adakv' dropped and lowered no entry" --prompt 50 --method adakv,budget=50
fails "a prompt that does not fit twice" "'kvzip' reads every prompt twice: a prompt of 101 tokens needs 202, the longest sequence has 200" --prompt 101 --method kvzip
fails "such a prompt, before others run" "'kvzip' reads every prompt twice: a prompt of 101 tokens needs 202, the longest sequence has 200" --prompt 101 --method h2o --method kvzip --resume
fails "a step that reads all" "'quest' read every entry at every step" --method quest,budget=500
fails "all layers kept whole" "method 'h2o': keep_layers=3:3 keeps all 6 layers of the model whole: nothing is left to compress" --method h2o,keep_layers=3:3
fails "all layers kept whole of one width" "method 'uniform': keep_layers=6:0 keeps all 6 layers of the model whole" --spectrum "$D/s.h5" --method uniform,p=0.5,keep_layers=6:0
fails "layers kept whole of a group" "method 'xkv': keep_layers=1:0 divides layers 0 to 1, which 'xkv' stores together" --prompt 50 --method xkv,layers=2,keep_layers=1:0
fails "levels without calibration" "'kvquant' needs activations of calibration text: give --calibration" --method kvquant
fails "an idle eviction" "'h2o' dropped and lowered no entry" --method h2o,heavy=500,recent=1
fails "an idle code" "'kivi' coded no entry" --method kivi,residual=256
fails "pruned channels before RoPE" "'think' prunes keys after RoPE, 'kvquant' codes them before" --prompt 50 --calibration "$D/d.h5" --method think+kvquant
fails "idle pruning" "'think' shortened no entry" --prompt 20 --method think
fails "channels that p does not reach" "'think' shortened no entry: p removes less than one channel of a head" --prompt 50 --method think,p=0.01,window=8
fails "no two layers" "'xkv' stores no two of the 6 layers together" --prompt 50 --method xkv,layers=1
fails "no pair of layers" "'minicache' stores no two of the 6 layers together" --prompt 50 --method minicache,start=0.9
fails "a budget of half a token" "heavy = 1.5 is neither a fraction below 1 nor a whole number of tokens" --method h2o,heavy=1.5
fails "a rank of nothing" "method 'xkv': rank_k = 0 is neither a fraction between 0 and 1 nor a whole rank" --prompt 50 --method xkv,layers=2,rank_k=0
fails "a share above 1 in the last layer" "the fraction of important tokens would be 1.1 in the last layer" --prompt 50 --method importance+hetero,g=0.6,rise=0.5
# usage NAME TEXT OPTIONS...: status 2
usage() {
  name=$1 text=$2; shift 2
  $EVAL -o "$D/none.h5" "$@" >"$D/out" 2>"$D/err"; rc=$?
  if [ $rc -eq 2 ] && grep -q -- "$text" "$D/err" && [ ! -e "$D/none.h5" ]; then ok "$name"; else not_ok "$name" "status $rc, wanted 2 and '$text'" "$(cat "$D/err")"; fi
}
usage "a budget of one token or of all" "heavy = 1.0: write 1 for one token, or a fraction of the tokens below 1" --method h2o,heavy=1.0
usage "bits of a level that nobody makes" "lk sets entries at the low level, but no member lowers entries" --method hetero,lk=1
usage "budgets of layers beside levels" "'cake' and 'sparsity' both choose tokens" --prompt 50 --method cake+sparsity
usage "two choices of tokens" "'h2o' and 'quest' both choose tokens" --prompt 50 --method h2o+quest
usage "a sweep over a key that is given" "--sweep tries values of p, of which --method zack,p=0.5 gives one" --spectrum "$D/s.h5" --method zack,p=0.5 --sweep 3
usage "a target for nothing" "--target of nothing" --method none --target 0.9
printf '1,2,3\n' >"$D/ids.csv"
$B/bin/kvdim-eval data/models/kvdim-6m --ids "$D/ids.csv" --no-special --method none -q -o "$D/none.h5" 2>"$D/err"; [ $? -eq 2 ] && grep -q -- "--no-special requires --text" "$D/err" && ok "special tokens of ids" || not_ok "special tokens of ids" "$(cat "$D/err")"
$B/bin/kvdim-eval data/models/kvdim-6m --ids "$D" --method none -q -o "$D/none.h5" 2>"$D/err"; [ $? -eq 1 ] && grep -q "is a folder, not a file" "$D/err" && ok "a folder of ids" || not_ok "a folder of ids" "$(cat "$D/err")"

# ---- files that nobody reads, and calibration on the text that is evaluated, are said ------------------
if run --method h2o --calibration "$D/d.h5" --spectrum "$D/s.h5" --seeds 2 && [ "$(grep -c "no method here has a use for --calibration\|no method here has a use for --spectrum\|no method here draws random numbers" "$D/err")" = 3 ]
then ok "what no method has a use for is said"; else not_ok "what no method has a use for is said" "$(cat "$D/err")"; fi
if run --method zack,p=0.3 --method kvquant --calibration "$D/d.h5" --spectrum "$D/s.h5" && ! grep warning "$D/err" | grep -qv 'no 95 % intervals'; then ok "and nothing else"; else not_ok "and nothing else" "$(cat "$D/err")"; fi
if $B/bin/kvdim-eval data/models/kvdim-6m --text data/texts/articles.txt --tokens 1024 --seq-len 256 --calibration "$D/d.h5" --method kvquant -q -o "$D/same.h5" 2>"$D/err" &&
   grep -q "was calibrated on the very text that is evaluated" "$D/err"; then ok "levels from the evaluated text"; else not_ok "levels from the evaluated text" "$(cat "$D/err")"; fi

# Lowered entries are stored in fewer bits by hetero alone; elsewhere they stay as they are, and a method that does no more is refused.
fails "importance beside codes of one level" "entries that 'importance' lowers take no fewer bits" --prompt 50 --method importance+kivi,residual=32
fails "lower beside codes of one level" "entries that 'lower' lowers take no fewer bits" --method gear+lower
fails "ZDC's levels beside codes of one level" "entries that 'importance' lowers take no fewer bits" --prompt 50 --method h2o+importance+zipcache
fails "sparsity that only lowers" "'sparsity' dropped no entry, and entries that it lowers take no fewer bits" --prompt 100 --method sparsity,th=0.4,tl=0,window=8
fails "an idle eviction beside levels" "'h2o' dropped no entry" --prompt 100 --spectrum "$D/s.h5" --method h2o+zdc,heavy=500,recent=1,p_i=0.2,p_u=0.5
fails "idle levels beside an eviction" "'importance' lowered no entry" --prompt 100 --spectrum "$D/s.h5" --method h2o+zdc,p_i=0.2,p_u=0.5,g=1
if run --prompt 100 --method kivi,residual=32 --method sparsity+kivi,residual=32,th=0.5,tl=0.2,window=8 && field cache_share >"$D/c" && awk 'NR == 2 { kivi = $1 } NR == 3 { exit !($1 < kivi) }' "$D/c"
then ok "dropping beside codes of one level stores less"; else not_ok "dropping beside codes of one level stores less" "$(cat "$D/c")" "$(cat "$D/err")"; fi
fails "importance without a low level" "entries that 'importance' lowers take no fewer bits: add a method of the dims axis with p_u, or hetero" --prompt 50 --method importance
fails "two widths with tables of one" "'kvquant' codes entries of one width, not of two levels" --prompt 50 --spectrum "$D/s.h5" --calibration "$D/d.h5" --method zdc+kvquant,p=0.1,p_u=0.5
fails "important tokens cut more" "p_u = 0.1 removes less than the 0.5 of the high level" --prompt 50 --spectrum "$D/s.h5" --method zdc,p_i=0.5,p_u=0.1
fails "important tokens cut more in one pair" "p_u.v = 0.2 removes less than the 0.4 of the high level" --prompt 50 --spectrum "$D/s.h5" --method zdc,p_i.qk=0.5,p_i.v=0.4,p_u.qk=0.6,p_u.v=0.2
fails "in one pair of a common rate" "p_u.qk = 0.1 removes less than the" --prompt 50 --spectrum "$D/s.h5" --method zdc,p_i=0.5,p_u.qk=0.1,p_u.v=0.9
fails "all heads with eviction" "'rotatekv' codes all heads of a layer together: it cannot be combined with another method" --prompt 50 --calibration "$D/d.h5" --method h2o+rotatekv
fails "layers with bits" "'minicache' can be combined only with methods of the tokens axis" --prompt 50 --method minicache+kivi
fails "a prompt that leaves nothing" "no row is left to score: the longest sequence has 200 tokens, the prompt 199" --method h2o --prompt 199
$B/bin/kvdim-collect data/models/kvdim-6m --text data/texts/articles.txt --tokens 256 --seq-len 256 -q -o "$D/after.h5"
fails "a calibration without K before RoPE" "no K before RoPE: collect it with --rope both" --method kvquant --calibration "$D/after.h5"
if $EVAL -o "$D/none.h5" --spectrum "$D/s.h5" --method zack,p.qk=0.1,p.v=0.2 --target 0.9 >"$D/out" 2>"$D/err"; [ $? -eq 2 ] &&
   grep -qF -- "--target takes one p for both pairs, --method zack,p.qk=0.1,p.v=0.2 has one for each" "$D/err"
then ok "a target of two rates"; else not_ok "a target of two rates" "$(cat "$D/err")"; fi
