#!/bin/sh
# kvdim-serve against what customers type: numbers that are cut, options without effect, traces of editors, names that JSON cannot hold; and
# what must hold of every result, whatever the load.
. tests/lib/cases.sh
SERVE=$B/bin/kvdim-serve

# refused NAME STATUS WANTED-TEXT OPTION...: one line on stderr in good time, no file left
refused() {
  name=$1 want=$2 text=$3; shift 3
  timeout -s KILL 20 "$SERVE" "$@" -o "$D/none.h5" >"$D/out" 2>"$D/err"; rc=$?
  if [ $rc -eq "$want" ] && grep -qF -- "$text" "$D/err" && [ ! -e "$D/none.h5" ] && [ "$(grep -c '^kvdim-serve: ' "$D/err")" -eq 1 ]; then ok "$name"
  else not_ok "$name" "status $rc, wanted $want and '$text'" "$(cat "$D/err")"; fi
}
# values COLUMN FILE: that column of all rows of the JSON summary, on one line
values() { sed -n "s/^ *\"$1\": \"*\([^\"]*[^\",]\)\"*,*\$/\1/p" "$2" | tr '\n' ' ' | sed 's/ $//'; }
# serve NAME OPTION...: rows of the JSON summary into $D/NAME
serve() { name=$1; shift; "$SERVE" --costs "$D/jct.h5" --json -q -o "$D/$name.h5" "$@" 2>"$D/err" | sed -n '/"rows"/,$p' >"$D/$name"; [ -s "$D/$name" ]; }

"$B/tests/tool_jct" costs "$D/jct.h5" || { echo "not ok make costs"; exit 1; }
C="--costs $D/jct.h5"
P="--requests poisson:2:fixed:400:5 --n-requests 30 --method none"
zeros=0000000000000000000000000000000000000000000000000000000000000000000000

# ---- numbers ------------------------------------------------------------------------------------------
refused "a long rate is not cut" 2 "000...' is not a number" $C $P --request-rate "1.${zeros}e5"
refused "nor what stands behind it" 2 "000...' is not a number" $C $P --request-rate "1,2.${zeros}junk"
refused "a long rate of Poisson" 2 "000...' is not a number" $C --requests "poisson:1.${zeros}e5:arxiv"
refused "a long length" 1 "000...' is not a whole number" $C --requests "poisson:1:fixed:${zeros}7:5"
refused "a rate twice" 2 "--request-rate: 1 is given twice" $C $P --request-rate 1,2,1.0
refused "a range upside down" 2 "needs first <= last and step > 0" $C $P --request-rate 2:1:0.5
for v in 0 -1 '' nan inf 1e400 1x ' 1' 0x10; do
  refused "--slo-ttft '$v'" 2 "--slo-ttft: '$v'" $C $P "--slo-ttft=$v"
  refused "--replicas '$v'" 2 "--replicas: '$v'" $C $P "--replicas=$v"
done
refused "whole prompts in pieces" 2 "--max-tokens limits whole prompts and cannot be used with --chunk" $C $P --chunk 64 --max-tokens 64

# ---- traces -------------------------------------------------------------------------------------------
printf 'arrival_s,input_tokens,output_tokens\n0,400,5\n1e-320,400,5\n' >"$D/now.csv"
for o in "" "--request-rate 1" "--max-rate 1"; do refused "requests in no time, $o" 1 "'$D/now.csv': 2 requests within 9.99989e-321 s, more than 1e+09 a second" $C --requests "$D/now.csv" $o; done
line='{"timestamp": 0, "input_length": 400, "output_length": 5}'
printf '\357\273\277%s\n' "$line" >"$D/mark.jsonl"
printf '\n  %s\n' "$line" >"$D/blank.jsonl"
printf '%s\n' "$line" >"$D/plain.jsonl"
for f in plain mark blank; do serve $f.json --requests "$D/$f.jsonl"; values jct_mean_s "$D/$f.json"; echo; done >"$D/three"
[ "$(sort -u "$D/three" | wc -l)" -eq 1 ] && [ "$(wc -l <"$D/three")" -eq 3 ] && ok "JSON lines behind a mark and blanks" || not_ok "JSON lines behind a mark and blanks" "$(cat "$D/three" "$D/err")"
printf '\357\273\277%s\n\n{"timestamp": 1, "input_length": 0, "output_length": 5}\n' "$line" >"$D/mark.jsonl"
refused "rows are counted behind a mark" 1 "'$D/mark.jsonl' row 3: input_length: '0' is not within" $C --requests "$D/mark.jsonl"

