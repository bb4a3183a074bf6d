#!/bin/sh
# The leaderboard: every method once, the uncompressed model once over several files, its scores and means those of the files, the best methods within each size.
. tests/lib/cases.sh
model=data/models/kvdim-6m
t="$D/page/tables"
# Edit similarity tells short answers of this small model apart, which name no needle.
tasks="--ruler niah_multikey_1,niah_multivalue --essay data/texts/articles.txt --seq-len 300 --items 8 --max-new-tokens 6 --metric code --cache f16 -q"
check "tokens" "$B/bin/kvdim-tasks" $model $tasks --method h2o,heavy=0.05/0.2,recent=0.1 --method quest,budget=0.25/0.5 -o "$D/tokens.h5"
check "bits" "$B/bin/kvdim-tasks" $model $tasks --method hetero,k=2,v=2 -o "$D/bits.h5"
check "a page" "$B/bin/kvdim-report" "$D/tokens.h5" "$D/bits.h5" -o "$D/page"
check "a figure" test -s "$D/page/figures/leaderboard.svg" -a -s "$D/page/figures/leaderboard.png"

check "the summary names the tasks" grep -q 'Scores of tasks are <a href="#tasks">' "$D/page/index.html"

# cell FILE METHOD NAME: the column NAME of the rows of a method, a line each; settings are the only cells with commas
cell() { sed 's/"[^"]*"/-/' "$t/$1.csv" | awk -F, -v m="$2" -v c="$3" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == c) k = i; for (i = 1; i <= NF; i++) if ($i == "method") at = i } NR > 1 && $at == m { print $k }'; }
is "none once" 1 "$(cell leaderboard none score | wc -l)"
is "points" "h2o h2o hetero none quest quest" "$(sed 1d "$t/leaderboard.csv" | cut -d, -f1 | sort | tr '\n' ' ' | sed 's/ $//')"
is "columns of tasks" "niah_multikey_1,niah_multivalue" "$(head -1 "$t/leaderboard.csv" | cut -d, -f13-)"

check "from many bytes read to few" [ "$(cell leaderboard quest free_read_share)" = "$(cell leaderboard quest free_read_share | sort -rg)" ]

# The rows of the file are, for each point, niah_multikey_1, niah_multivalue and their mean; the first point is none.
column "$D/bits.h5" score | tr ' ' '\n' | awk '{ printf "%.6g\n", 100 * $1 }' >"$D/scores"
is "scores of the uncompressed model" "$(sed -n 1,3p "$D/scores" | tr '\n' ' ')" "$(for c in niah_multikey_1 niah_multivalue score; do cell leaderboard none $c; done | awk '{ printf "%.6g\n", $1 }' | tr '\n' ' ')"
check "scores that differ" [ "$(sort -u "$D/scores" | wc -l)" -gt 3 ]
is "scores of a method" "$(sed -n 4,6p "$D/scores" | tr '\n' ' ')" "$(for c in niah_multikey_1 niah_multivalue score; do cell leaderboard hetero $c; done | awk '{ printf "%.6g\n", $1 }' | tr '\n' ' ')"

# h2o stores less than a quarter in one setting. quest stores everything and reads some.
is "best by bytes stored" 0 "$(sed 's/"[^"]*"/-/' "$t/leaderboard-stored.csv" | awk -F, 'NR > 1 && $4 > $1 || $2 == "quest" || $2 == "none"' | wc -l)"
is "each method once for each size" "" "$(sed 1d "$t/leaderboard-stored.csv" | cut -d, -f1,2 | sort | uniq -d)"
check "quest is among the best by bytes read" test -n "$(cell leaderboard-read quest score)"
check "ordered by score" awk -F, 'NR > 1 && $1 == size && $6 > last + 1e-9 { exit 1 } { size = $1; last = $6 }' "$(sed 's/"[^"]*"/-/' "$t/leaderboard-stored.csv" >"$D/plain.csv"; echo "$D/plain.csv")"

# The numbers say at which time they are taken.
for table in leaderboard leaderboard-stored leaderboard-read; do
  check "times of bytes in $table" sh -c "grep -qF '| stored at the end / 16-bit | mean read per step / 16-bit |' '$t/$table.md' && grep -qF 'Read: bytes of the cache that a step reads, mean over the steps.' '$t/$table.md'"
done
check "times of bytes on the page" grep -q '<figcaption>.*stores at the end of a sequence, and right: the bytes that a step reads of it, mean over the steps;' "$D/page/index.html"

# Prompts that lost their middle, and the modelled time of a link: bytes per step of a sequence over 2 GB/s.
check "a page without cut prompts" grep -q 'No prompt was cut' "$D/page/index.html"
awk 'BEGIN { for (i = 0; i < 3; i++) { printf "{\"index\":%d,\"input\":\"", i; for (k = 0; k < (i ? 90 : 5); k++) printf "a red stone is here. ";
              print "\\nWhere?\",\"outputs\":[\"here\"],\"task\":\"long&<b>\"}" } }' >"$D/long.jsonl"
