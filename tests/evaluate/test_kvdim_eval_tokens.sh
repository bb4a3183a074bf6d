#!/bin/sh
# kvdim-eval with tokens methods that have budgets, merges and choices of their own: each acts, counts its bytes, equals the model at a
# full budget, takes --sweep and --target, and joins methods of other axes or says why not.
. tests/lib/cases.sh
EVAL="$B/bin/kvdim-eval data/models/kvdim-6m --text data/texts/stories.txt --tokens 400 --seq-len 200 -q --prompt 100"
rows() { field method >"$D/m"; field cache_share >"$D/c"; field kl >"$D/k"; field bytes_per_token_read >"$D/r"; paste -d' ' "$D/m" "$D/c" "$D/k" "$D/r" >"$D/rows"; }
run() { $EVAL --cache f16 --json -o "$D/a.h5" "$@" >"$D/a.json" 2>"$D/err" && rows; }
fails() { name=$1 text=$2; shift 2; no_output "$name" 1 "$text" $EVAL "$@"; }
$B/bin/kvdim-collect data/models/kvdim-6m --text data/texts/articles.txt --tokens 1024 --seq-len 256 --rope both -q -o "$D/d.h5" &&
$B/bin/kvdim-spectrum "$D/d.h5" --pair qk,vw -q -o "$D/s.h5" || { not_ok prepare; exit 1; }

# ---- what drops or merges stores less; alone and with methods of other axes ---------------------------------------------
windows="windowkv,window=8,review=8,layers=2,beta=4"
if run --spectrum "$D/s.h5" --method kvmerger --method prefixkv --method $windows --method kvcrush,window=8 --method ems,window=8 --method elasticcache --method taskkv,window=8 \
     --method kvmerger+kivi,residual=32 --method prefixkv+kivi,residual=32 --method kvcrush+zack,window=8,p=0.3 --method ems+zack,window=8,p=0.3 --method ems+think,think.window=8,ems.window=8 \
     --method taskkv,window=8,keep_layers=1:0 --method elasticcache+kivi,residual=32; then
  if awk '$1 == "none" { ok += $2 == 1 } $1 != "none" { ok += $2 > 0.05 && $2 < 0.99 && $3 > 1e-4 && $3 < 3 } { n++ } END { exit !(n == 15 && ok == 15) }' "$D/rows"
  then ok "methods that drop or merge act and count"; else not_ok "methods that drop or merge act and count" "$(cat "$D/rows")"; fi
else not_ok "methods that drop or merge run" "$(cat "$D/err")"; fi

# ---- what selects stores all tokens and its side information, and reads less -------------------------------------------
if run --calibration "$D/d.h5" --method alisa --method a2ats,size=64,local=16 --method mpcache,threshold=0 --method alisa+kivi,residual=32; then
  if awk '$1 == "none" { all = $4; ok += 1 } $1 == "alisa" { ok += $2 > 1 && $2 < 1.1 && $4 < 0.4 * all } $1 == "a2ats" { ok += $2 > 1 && $2 < 1.02 && $4 < 0.8 * all }
       $1 == "mpcache" { ok += $2 > 1 && $2 < 1.2 && $4 < 0.7 * all } $1 == "alisa+kivi" { ok += $2 < 0.8 } $1 != "none" { ok += $3 > 1e-5 && $3 < 3 } END { exit !(ok == 9) }' "$D/rows"
  then ok "methods that select read less"; else not_ok "methods that select read less" "$(cat "$D/rows")"; fi
else not_ok "methods that select run" "$(cat "$D/err")"; fi

# The bytes that a step reads follow the budget, the stored bytes do not: a search bisects the budget.
if $EVAL --cache f16 --method quest,page=8 --target 0.95 --json -o "$D/a.h5" >"$D/a.json" 2>"$D/err" &&
   $PYTHON - "$D/a.json" <<'END' >"$log"
import json, sys
a = json.load(open(sys.argv[1]))
t = a["target"]["quest"]
read = {r["rate_value"]: 1 - r["bytes_per_token_read"] / r["bytes_per_token_dense"] for r in a["rows"] if r["method"] == "quest"}
print(t, read)
sys.exit(not (len(read) > 4 and 0.02 < t["value"] < 0.9 and abs(t["saving"] - read[t["value"]]) < 1e-9 and t["saving"] > 0))
END
then ok "a search compares the bytes that a step reads"; else not_ok "a search compares the bytes that a step reads" "$(cat "$log" "$D/err")"; fi