# A result is named after its trace; names longer than that end after a whole character, whatever the place.
name=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
rc=0
for pad in "" x xx xxx xxxx xxxxx xxxxxx; do
  f="$D/$name$pad"$(printf '\303\251\303\251\303\251\303\251\303\251\303\251\303\251\303\251').csv
  cp "$D/plain.jsonl" "$f"
  for trace in "$f" "poisson:1:$f"; do
    "$SERVE" $C --requests "$trace" --json -q -o "$D/n.h5" >"$D/n.json" 2>"$D/err" && grep -q '"trace": .*\.\.\."' "$D/n.json" || { rc=1; cat "$D/err" >>"$D/names"; }
    ! "$PYTHON" -c '' 2>/dev/null || "$PYTHON" -c 'import json, sys; json.load(open(sys.argv[1], encoding="utf-8"), parse_constant=lambda c: 1 / 0)' "$D/n.json" 2>>"$D/names" || rc=1
  done
done
[ $rc -eq 0 ] && ok "long names are cut between characters" || not_ok "long names are cut between characters" "$(tail -5 "$D/names")"

# ---- what holds of every result -------------------------------------------------------------------------
both="--method none,zack,p=0.5"
for load in "poisson:0.001:fixed:1000:50 --n-requests 50" "poisson:20:sharegpt --n-requests 300 --max-batch 8" "poisson:3:arxiv --n-requests 200 --chunk 512" \
  "poisson:0.5:cocktail-fdc --n-requests 60" "poisson:100:fixed:64:1 --n-requests 2 --max-tokens 1"; do
  set -- --requests $load --slo-ttft 1
  serve a "$@" && serve again "$@" && serve other "$@" --method zack,p=0.5,none && serve alone "$@" --method zack,p=0.5 && serve two "$@" --replicas 2 --route round-robin || { not_ok "$load" "$(cat "$D/err")"; continue; }
  cmp -s "$D/a" "$D/again" || not_ok "$load: the same again"
  for c in method ttft_mean_s jct_p99_s utilisation; do
    set -- $(values $c "$D/a") / $(values $c "$D/other") / $(values $c "$D/alone")
    [ "$1 $2" = "$5 $4" ] && [ "$2" = "$7" ] || not_ok "$load: $c depends on other methods" "$*"
  done
  for c in requests refused utilisation kv_share slo_share goodput_per_s served_per_s ttft_mean_s jct_mean_s ttft_p50_s ttft_p90_s ttft_p99_s wait_mean_s; do echo "$c $(values $c "$D/a")"; done |
    awk '{ for (i = 2; i <= 3; i++) v[$1, i] = $i }
      END { for (i = 2; i <= 3; i++) {
        if (!(v["refused", i] >= 0 && v["refused", i] < v["requests", i])) exit 1
        if (!(v["utilisation", i] > 0 && v["utilisation", i] <= 1 && v["kv_share", i] > 0 && v["kv_share", i] <= 1 && v["slo_share", i] >= 0 && v["slo_share", i] <= 1)) exit 1
        if (!(v["goodput_per_s", i] <= v["served_per_s", i] && v["wait_mean_s", i] <= v["ttft_mean_s", i] && v["ttft_mean_s", i] <= v["jct_mean_s", i])) exit 1
        if (!(v["ttft_p50_s", i] <= v["ttft_p90_s", i] && v["ttft_p90_s", i] <= v["ttft_p99_s", i])) exit 1 } }' && ok "$load: shares, orders and sums" || not_ok "$load: shares, orders and sums" "$(cat "$D/a")"
  echo "$(values jct_mean_s "$D/a") $(values jct_mean_s "$D/two")" | awk '{ exit !($3 <= $1 * (1 + 1e-9) && $4 <= $2 * (1 + 1e-9)) }' && ok "$load: a second replica does no harm" || not_ok "$load: a second replica does no harm"
done
serve idle --requests poisson:0.001:fixed:1000:50 --n-requests 50 && serve one --requests poisson:1:fixed:1000:50 --n-requests 1
echo "$(values ttft_mean_s "$D/idle") $(values ttft_mean_s "$D/one") $(values jct_mean_s "$D/idle") $(values jct_mean_s "$D/one")" |
  awk '{ for (i = 1; i <= 5; i += 4) for (k = 0; k < 2; k++) { r = $(i + k) / $(i + k + 2) - 1; if (r * r > 1e-16) exit 1 } exit NF != 8 }' && ok "few requests find the machine idle" || not_ok "few requests find the machine idle"

# ---- settings of the files ---------------------------------------------------------------------------------
# A setting of another type is damage. It does not count as missing, which would switch a check off.
if "$PYTHON" -c 'import h5py' 2>/dev/null; then
  printf 'arrival_s,input_tokens,output_tokens\n0,400,5\n1,400,5\n' >"$D/own.csv"
  "$B/tests/tool_jct" replay "$D/replay.h5" "$D/own.csv"
  for what in "jct.h5 provenance gpu" "jct.h5 parameters attention" "jct.h5 provenance driver" "replay.h5 parameters max-batch"; do
    set -- $what
    cp "$D/$1" "$D/damaged.h5"
    "$PYTHON" -c 'import h5py, sys