check "long prompts" "$B/bin/kvdim-tasks" $model --benchmark "$D/long.jsonl" --seq-len 200 --max-new-tokens 4 --method streaming --method quest,budget=0.25 --cache f16 -q -o "$D/long.h5"
check "a page with cut prompts" "$B/bin/kvdim-report" "$D/long.h5" --link-bandwidth 2 --no-plots -o "$D/page2"
check "cut prompts on the page" grep -q 'lost their middle: 2 of 3 items of long&amp;&lt;b&gt;\.' "$D/page2/index.html"
# A step of the uncompressed 16-bit cache reads 3072 bytes for each of its tokens, its own included.
check "one item" "$B/bin/kvdim-tasks" $model --benchmark "$D/long.jsonl" --items 1 --max-new-tokens 4 --method streaming --cache f16 -q -o "$D/one.h5"
check "bytes that a step reads" awk '{ want = 3072 * ($1 + ($2 / 3072 - $1 + 1) / 2); exit !($3 > want - 1 && $3 < want + 1) }' "$(for c in prompt_tokens bytes_stored bytes_per_step_read; do column "$D/one.h5" $c | cut -d' ' -f1; done | tr '\n' ' ' >"$D/read"; echo "$D/read")"
check "a page with a link" "$B/bin/kvdim-report" "$D/one.h5" --link-bandwidth 2 --no-plots -o "$D/page3"
is "modelled time" "$(awk '{ printf "%.4g", $3 / 2e9 * 1e3 }' "$D/read")" "$(t=$D/page3/tables; cell leaderboard none modelled_link_ms | awk '{ printf "%.4g", $1 }')"
check "modelled is called so" grep -q 'modelled ms per step on a link of 2 GB/s' "$D/page2/index.html"
# The page shows the times of kvdim-jct's steps with the scores of the same methods and settings.
check "steps" "$B/bin/kvdim-jct" $model --method none --method h2o,heavy=0.05/0.2,recent=0.1 --method hetero,k=4,v=2 --input-len 40 --output-len 12 --batch 2 --iterations --step-batch 1,2 --repeats 1 -q -o "$D/steps.h5"
check "a page with steps" "$B/bin/kvdim-report" "$D/tokens.h5" "$D/steps.h5" -o "$D/timed"
check "times of bytes beside a time" grep -qF '| stored at the end / 16-bit | mean read per step / 16-bit |' "$D/timed/tables/leaderboard-steps.md"
is "settings with a score and a time" "h2o h2o none" "$(sed 1d "$D/timed/tables/leaderboard-steps.csv" | cut -d, -f3 | sort | tr '\n' ' ' | sed 's/ $//')"
check "a step of two requests" test "$(sed 1d "$D/timed/tables/leaderboard-steps.csv" | grep -c 'batch 2')" = 3 -a -s "$D/timed/figures/leaderboard-steps.svg"
check "fastest first, and on the front" awk -F, 'NR == 2 && !/,yes$/ { exit 1 } NR > 2 && $1 < last { exit 1 } NR > 1 { last = $1 }' "$(sed 's/"[^"]*"/-/; s/^[^,]*,[^,]*,[^,]*,[^,]*,//' "$D/timed/tables/leaderboard-steps.csv" >"$D/plain.csv"; echo "$D/plain.csv")"

# Means over different tasks are not compared: one task of the two, and the same two with fewer items.
check "another task" "$B/bin/kvdim-tasks" $model --ruler niah_multikey_1 --essay data/texts/articles.txt --seq-len 300 --items 8 --max-new-tokens 6 --metric code --cache f16 --method streaming --method tova -q -o "$D/task.h5"
check "fewer items" "$B/bin/kvdim-tasks" $model $tasks --items 2 --method streaming -o "$D/items.h5"
check "other tasks" "$B/bin/kvdim-tasks" $model --ruler niah_multikey_1,niah_single_1 --seq-len 300 --essay data/texts/articles.txt --items 2 --max-new-tokens 6 --cache f16 --method tova -q -o "$D/others.h5"
check "a page of several sets of tasks" "$B/bin/kvdim-report" "$D/tokens.h5" "$D/bits.h5" "$D/task.h5" "$D/items.h5" "$D/others.h5" -o "$D/sets"
t=$D/sets/tables
sets() { for n in "" -2 -3 -4; do sed 1d "$t/$1$n.csv" | cut -d, -f1 | sed 's/ (.*//' | sort | tr '\n' ' '; echo /; done | tr -d '\n'; }
is "a table for each set" "h2o h2o hetero none quest quest /none streaming tova /none streaming /none tova /" "$(sets leaderboard)"
is "a figure for each set" "$(sets leaderboard)" "$(sets leaderboard-points)"
check "drawn" test -s "$D/sets/figures/leaderboard-2.svg" -a -s "$D/sets/figures/leaderboard-4.png"
check "the tasks in a title" grep -q '^\*\*Every method on every task: scores in percent; tasks niah\\\?_multikey\\\?_1 (8 items of [0-9]* tokens)\*\*$' "$t/leaderboard-2.md"
check "columns of its own tasks" test -z "$(head -1 "$t/leaderboard-2.csv" | grep niah_multivalue)"
check "the page says how many" grep -q 'ran 4 different sets of tasks' "$D/sets/index.html"
check "means that name their tasks" test "$(grep -c '^"mean of 2 tasks: niah_multikey_1, niah_single_1",tova' "$t/benchmarks.csv")" = 1 -a "$(grep -c '^"mean of 2 tasks: niah_multikey_1, niah_multivalue",streaming' "$t/benchmarks.csv")" = 1
check "nothing to compare" sh -c "'$B/bin/kvdim-report' '$D/tokens.h5' --compare '$D/others.h5' --no-plots -q -o '$D/x' 2>&1 | grep -q 'no row of the two sets\|differ in'"
t="$D/page/tables"

# The front of a figure: points that no other one beats in bytes and score. The figure names their methods.
if ${PYTHON:-/usr/bin/python3} - "$D/page" >"$log" 2>&1 <<'P'
import csv, re, sys
rows = list(csv.DictReader(open(sys.argv[1] + "/tables/leaderboard-points.csv")))
names = re.findall(r"<text>(.*?)</text>", open(sys.argv[1] + "/figures/leaderboard.svg").read())
for bit, size in ((1, "free_cache_share"), (2, "free_read_share")):
    point = [(float(r[size]), -float(r["score"])) for r in rows]
    front = [p[0] <= 1 and not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in point) for p in point]
    assert [bool(int(r["fronts"]) & bit) for r in rows] == front, (size, point, rows)
    for r, f in zip(rows, front):
        # A name is in the legend, and once in each panel on whose front it is.
        on = sum(any(x["series"] == r["series"] and int(x["fronts"]) & b for x in rows) for b in (1, 2))
        assert names.count(r["series"]) == 1 + on, (r["series"], names)
