#!/bin/sh
# kvdim-serve on made-up costs: points, traces in every format, highest rates, a replay, what it warns of, what it refuses, kills.
. tests/lib/cases.sh
SERVE=$B/bin/kvdim-serve

check() { name=$1; shift; if "$@"; then ok "$name"; else not_ok "$name" "$(cat "$D/err" 2>/dev/null)"; fi; }
# values COLUMN FILE: that column of all rows of the JSON summary, on one line
values() { sed -n "s/^ *\"$1\": \"*\([^\"]*[^\",]\)\"*,*\$/\1/p" "$2" | tr '\n' ' ' | sed 's/ $//'; }
# fails NAME STATUS WANTED-TEXT OPTION...: one line on stderr, no file left
fails() {
  name=$1 want=$2 text=$3; shift 3
  "$SERVE" "$@" -o "$D/none.h5" >"$D/out" 2>"$D/err"; rc=$?
  if [ $rc -eq "$want" ] && grep -qF -- "$text" "$D/err" && [ ! -e "$D/none.h5" ] && [ ! -e "$D/none.h5.partial" ] &&
     [ "$(grep -c '^kvdim-serve: ' "$D/err")" -eq 1 ]; then ok "$name"
  else not_ok "$name" "status $rc, wanted $want and '$text'" "$(cat "$D/err")"; fi
}

"$B/tests/tool_jct" costs "$D/jct.h5" || { echo "not ok make costs"; exit 1; }
costs="--costs $D/jct.h5"

# ---- a column that does not apply is "-" in the table and null in JSON -----------------------------
printf 'arrival_s,input_tokens,output_tokens\n0,100,1\n0.3,64,1\n' >"$D/first.csv"
if "$SERVE" $costs --requests "$D/first.csv" -o "$D/first.h5" >"$D/first" 2>"$D/err" && ! grep -qi nan "$D/first" && grep -q '^served/s, goodput/s: .*; busy: ' "$D/first" && grep -Eq '^point .* - .* - +- ' "$D/first" &&
   "$SERVE" $costs --requests "$D/first.csv" --json -q -o "$D/first.h5" >"$D/first.json" 2>"$D/err" && grep -q '"tbt_mean_s": null' "$D/first.json"
then ok "columns that do not apply"; else not_ok "columns that do not apply" "$(cat "$D/first")" "$(cat "$D/err")"; fi

# ---- points -----------------------------------------------------------------------------------
if "$SERVE" $costs --requests poisson:2:arxiv --n-requests 400 --request-rate 0.5:3:0.5 --max-rate 0.1 --slo-ttft 1 --slo-tbt 0.02 --json -q -o "$D/a.h5" \
     >"$D/a.json" 2>"$D/err"; then
  [ "$(values kind "$D/a.json" | tr ' ' '\n' | uniq -c | awk '{ print $1 $2 }' | tr '\n' ' ')" = "6point 1max-rate 6point 1max-rate " ] &&
    [ "$(values method "$D/a.json" | tr ' ' '\n' | uniq | tr '\n' ' ')" = "none zack,p=0.5 " ] &&
    [ "$(values rate "$D/a.json" | cut -d' ' -f1-6)" = "0.5 1.0 1.5 2.0 2.5 3.0" ] && ok "a row for every method and rate" ||
    not_ok "a row for every method and rate" "$(values kind "$D/a.json")" "$(values method "$D/a.json")" "$(values rate "$D/a.json")"
  # Latency rises with the rate; the smaller, cheaper cache is never slower and sustains a higher rate; intervals hold their means.
  values latency_mean_s "$D/a.json" | awk '{ for (i = 1; i < 6; i++) if ($i > $(i + 1)) exit 1; for (i = 1; i <= 6; i++) if ($(i + 7) > $i) exit 1 }' &&
    values rate "$D/a.json" | awk '{ exit !($14 > 1.05 * $7) }' && ok "what is smaller serves more" || not_ok "what is smaller serves more" "$(values latency_mean_s "$D/a.json")"
  { values latency_mean_lo_s "$D/a.json"; values latency_mean_s "$D/a.json"; values latency_mean_hi_s "$D/a.json"; } |
    awk 'NR == 1 { split($0, lo) } NR == 2 { split($0, m) } NR == 3 { for (i = 1; i <= NF; i++) if (!(lo[i] < m[i] && m[i] < $i)) exit 1 }' &&
    ok "intervals hold their means" || not_ok "intervals hold their means"
  values latency_mean_s "$D/a.json" | awk '{ exit !($7 <= 0.1 && $14 <= 0.1 && $7 > 0.09 && $14 > 0.09) }' && ok "the highest rate is within its bound" ||
    not_ok "the highest rate is within its bound" "$(values latency_mean_s "$D/a.json")"
  { values goodput_per_s "$D/a.json"; values served_per_s "$D/a.json"; values utilisation "$D/a.json"; values kv_share "$D/a.json"; } |
    awk 'NR == 1 { split($0, g) } NR == 2 { for (i = 1; i <= NF; i++) if (g[i] > $i) exit 1; if (!(g[6] < 0.5 * $6)) exit 1 }
         NR > 2 { for (i = 1; i <= NF; i++) if (!($i > 0 && $i <= 1)) exit 1 }' && ok "goodput, utilisation and cache" || not_ok "goodput, utilisation and cache"
  [ "$(values pages "$D/a.json" | cut -d' ' -f1,14)" = "1000 2000" ] && ok "pages from the measured cache" || not_ok "pages from the measured cache"