with h5py.File(sys.argv[1], "a") as f: f.require_group(sys.argv[2]).attrs[sys.argv[3]] = [1.5, 2]' "$D/damaged.h5" "$2" "$3"
    name=/$2/$3
    if [ "$1" = replay.h5 ]; then set -- $C --validate "$D/damaged.h5"; else set -- --costs "$D/damaged.h5" $P; fi
    refused "a setting of two values: $name" 1 "damaged.h5' attribute '$name' does not hold one value" "$@"
  done
else echo "skip settings of two values: no h5py for $PYTHON"; fi

# ---- a replay of fewer methods ----------------------------------------------------------------------------
printf 'arrival_s,input_tokens,output_tokens\n0,400,5\n1,400,5\n' >"$D/own.csv"
"$B/tests/tool_jct" replay "$D/replay.h5" "$D/own.csv" && "$SERVE" $C --validate "$D/replay.h5" $both -q -o "$D/v.h5" >"$D/out" 2>"$D/err" &&
  grep -q "^kvdim-serve: zack,p=0.5: not validated, '$D/replay.h5' has no requests of it$" "$D/err" && ok "a method that was named and not replayed" || not_ok "a method that was named and not replayed" "$(cat "$D/err")"

# ---- the report compares like with like -----------------------------------------------------------------------
mkdir "$D/in"
"$SERVE" $C --requests "$D/own.csv" --method none -q -o "$D/in/x.h5" 2>/dev/null && "$SERVE" $C --requests "$D/own.csv" --method zack,p=0.5 --memory 40 -q -o "$D/in/y.h5" 2>/dev/null &&
  "$B/bin/kvdim-report" "$D/in" --no-plots -q -o "$D/report" 2>"$D/err" && grep -q 'own.csv (x.h5),none,' "$D/report/tables/serving.csv" && grep -q 'own.csv (y.h5),"zack,p=0.5",' "$D/report/tables/serving.csv" &&
  ok "services of unequal memory are two places" || not_ok "services of unequal memory are two places" "$(cat "$D/err" "$D/report/tables/serving.csv")"
"$SERVE" $C --requests "$D/own.csv" --method zack,p=0.5 -q -o "$D/in/y.h5" 2>/dev/null && "$B/bin/kvdim-report" "$D/in" --no-plots -q -o "$D/report" 2>"$D/err" && ! grep -q 'own.csv (' "$D/report/tables/serving.csv" &&
  ok "and equal ones one" || not_ok "and equal ones one" "$(cat "$D/err" "$D/report/tables/serving.csv")"
# A third file: of another memory, or with the uncompressed cache that one of the two has. Rows that were compared stay compared.
change() { awk -F, -v row="$1" 'index($0, row) { n++; c = $(NF - 15) } END { print n == 1 && c != "" ? "compared" : n " rows, " c }' "$D/report/tables/serving.csv"; }
"$SERVE" $C --requests "$D/own.csv" $both --memory 40 -q -o "$D/in/z.h5" 2>/dev/null && "$B/bin/kvdim-report" "$D/in" --no-plots -q -o "$D/report" 2>"$D/err"
is "a file of another memory beside them" "compared compared" "$(change 'own.csv (x.h5 and others),"zack,p=0.5"') $(change 'own.csv (z.h5),"zack,p=0.5"')"
"$SERVE" $C --requests "$D/own.csv" $both -q -o "$D/in/y.h5" 2>/dev/null && rm "$D/in/z.h5" && "$B/bin/kvdim-report" "$D/in" --no-plots -q -o "$D/report" 2>"$D/err"
is "an uncompressed cache in two files" "compared" "$(change 'own.csv (y.h5),"zack,p=0.5"')"
mkdir -p "$D/in/a-folder-with-a-name-of-sixty-characters-so-that-names-are-long/1" "$D/in/a-folder-with-a-name-of-sixty-characters-so-that-names-are-long/2"
for i in 1 2; do mv "$D/in/$([ $i = 1 ] && echo x || echo y).h5" "$D/in/a-folder-with-a-name-of-sixty-characters-so-that-names-are-long/$i/s.h5"; done
(cd "$D/in" && "$B/bin/kvdim-report" a-folder-with-a-name-of-sixty-characters-so-that-names-are-long/1 a-folder-with-a-name-of-sixty-characters-so-that-names-are-long/2 --no-plots -q -o "$D/report") 2>"$D/err"
is "files of long names are two places" "2" "$(tail -n +2 "$D/report/tables/serving.csv" | sed 's/,.*//' | sort -u | wc -l)"