P
then ok "the front and its names"; else not_ok "the front and its names"; fi

if ${PYTHON:-/usr/bin/python3} -c 'import h5py' 2>/dev/null; then
  # Two models: each has its own figures and tables, in which names of methods are without the model.
  cp "$D/tokens.h5" "$D/model.h5"
  ${PYTHON:-/usr/bin/python3} -c 'import h5py, sys; m = h5py.File(sys.argv[1], "r+")["model"].attrs; m["name"] = "another"; m["hash"] = "xxh3:abcdefabcdef00000000000000000000"' "$D/model.h5"
  check "a page of two models" "$B/bin/kvdim-report" "$D/tokens.h5" "$D/bits.h5" "$D/model.h5" -o "$D/models"
  is "points of each model" "h2o,kvdim-6m hetero,kvdim-6m none,kvdim-6m quest,kvdim-6m / h2o,another none,another quest,another" \
    "$(for n in "" -2; do sed 1d "$D/models/tables/leaderboard-points$n.csv" | cut -d, -f1,8 | sort -u; [ "$n" ] || echo /; done | tr '\n' ' ' | sed 's/ $//')"
  check "the model in titles of tables" grep -q 'Best methods by the bytes that the cache stores; model another' "$D/models/tables/leaderboard-stored-2.md"
  "$B/bin/kvdim-report" "$D/tokens.h5" "$D/bits.h5" "$D/model.h5" "$D/steps.h5" --no-plots -q -o "$D/models-steps" >"$log" 2>&1
  check "the model in titles of folded figures" grep -q '<summary>Mean score over the tasks against bytes; model another</summary>' "$D/models-steps/index.html"
  check "the model in both panels" test "$(grep -o '<text>another</text>' "$D/models/figures/leaderboard-2.svg" | wc -l)" = 2 -a "$(grep -c 'another: ' "$D/models/figures/leaderboard-2.svg")" = 0
else
  echo "skip two models: python3 has no h5py"
fi

# A file of a version without the share that is read: everything else is drawn.
if ${PYTHON:-/usr/bin/python3} -c 'import h5py' 2>/dev/null; then
  cp "$D/tokens.h5" "$D/old.h5"
  ${PYTHON:-/usr/bin/python3} -c 'import h5py, sys; del h5py.File(sys.argv[1], "r+")["rows/free_read_share"]' "$D/old.h5" && "$B/bin/kvdim-report" "$D/old.h5" -o "$D/page" >"$log" 2>&1
  is "a file without bytes read" "5 0" "$(sed 1d "$t/leaderboard.csv" | wc -l) $(sed 1d "$t/leaderboard-read.csv" 2>/dev/null | wc -l)"
else
  echo "skip a file without bytes read: python3 has no h5py"
fi