else
  not_ok "points" "$(cat "$D/err")"
fi
"$SERVE" $costs --requests poisson:2:arxiv --n-requests 400 --request-rate 0.5:3:0.5 --max-rate 0.1 --slo-ttft 1 --slo-tbt 0.02 --threads 1 --json -q -o "$D/b.h5" >"$D/b.json" 2>/dev/null
sed 's/b\.h5/a.h5/' "$D/b.json" | cmp -s - "$D/a.json" && ok "the same again" || not_ok "the same again"
"$SERVE" $costs --requests poisson:2:arxiv --n-requests 400 --seed 2 --json -q -o "$D/b.h5" >"$D/b.json" 2>/dev/null
[ "$(values ttft_mean_s "$D/b.json" | cut -d' ' -f1)" != "$(values ttft_mean_s "$D/a.json" | cut -d' ' -f4)" ] && ok "another seed" || not_ok "another seed"
"$SERVE" $costs --requests poisson:2:humaneval --n-requests 50 --method zack,p=0.5 -o "$D/c.h5" >"$D/out" 2>"$D/err"
[ "$(grep -c '^point ' "$D/out")" -eq 1 ] && grep -q '^simulated: ' "$D/out" && ok "the table says that it is simulated" || not_ok "the table says that it is simulated" "$(cat "$D/out" "$D/err")"

# ---- admission by what is stored -----------------------------------------------------------------------
run() { "$SERVE" $costs --method none --requests poisson:50:fixed:200:300 --n-requests 200 --json -q "$@" -o "$D/m.h5" >"$D/m.json" 2>"$D/err"; }
run && whole=$(values served_per_s "$D/m.json") few=$(values running_mean "$D/m.json") && [ "$(values admission "$D/m.json") $(values preempted "$D/m.json") $(values recomputed "$D/m.json")" = "whole 0 0" ] &&
  run --memory 15.4 --reserve 0.2 --admission stored && [ "$(values admission "$D/m.json")" = stored ] &&
  echo "$(values preempted "$D/m.json") $(values recomputed "$D/m.json") $(values kv_share "$D/m.json") $(values served_per_s "$D/m.json") $whole" | awk '{ exit !($1 > 0 && $2 >= 200 * $1 && $3 <= 1 && $4 < $5) }' &&
  grep -q "preemptions, [0-9]* tokens computed again" "$D/err" && ok "preemptions and recomputed tokens are reported" || not_ok "preemptions and recomputed tokens are reported" "$(cat "$D/m.json" "$D/err")"
fails "an unknown admission" 2 "--admission" $costs --requests poisson:2 --admission some

# ---- several files of costs -------------------------------------------------------------------------
"$B/tests/tool_jct" costs "$D/one.h5" none card && "$B/tests/tool_jct" costs "$D/two.h5" zack,p=0.5 card && "$B/tests/tool_jct" costs "$D/both.h5" both card && "$B/tests/tool_jct" costs "$D/cpu.h5" both none || not_ok "make two files of costs"
"$SERVE" --costs "$D/one.h5" --costs "$D/two.h5" --requests poisson:2:arxiv --n-requests 400 --request-rate 0.5:3:0.5 --max-rate 0.1 --slo-ttft 1 --slo-tbt 0.02 --json -q -o "$D/b.h5" >"$D/b.json" 2>"$D/err"
sed -n '/"rows"/,$p' "$D/a.json" >"$D/a.rows"
! grep -q "measured" "$D/err" && [ -s "$D/a.rows" ] && sed -n '/"rows"/,$p' "$D/b.json" | cmp -s - "$D/a.rows" && ok "two files serve as one" || not_ok "two files serve as one" "$(cat "$D/err")"
fails "a method in two files" 1 "'$D/one.h5' has 22 iterations of none and '$D/both.h5' 22: leave one file out" --costs "$D/one.h5" --costs "$D/both.h5" --requests poisson:1
fails "two machines" 1 "'$D/one.h5' was measured on 1 and '$D/cpu.h5' on 0 GPUs" --costs "$D/one.h5" --costs "$D/cpu.h5" --requests poisson:1

