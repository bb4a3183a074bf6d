#!/bin/sh
# experiments/leaderboard from end to end with the demo model: an estimate first, one file, a table; a second run makes nothing again.
. tests/lib/cases.sh
board() { make -C experiments/leaderboard BIN="$PWD/$B/bin" OUT="$D/out" TEXTS=data/texts/stories.txt TOKENS=1024 RULER=niah_single_1,fwe LENGTH=300 ITEMS=2 GPU= GROUPS=tokens POINTS_tokens="streaming,recent=0.5/0.25 h2o" TASKS="--max-new-tokens 4" PLOTS=0; }
check "a leaderboard" board
says "$log" "3 methods, 2 items of each task." >/dev/null && says "$log" "All will take about" >/dev/null && ok "the estimate" || not_ok "the estimate"
is "methods and tasks" "none h2o streaming streaming fwe,niah_single_1" "$(sed 1d "$D/out/leaderboard/report/tables/leaderboard.csv" | cut -d, -f1 | tr '\n' ' ')$(head -1 "$D/out/leaderboard/report/tables/leaderboard.csv" | cut -d, -f13-)"
check "again" board
if grep -q "kvdim-tasks" "$log"; then not_ok "a second run makes nothing again"; else ok "a second run makes nothing again"; fi
