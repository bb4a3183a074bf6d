#!/bin/sh
# The folders of the papers' system figures, as small as they get: what they make, that a second run makes nothing, and what they ask for on a GPU.
. tests/lib/cases.sh
bin=$(cd "$B/bin" && pwd)
make="${MAKE:-make} --no-print-directory BIN=$bin OUT=$D/out TOKENS=512 SEQ_LEN=128 TEXTS=$PWD/data/texts/stories.txt REPEATS=1 PLOTS=0"
unset MAKEFLAGS MFLAGS MAKELEVEL

tiny="BATCH=1 INPUTS=16\ 32 OUTPUT=4 INPUT=16 OUTPUTS=4\ 8"
check "jobs by length" sh -c "$make -C experiments/job-time-by-length $tiny 'METHODS=none zack,p=0.5'"
[ -s "$D/out/job-time-by-length/by-input.h5" ] && [ -s "$D/out/job-time-by-length/report/tables/jct-shares.csv" ] && ok "and their page" || not_ok "and their page"
check "a second run" sh -c "$make -C experiments/job-time-by-length $tiny 'METHODS=none zack,p=0.5'"
grep -q "Nothing to be done\|up to date" "$D/log" && ok "makes nothing" || not_ok "makes nothing"
awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "input") first = i + 2 }
  NR > 1 { sum = 0; for (i = NF - 11; i <= NF; i++) sum += $i; n++; if ((sum - 100) ^ 2 > 1e-6) bad++ }
  END { exit !(n == 8 && !bad) }' "$D/out/job-time-by-length/report/tables/jct-shares.csv" >"$D/log" 2>&1 && ok "shares sum to 100 %" || { cp "$D/out/job-time-by-length/report/tables/jct-shares.csv" "$D/log"; not_ok "shares sum to 100 %"; }
check "costs" sh -c "$make -C experiments/serving 'longest_imdb=24 8' SERIES=ZACK 'JCT=--pages 400' $D/out/serving-zack/costs-imdb.h5"
grep -q -- "--method none --method zack,p=0.53 --input-len 24 --output-len 8 " "$D/log" && ok "at the published rate" || not_ok "at the published rate"
check "costs of palu on a checkpoint" sh -c "$make -C experiments/serving PAPER=fdc 'longest_imdb=24 8' 'SERIES=FDC Palu' CALIBRATION=256 'JCT=--pages 400' $D/out/serving-fdc/costs-imdb.h5"
grep -q -- "--method palu,p=0.55 .*--calibration .*-pre-t256-s128.h5" "$D/log" && ok "with activations that calibrate it" || not_ok "with activations that calibrate it"
# Times of a loaded machine are no test: costs that are known.
mkdir "$D/costs" && "$B/tests/tool_jct" costs "$D/costs/costs-imdb.h5" >"$D/log" 2>&1 || not_ok "costs that are known"
check "serving from costs that are there" sh -c "$make -C experiments/serving COSTS=$D/costs TRACES=imdb 'METHODS=none zack,p=0.5' ARRIVALS=400"
grep -q 'zack' "$D/out/serving-zack/report/tables/serving-rates.csv" && ok "and the highest rates" || not_ok "and the highest rates"

cp "$D/costs/costs-imdb.h5" "$D/costs/costs-again-imdb.h5"
check "costs of two files" sh -c "$make -n -C experiments/serving-several-machines COSTS=$D/costs MORE=again TRACES=imdb SERVERS=2 >$D/wants"
grep -q "kvdim-serve $D/costs/costs-imdb.h5,$D/costs/costs-again-imdb.h5 imdb" "$D/wants" && grep -q -- "--costs $D/costs/costs-imdb.h5 --costs $D/costs/costs-again-imdb.h5" "$D/wants" && ok "both are given" || { cp "$D/wants" "$D/log"; not_ok "both are given"; }