# ---- one trace in three formats ------------------------------------------------------------------
awk 'BEGIN { print "arrival_s,input_tokens,output_tokens" >"'"$D/own.csv"'"; print "TIMESTAMP,ContextTokens,GeneratedTokens" >"'"$D/azure.csv"'"
  for (i = 0; i < 120; i++) { ms = i * 250 + (i * 7919) % 200 * (i > 0); n = 200 + (i * 104729) % 1500; out = 1 + (i * 31) % 90
    printf "%.3f,%d,%d\n", ms / 1000, n, out >"'"$D/own.csv"'"
    printf "2023-11-16 23:59:%02d.%03d0000,%d,%d\n", 30 + ms / 1000, ms % 1000, n, out >"'"$D/azure.csv"'"
    printf "{\"timestamp\": %d, \"input_length\": %d, \"output_length\": %d, \"hash_ids\": [%d]}\n", ms, n, out, i >"'"$D/moon.jsonl"'" } }'
sed -i 's/ 23:59:6\(.\)/+\1/; s/^2023-11-16+\(.\)/2023-11-17 00:00:0\1/' "$D/azure.csv"
for f in own.csv azure.csv moon.jsonl; do
  "$SERVE" $costs --requests "$D/$f" --replicas 2 --method none --json -q -o "$D/f.h5" 2>"$D/err" | sed "s/$f//" >"$D/$f.json"
done
a=$(values latency_mean_s "$D/own.csv.json") b=$(values latency_mean_s "$D/azure.csv.json") c=$(values latency_mean_s "$D/moon.jsonl.json")
echo "$a $b $c" | awk '{ exit !($1 > 0 && ($1 - $2) ^ 2 < 1e-16 * $1 ^ 2 && ($1 - $3) ^ 2 < 1e-16 * $1 ^ 2) }' && ok "three formats, one answer" || not_ok "three formats, one answer" "$a" "$b" "$c" "$(cat "$D/err")"
"$SERVE" $costs --requests "$D/own.csv" --n-requests 100 --method none --json -q -o "$D/f.h5" >"$D/f.json" 2>"$D/err"
[ "$(values requests "$D/f.json") $(values skipped "$D/f.json")" = "100 20" ] && ok "what is left out is counted" || not_ok "what is left out is counted" "$(cat "$D/f.json")"
"$SERVE" $costs --requests "poisson:3:$D/own.csv" --n-requests 60 --method none -q -o "$D/f.h5" 2>"$D/err" && ok "lengths of a trace" || not_ok "lengths of a trace" "$(cat "$D/err")"

# ---- machines ----------------------------------------------------------------------------------------
for route in shortest round-robin least-loaded; do
  "$SERVE" $costs --requests poisson:8:arxiv --n-requests 300 --replicas 4 --route $route --method none --json -q -o "$D/r.h5" 2>/dev/null | sed -n 's/^ *"ttft_mean_s": \(.*\),/\1/p'
done >"$D/routes"
[ "$(sort -u "$D/routes" | wc -l)" -eq 3 ] && ok "routes differ" || not_ok "routes differ" "$(cat "$D/routes")"
one=$("$SERVE" $costs --requests poisson:2:arxiv --n-requests 300 --method none --json -q -o "$D/r.h5" 2>/dev/null | sed -n 's/^ *"ttft_mean_s": \(.*\),/\1/p')
two=$("$SERVE" $costs --requests poisson:2:arxiv --n-requests 300 --replicas 2 --method none --json -q -o "$D/r.h5" 2>/dev/null | sed -n 's/^ *"ttft_mean_s": \(.*\),/\1/p')
echo "$one $two" | awk '{ exit !($2 < 0.9 * $1) }' && ok "two replicas wait less" || not_ok "two replicas wait less" "$one $two"
# 24 GiB less 2.4 less 16e9 bytes of weights, in pages of 64 x 131072 and 64 x 65536 bytes
"$SERVE" $costs --requests poisson:2:arxiv --n-requests 30 --memory 24 --chunk 512 --json -q -o "$D/r.h5" >"$D/r.json" 2>/dev/null
[ "$(values pages "$D/r.json") $(values chunk "$D/r.json")" = "857 1714 512 512" ] && ok "pages of a GPU" || not_ok "pages of a GPU" "$(values pages "$D/r.json") $(values chunk "$D/r.json")"