# ---- the guards, and the keys of --sweep and --target -------------------------------------------------------------------
fails "a threshold that no key reaches" "'kvmerger' dropped and lowered no entry" --method kvmerger,threshold=1
fails "a window that holds the prompt" "'snapkv' dropped and lowered no entry: its budget, window or threshold keeps every entry" --method snapkv,window=128
fails "a budget that holds the prompt" "'prefixkv' dropped and lowered no entry" --method prefixkv,budget=200
fails "a choice of everything" "'alisa' read every entry at every step" --method alisa,budget=500
fails "no prompt" "method 'elasticcache' decides at the end of a prompt: give --prompt" --prompt 0 --method elasticcache
fails "merges of latents" "'kvmerger' merges keys after RoPE, 'palu' stores latents before it" --calibration "$D/d.h5" --method kvmerger+palu
fails "keys that are cut" "it looks up whole keys: leave out the method of the dims axis" --calibration "$D/d.h5" --spectrum "$D/s.h5" --method a2ats+zack,size=64,p=0.3
for method in kvmerger prefixkv $windows kvcrush,window=8 ems,window=8 elasticcache taskkv,window=8 mpcache alisa a2ats,size=64,local=8; do
  if run --calibration "$D/d.h5" --sweep 3 --method $method && [ "$(wc -l <"$D/rows")" -eq 4 ] && awk 'NR > 1 && NR < 4 { kl[NR] = $3 } END { exit !($3 >= kl[2]) }' "$D/rows"
  then ok "--sweep of $method"; else not_ok "--sweep of $method" "$(cat "$D/rows" "$D/err")"; fi
done
if run --target 0.6 --method prefixkv && awk 'END { exit !($2 > 0 && $2 < 1) }' "$D/rows"; then ok "--target of prefixkv"; else not_ok "--target of prefixkv" "$(cat "$D/rows" "$D/err")"; fi

# ---- losses by tests/oracle/whole_model.py, a decoder in NumPy with the caches of docs/methods.md --------------------------
awk 'BEGIN { s = 1; for (i = 0; i < 2; i++) { for (j = 0; j < 61; j++) { s = (s * 16807) % 2147483647; printf "%s%d", j ? "," : "", s % 8192 } print "" } }' >"$D/ids.csv"
cat >"$D/oracle" <<'END'
none 14.2298891
h2o,heavy=7,recent=6 14.4265526
d2o,heavy=7,recent=6,beta=0.6 14.5193673
scissorhands,budget=15,recent=4,history=20,drop=3 14.6357544
sparsity,th=0.5,tl=0.3,window=7 14.6470500
hetero,k=5,v=3 14.2368074
lower+hetero,heavy=7,recent=5,k=6,v=5,lk=4,lv=3 14.2081478
received+hetero,g=0.4,rise=0.3,k=6,v=6,lk=3,lv=3 14.2610914
importance+hetero,g=0.2,overlap=0.6,k=6,v=6,lk=3,lv=3 14.2419034
zipcache,high=5,low=3,share=0.4,block=7 14.2059678
minicache,start=0.2,t=0.6,gamma=0.05 14.1823084
xkv,layers=2,rank_k=9,rank_v=11 14.2103468
strawman,p=0.6 13.8971744
END
if $B/bin/kvdim-eval data/models/kvdim-6m --ids "$D/ids.csv" --seq-len 61 --prompt 33 -q --json --method "$(sed 1d "$D/oracle" | cut -d' ' -f1 | paste -sd,)" -o "$D/a.h5" >"$D/a.json" 2>"$D/err" &&
   sed -n 's/^ *"nll": \([0-9.]*\),$/\1/p' "$D/a.json" | paste -d' ' "$D/oracle" - |
     awk '{ d = $2 - $3; most = /hetero|zipcache/ ? 1e-3 : 2e-5 } NF != 3 || d > most || -d > most { print; wrong = 1 } END { exit wrong || NR != 13 }' >"$D/rows"
then ok "losses of a decoder in NumPy"; else not_ok "losses of a decoder in NumPy" "$(cat "$D/rows" "$D/err")"; fi