for folder in $(grep -l '^include ../system.mk' experiments/*/Makefile | xargs -n 1 dirname); do
  n=$(basename "$folder")
  check "$n, on a GPU" sh -c "$make -n -C $folder SHAPE=llama-3.1-8b OUT=$D/gpu >$D/wants"
  grep -q -- "--shape llama-3.1-8b --spread " "$D/wants" && { [ -s "$folder/README.md" ] || grep -qx "## $n" experiments/README.md; } && grep -q "| \`$n\` |" experiments/README.md && ok "$n: its commands and its words" || { cp "$D/wants" "$D/log"; not_ok "$n: its commands and its words"; }
  # A method that the engine refuses ends the run with a status that stops make.
  ! grep -E -- '--method (minicache|xkv|scissorhands|think|[^ ]*\+kvquant)' "$D/wants" >"$D/log" && ok "$n: no method that GPUs refuse" || not_ok "$n: no method that GPUs refuse"
done

# make -C experiments: the folders that time this machine are left out, and no other one that needs no more than texts.
run=$(make -C experiments -s -f - BIN="$bin" print 2>"$log" <<'END' || cat "$log"
include Makefile
print: ; @echo $(folders)
END
)
is "folders of make -C experiments" "better-than-papers bytes-at-equal-loss generation precision-levels rates-at-equal-accuracy rotations-across-texts rotations-by-token-count spectra sweep-rate sweep-tokens token-studies transfer-matrix two-level-settings unseen-text weights-against-cache-bits" "$run"

# experiments/leaderboard from end to end with the demo model: an estimate first, one file, a table; a second run makes nothing again.
board() { make -C experiments/leaderboard BIN="$PWD/$B/bin" OUT="$D/out" TEXTS=data/texts/stories.txt TOKENS=1024 RULER=niah_single_1,fwe LENGTH=300 ITEMS=2 GPU= GROUPS=tokens POINTS_tokens="streaming,recent=0.5/0.25 h2o" STEPS="$PWD/data/models/kvdim-6m" STEP_BATCH=2 STEP_TOKENS=60 TASKS="--max-new-tokens 4" PLOTS=0 "$@"; }
check "a leaderboard" board
says "$log" "3 methods, 2 items of each task." >/dev/null && says "$log" "All will take about" >/dev/null && ok "the estimate" || not_ok "the estimate"
is "methods and tasks" "none h2o streaming streaming fwe,niah_single_1" "$(sed 1d "$D/out/leaderboard/report/tables/leaderboard.csv" | cut -d, -f1 | tr '\n' ' ')$(head -1 "$D/out/leaderboard/report/tables/leaderboard.csv" | cut -d, -f13-)"
check "again" board
if grep -q "kvdim-tasks" "$log"; then not_ok "a second run makes nothing again"; else ok "a second run makes nothing again"; fi
check "other steps" board STEP_TOKENS=50
is "they time the steps again, and nothing else" "1 0" "$(grep -c "kvdim-jct  *leaderboard/steps-tokens.h5" "$log") $(grep -c "kvdim-tasks  *leaderboard/tokens.h5" "$log")"
# shadowkv reads all of such short prompts, so that its budget has no effect: the others make the page.
check "other settings" board ITEMS=1 POINTS_tokens="h2o shadowkv,budget=0.9" STEPS=
is "they make the table and its estimate again" "1 1 none h2o" "$(grep -c "kvdim-tasks  *leaderboard/tokens.h5" "$log") $(grep -c "2 methods, 1 items" "$log") $(sed 1d "$D/out/leaderboard/report/tables/leaderboard.csv" | cut -d, -f1 | tr '\n' ' ' | sed 's/ $//')"
check "a sweep" board ITEMS=1 POINTS_tokens=h2o POINTS_fixed=mxfp4 STEPS= GROUPS="tokens fixed" SWEEP=2
is "two values, and a method without a key" "1 none h2o h2o mxfp4" "$(grep -c "3 methods, 1 items" "$log") $(sed 1d "$D/out/leaderboard-sweep/report/tables/leaderboard.csv" | cut -d, -f1 | tr '\n' ' ' | sed 's/ $//')"