# ---- what must not be overlooked -----------------------------------------------------------------------
"$SERVE" $costs --requests poisson:1:fixed:30000:4 --n-requests 20 --method none -q -o "$D/w.h5" >"$D/out" 2>"$D/err"
check "extrapolation is said" grep -q '^kvdim-serve: none: 1 point extrapolates beyond the measured costs, at 1 request a second in [0-9.]* % of the iterations$' "$D/err"
"$SERVE" $costs --requests poisson:1:cocktail-fdc --n-requests 20 --method none -q --json -o "$D/w.h5" >"$D/w.json" 2>"$D/err"
check "refusals are said" grep -q '^kvdim-serve: none: [0-9]* of 20 requests refused at 1 request a second, the first: request [0-9]*: .* pages, there are 1000$' "$D/err"
values refused "$D/w.json" | awk '{ exit !($1 > 0 && $1 < 20) }' && ok "refusals are counted" || not_ok "refusals are counted"
"$SERVE" $costs --requests poisson:1:arxiv --n-requests 60 --method none --max-rate 0.3 -o "$D/w.h5" >"$D/out" 2>"$D/err"
cat "$D/out" "$D/err" | grep -q 'the queue grows\|however fast they arrive' && ok "a short trace is no proof" || not_ok "a short trace is no proof" "$(cat "$D/out" "$D/err")"
# A quarter of the requests is larger than the cache: what is served is then held against the others, and no queue grows.
awk 'BEGIN { print "num_prefill_tokens,num_decode_tokens"; for (i = 0; i < 40; i++) print (i % 4 ? 4000 : 90000) ",200" }' >"$D/lengths.csv"
"$SERVE" $costs --requests "poisson:1:$D/lengths.csv" --n-requests 2000 --method none --max-rate 0.02 -q --json -o "$D/w.h5" >"$D/w.json" 2>"$D/err"
grep -q 'requests refused' "$D/err" && ! grep -q 'queue grows' "$D/err" && values served_per_s "$D/w.json" | awk '{ r = $2 } END { exit !(r > 1) }' &&
  ok "refused requests make no queue" || not_ok "refused requests make no queue" "$(cat "$D/err")"
"$SERVE" $costs --requests poisson:1:arxiv --n-requests 20 --method none --max-rate 0.001 -q --json -o "$D/w.h5" >"$D/w.json" 2>"$D/err"
check "no rate is an answer" grep -q 'none: no rate of 20 requests has a mean latency of 0.001 s per token' "$D/w.json"

# ---- a replay -----------------------------------------------------------------------------------------
# A model of a machine is the simulator at costs 5 % higher, with 16 requests at once and chunks of 256.
"$B/tests/tool_jct" replay "$D/replay.h5" "$D/own.csv" || not_ok "make replay"
"$SERVE" $costs --validate "$D/replay.h5" --max-batch 16 --json -q -o "$D/v.h5" >"$D/v.json" 2>"$D/err"
if [ "$(values statistic "$D/v.json")" = "mean p90 mean p90 mean p90" ] && [ "$(values chunk "$D/v.json" | cut -d' ' -f1)" = 256 ] &&
   values error_percent "$D/v.json" | awk '{ for (i = 1; i <= NF; i++) if (!($i < -2 && $i > -30)) exit 1; exit NF != 6 }'
then ok "a slower machine is found to be slower"; else not_ok "a slower machine is found to be slower" "$(values error_percent "$D/v.json")" "$(cat "$D/err")"; fi
"$B/tests/tool_jct" costs "$D/slow.h5" && "$SERVE" --costs "$D/slow.h5" --validate "$D/replay.h5" --max-batch 16 -o "$D/v.h5" >"$D/out" 2>"$D/err"
check "a table of differences" [ "$(grep -c '^none .* %$' "$D/out")" -eq 6 ]

# ---- the report ---------------------------------------------------------------------------------------
mkdir "$D/in"
cp "$D/a.h5" "$D/v.h5" "$D/in" && "$SERVE" $costs --requests poisson:1:cocktail-fdc --n-requests 20 --method none --max-rate 0.0001 -q -o "$D/in/w.h5" 2>/dev/null
if "$B/bin/kvdim-report" "$D/in" --no-plots -q -o "$D/report" >"$D/out" 2>"$D/err"; then
  t=$D/report/tables
  [ "$(wc -l <"$t/serving.csv") $(wc -l <"$t/serving-rates.csv") $(wc -l <"$t/serving-validation.csv")" = "14 3 7" ] && [ -s "$t/serving-latency-1.csv" ] &&
    ok "tables of the report" || not_ok "tables of the report" "$(wc -l "$t"/serving*)"
  # method,bound,rate,times none's: after the place, which may be quoted
  sed 's/"zack,p=0.5"/zack/' "$t/serving-rates.csv" | awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) c[$i] = i }
    NR > 1 { rate[$c["method"]] = $c["rate"]; times[$c["method"]] = $c["times_none"] }
    END { r = rate["zack"] / rate["none"]; exit !(r > 1 && (times["zack"] - r) ^ 2 < 1e-12 && times["none"] == 1) }' && ok "rates over none's" || not_ok "rates over none's" "$(cat "$t/serving-rates.csv")"
  # The ledger shows the same ratio, of a trace too short for its rate, next to the share of the loads at which the claims hold.
  grep '^ZACK Fig. 15 (arXiv),' "$t/ledger.csv" >"$D/ledger.15"
  grep '^ZACK Fig. 13 (arXiv),' "$t/ledger.csv" >"$D/ledger.13"
  times=$(sed 's/"zack,p=0.5"/zack/' "$t/serving-rates.csv" | awk -F, '$2 == "zack" { printf "%.4g times", $5 }')
  grep -qF "highest rates under the bound $times on a test while the queue grows" "$D/ledger.15" && grep -q "% of the loads" "$D/ledger.15" && grep -q "% of the loads" "$D/ledger.13" && ! grep -q 'not measured' "$D/ledger.15" "$D/ledger.13" && ok "the ledger judges it" ||
    not_ok "the ledger judges it" "$times" "$(cat "$D/ledger.15" "$D/ledger.13" | cut -c1-300)"
  if command -v gnuplot >/dev/null 2>&1; then
    "$B/bin/kvdim-report" "$D/in" -q -o "$D/drawn" >"$D/out" 2>"$D/err" && [ -s "$D/drawn/figures/ledger-loads-1.svg" ] && ok "ratios against the load" || not_ok "ratios against the load" "$(cat "$D/err")"
  fi
  h=$D/report/index.html
  grep -q 'Simulated by kvdim-serve' "$h" && grep -q 'rows extrapolate' "$h" && grep -q 'rows refuse requests' "$h" && grep -q 'No highest rate of none: no rate of 20 requests' "$h" &&
    ok "the page says what not to overlook" || not_ok "the page says what not to overlook" "$(grep -A9 'id="serving"' "$h" | cut -c1-600)"
else
  not_ok "tables of the report" "$(cat "$D/err")"
fi

# A CPU's costs are no claim about the papers' machines.
mkdir "$D/cpu"
"$SERVE" --costs "$D/cpu.h5" --requests poisson:2:arxiv --n-requests 400 --request-rate 0.5:3:0.5 --max-rate 0.1 -q -o "$D/cpu/s.h5" 2>"$D/err" &&
  "$B/bin/kvdim-report" "$D/cpu" --no-plots -q -o "$D/cpu-report" >"$D/out" 2>>"$D/err" && grep '^ZACK Fig. 15 (arXiv),' "$D/cpu-report/tables/ledger.csv" | grep -q ',not measured,' &&
  grep -q "14 of 14 rows have a CPU's costs" "$D/cpu-report/index.html" && ! grep -q "a CPU's costs" "$D/report/index.html" && ok "a CPU's costs are not judged" ||
  not_ok "a CPU's costs are not judged" "$(cat "$D/err")" "$(grep '^ZACK Fig. 15' "$D/cpu-report/tables/ledger.csv" | cut -c1-300)"

# ---- what is refused ----------------------------------------------------------------------------------
fails "no costs" 2 "no --costs given" --requests poisson:1
fails "no trace" 2 "no --requests or --validate given" $costs
fails "an argument too many" 2 "argument 'x' is one too many" $costs --requests poisson:1 x
fails "no rate" 2 "--requests poisson:RATE: '' is not a number" $costs --requests poisson:
fails "no lengths" 2 "no lengths after the last colon" $costs --requests poisson:1:
fails "a chunk too small" 2 "--chunk 10 has no room for one step of each of --max-batch 64 requests" $costs --requests poisson:1 --chunk 10
fails "reserve of nothing" 2 "--reserve requires --memory" $costs --requests poisson:1 --reserve 3
fails "an unknown route" 2 "--route: 'far' is none of" $costs --requests poisson:1 --route far
fails "one route" 2 "--route requires --replicas" $costs --requests poisson:1 --route round-robin
fails "a method twice" 2 "--method: 'none' is given twice" $costs --requests poisson:1 --method none,none
fails "objectives of a replay" 2 "--slo-ttft requires --requests" $costs --validate "$D/replay.h5" --slo-ttft 3
fails "more requests than the trace has" 1 "holds 120 requests, fewer than the 121 asked for" $costs --requests "$D/own.csv" --n-requests 121
fails "a rate of 0" 2 "--request-rate: '0' is not within" $costs --requests poisson:1 --request-rate 0
fails "an unknown method" 1 "--method zack: '$D/jct.h5' has costs of: none; zack,p=0.5" $costs --requests poisson:1 --method zack
fails "unknown lengths" 1 "'nosuch'" $costs --requests poisson:1:nosuch
fails "a missing trace" 1 "'/nowhere.csv'" $costs --requests /nowhere.csv
fails "other GPUs" 1 "no row of kind iteration on 4 GPUs" $costs --requests poisson:1 --gpus 4
fails "memory for nothing" 1 "1 GPUs of 8 GiB less 0.8 GiB hold 14.9 GiB of weights and no page of 8 MiB" $costs --requests poisson:1 --memory 8
fails "nothing fits" 1 "none: no request can be served: request 0: " $costs --requests poisson:1:fixed:100000:3 --n-requests 3
fails "a replay as costs" 1 "has no row of kind iteration: kvdim-jct --iterations makes them" --costs "$D/replay.h5" --requests poisson:1
fails "costs as a replay" 1 "has no row of kind request of any of these methods" $costs --validate "$D/jct.h5"
fails "a replay that does not fit" 1 "has no row of kind request of any of these methods" $costs --requests "$D/own.csv" --validate "$D/jct.h5"
! grep -q "^point " "$D/out" && ok "nothing is simulated for a replay that does not fit" || not_ok "nothing is simulated for a replay that does not fit" "$(cat "$D/out")"
fails "another schema" 1 "holds kvdim/serving, kvdim/jct is wanted" --costs "$D/a.h5" --requests poisson:1
printf 'arrival_s,input_tokens,output_tokens\n0,10,5\n1,0,5\n' >"$D/bad.csv"
fails "a not_ok row" 1 "'$D/bad.csv' row 3: input_tokens: '0' is not within 1 .. 2147483648" $costs --requests "$D/bad.csv"
fails "a GPU" 1 "cuda" $costs --requests poisson:1 --device cuda

# ---- kills --------------------------------------------------------------------------------------------
long="$costs --requests poisson:1:sharegpt --n-requests 200000 --request-rate 1:50:1 -q"
"$SERVE" $long -o "$D/k.h5" 2>"$D/err" & pid=$!
n=0; while [ ! -e "$D/k.h5.partial" ] && [ $n -lt 200 ]; do sleep 0.05; n=$((n + 1)); done
kill -9 $pid; wait $pid 2>/dev/null
[ ! -e "$D/k.h5" ] && "$SERVE" $costs --requests poisson:1:sharegpt --n-requests 50 -q -o "$D/k.h5" 2>"$D/err" && [ -s "$D/k.h5" ] && [ ! -e "$D/k.h5.partial" ] &&
  ok "after kill -9 the next run writes" || not_ok "after kill -9 the next run writes" "$(cat "$D/err")" "$(ls "$D")"
rm "$D/k.h5"
"$SERVE" $long -o "$D/k.h5" 2>"$D/err" & pid=$!
n=0; while [ ! -e "$D/k.h5.partial" ] && [ $n -lt 200 ]; do sleep 0.05; n=$((n + 1)); done
kill -TERM $pid; wait $pid; rc=$?
[ $rc -eq 1 ] && grep -q '^kvdim-serve: .*interrupted$' "$D/err" && [ ! -e "$D/k.h5" ] && [ ! -e "$D/k.h5.partial" ] && ok "a stop leaves nothing" ||
  not_ok "a stop leaves nothing" "status $rc" "$(cat "$D/err")" "$(ls "$D")"
