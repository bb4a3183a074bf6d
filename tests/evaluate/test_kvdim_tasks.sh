#!/bin/sh
# kvdim-tasks: texts generated, pass keys retrieved and documents classified with the cache of a method, against the uncompressed model and references.
. tests/lib/cases.sh
MODEL=data/models/kvdim-6m
run() { "$B/bin/kvdim-tasks" $MODEL -q --json -o "$D/a.h5" "$@" >"$D/a.json" 2>"$D/err"; }
# refused STATUS NAME TEXT OPTIONS...: that status and one line with the text
refused() {
  want=$1 name=$2 text=$3; shift 3
  "$B/bin/kvdim-tasks" $MODEL -q -o "$D/none.h5" "$@" >"$D/out" 2>"$D/err"; rc=$?
  if [ $rc -eq "$want" ] && grep -q -- "$text" "$D/err" && [ ! -e "$D/none.h5" ]; then ok "$name"
  else not_ok "$name" "status $rc, wanted $want and '$text'" "$(cat "$D/err")"; fi
}
STORIES="--text data/texts/stories.txt --tokens 600 --seq-len 120"

# ---- continuations -----------------------------------------------------------------------------------
if run $STORIES --prompt 50 --generate 20 --method h2o,heavy=0.05,recent=0.05 --method h2o,heavy=0.3,recent=0.3 --method hetero,k=8,v=8; then
  field rouge1 >"$D/r"; field edit_similarity >"$D/e"; field exact >"$D/x"; field agree_prefix >"$D/p"; field reference_rouge1_change >"$D/c"
  paste -d' ' "$D/r" "$D/e" "$D/x" "$D/p" "$D/c" >"$D/rows"
  # The uncompressed model is itself; what keeps more is nearer to it. At least the first token is its own.
  if awk 'NR == 1 { good += $1 == 1 && $2 == 1 && $3 == 1 && $4 == 20 && $5 == 0 }
          NR == 2 { good += $1 < 1 && $2 < 1 && $3 < 1 && $4 >= 1 && $4 < 20; r = $1; p = $4 }
          NR == 3 { good += $1 > r && $4 >= p; r = $1; p = $4 }
          NR == 4 { good += $1 > r && $4 > p } END { exit !(NR == 4 && good == 4) }' "$D/rows"
  then ok "nearer with more kept"; else not_ok "nearer with more kept" "$(cat "$D/rows")"; fi
  cp "$D/a.h5" "$D/first.h5"
else not_ok "nearer with more kept" "$(cat "$D/err")"; fi
field rouge1_lo >"$D/1"; field agree_prefix >>"$D/1"
run $STORIES --prompt 50 --generate 20 --method h2o,heavy=0.05,recent=0.05 --method h2o,heavy=0.3,recent=0.3 --method hetero,k=8,v=8 --threads 1 --batch 71
field rouge1_lo >"$D/2"; field agree_prefix >>"$D/2"
if cmp -s "$D/1" "$D/2"; then ok "threads and batches change nothing"; else not_ok "threads and batches change nothing" "$(paste "$D/1" "$D/2")" "$(cat "$D/err")"; fi

# ---- one SIGTERM ends a group of long texts, which would take half a minute --------------------------------
"$B/bin/kvdim-tasks" $MODEL --text data/texts/stories.txt --prompt 16 --generate 1000 --seq-len 1024 --batch 16384 --method none -q -o "$D/none.h5" >"$D/out" 2>"$D/err" & pid=$!
sleep 1; kill -TERM $pid; (sleep 8; kill -KILL $pid) 2>/dev/null & watch=$!
wait $pid; rc=$?; kill $watch 2>/dev/null
if [ $rc -eq 1 ] && grep -q '^kvdim-tasks: nothing is kept (--resume saves every sequence): .*: interrupted$' "$D/err" && ! ls "$D"/none.h5* >/dev/null 2>&1; then ok "SIGTERM ends a group of texts"
else not_ok "SIGTERM ends a group of texts" "status $rc" "$(cat "$D/err")"; fi

# ---- the raw values are what the columns are made of, and the tokens what the scores are made of -----------
by_python "columns are means of the file's raw values" "$D/first.h5" <<'P'
import sys
import h5py
import numpy as np
f = h5py.File(sys.argv[1])
g, r = f["generated"], f["rows"]
for name in ("rouge1", "edit_similarity", "exact", "agree_prefix", "reference_rouge1"):
    np.testing.assert_allclose(g[name][:].mean(axis=1), r[name][:], rtol=1e-12)
for name in ("reference_rouge1", "reference_edit_similarity"):
    np.testing.assert_allclose((g[name][:] - g["uncompressed_" + name][:]).mean(axis=1), r[name + "_change"][:], atol=1e-12)
token, own = g["token"][:], g["uncompressed"][:]
assert token.shape == (4, own.shape[0], 20) and g.attrs["n_new"] == 20 and (g["prompt"][:] == 50).all()
end = f["model"].attrs.get("eos_id", 1)
assert not (token == end).any(), "a text ended: count to its end here too"
different = token != own
prefix = np.where(different.any(axis=2), different.argmax(axis=2), 20)
np.testing.assert_array_equal(prefix, g["agree_prefix"][:])
np.testing.assert_array_equal(~different.any(axis=2), g["exact"][:])
assert (token[:, :, 0] == own[:, 0]).all(), "the first token comes from the prompt's own rows"
assert f.attrs["free_running_engine"] in (b"CPU, f32, row by row", "CPU, f32, row by row")
P

# ---- the printed table: a heading, a line for every method and score, the bytes of the cache -----------------
if "$B/bin/kvdim-tasks" $MODEL $STORIES --prompt 50 --generate 4 --items 2 --needle 2 --cache f16 --method hetero,k=8,v=8 -o "$D/t.h5" >"$D/t" 2>"$D/err" &&
   head -1 "$D/t" | grep -q '^task  *method  *metric  *items  *score .* B/token  cache   read  settings$' && grep -q '^generate  none  *rouge1  *2  *100.00 .* - .* 3072  1.000  1.000$' "$D/t" &&
   grep -Eq '^needle    hetero  *needle_agree .* [0-9.]+  0\.[5-9][0-9]*  0\.[0-9]+  k=8,v=8$' "$D/t" && grep -q '^B/token: bytes per token that the cache stores' "$D/t"
then ok "the printed table"; else not_ok "the printed table" "$(cat "$D/t" "$D/err")"; fi

# ---- the report's table has what the file has -------------------------------------------------------------------
if "$B/bin/kvdim-report" "$D/first.h5" --no-plots -q -o "$D/rep" >"$D/log" 2>&1 && sed 's/"[^"]*"/settings/g' "$D/rep/tables/free-running.csv" | awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }
     NR > 1 { n++; if ($at["exact"] <= 1 && $at["agree_prefix"] >= 1 && $at["rouge1_lo"] <= $at["rouge1"] + 1e-9) good++ } END { exit !(n == 4 && good == 4) }'
then ok "the report's table"; else not_ok "the report's table" "$(cat "$D/log")" "$(cat "$D/rep/tables/free-running.csv")"; fi

# ---- several seeds -------------------------------------------------------------------------------------------
if run $STORIES --prompt 50 --generate 12 --seeds 3 --seed 5 --method h2o --method keyformer; then
  field purpose >"$D/p"; field n_seeds >"$D/n"; field seed >"$D/s"; field agree_prefix >"$D/l"; field rouge1 >"$D/r"; field agree_prefix_sd >"$D/d"; field rouge1_sd >"$D/e"
  paste -d' ' "$D/p" "$D/n" "$D/s" "$D/l" "$D/r" "$D/d" "$D/e" >"$D/rows"
  if awk 'NR <= 2 { good += $1 == "point" && $2 == 1 && $6 == "null" }
          NR == 3 { good += $1 == "point" && $2 == 3 && $3 == 5; l = $4; r = $5; d = $6; e = $7 }
          NR > 3 { good += $1 == "seed" && $2 == 1 && $3 == NR + 1; sl += $4; sr += $5; ql += $4 * $4; qr += $5 * $5 }
          function near(a, b) { return a - b < 1e-6 && b - a < 1e-6 }
          END { good += near(l, sl / 3) + near(r, sr / 3) + near(e * e, (qr - sr * sr / 3) / 2) + near(d * d, (ql - sl * sl / 3) / 2); exit !(NR == 6 && good == 10 && e > 0) }' "$D/rows"
  then ok "mean and spread over seeds"; else not_ok "mean and spread over seeds" "$(cat "$D/rows")"; fi
else not_ok "mean and spread over seeds" "$(cat "$D/err")"; fi

# ---- needles -----------------------------------------------------------------------------------------------------
if run $STORIES --prompt 20 --needle 3 --items 4 --method h2o,heavy=0.02,recent=0.02 --method hetero,k=8,v=8; then
  field needle_nll >"$D/n"; field needle_agree >"$D/a"; field needle_rank >"$D/r"; field needle_nll_change >"$D/c"
  paste -d' ' "$D/n" "$D/a" "$D/r" "$D/c" >"$D/rows"
  if awk 'NR == 1 { good += $2 == 1 && $4 * $4 < 1e-6; n = $1 } NR == 2 { good += $1 > n + 0.3 && $2 < 0.95 && $3 > 1 && $4 > 0.3 }
          NR == 3 { good += $1 < n + 0.3 && $2 > 0.8 } END { exit !(NR == 3 && good == 3) }' "$D/rows"
  then ok "evicted needles are lost"; else not_ok "evicted needles are lost" "$(cat "$D/rows")"; fi
else not_ok "evicted needles are lost" "$(cat "$D/err")"; fi
if run $STORIES --needle 1 --items 2 --method snapkv,budget=24,window=8; then ok "a prompt of every needle"; else not_ok "a prompt of every needle" "$(cat "$D/err")"; fi

# ---- classes, references ---------------------------------------------------------------------------------------------
cat >"$D/c.csv" <<'C'
review,kind,answer
"The film was a wonderful, moving story with great actors and a happy end.",good,"The film was great."
"A terrible film: dull, badly acted, and far too long. I walked out.",bad,"The film was dull."
"I loved every minute of it and will see it again.",good,"I loved it."
"The worst two hours of my life.",bad,"I hated it."
C
if run --text "$D/c.csv" --field review --prompt 3 --classify kind --ask " This film is" --reference answer --generate 6 --method h2o,heavy=0.1,recent=0.1 --method hetero,k=8,v=8; then
  field class_correct >"$D/k"; field class_agree >"$D/a"; field reference_rouge1 >"$D/r"; field exact >"$D/x"
  paste -d' ' "$D/k" "$D/a" "$D/r" "$D/x" >"$D/rows"
  if awk 'NR == 1 { good += $1 >= 0 && $2 == 1 && $4 == 1 } NR > 1 { good += $1 <= 1 && $2 <= 1 && $3 <= 1 } END { exit !(NR == 3 && good == 3) }' "$D/rows"
  then ok "classes and references"; else not_ok "classes and references" "$(cat "$D/rows")"; fi
else not_ok "classes and references" "$(cat "$D/err")"; fi

# Labels of one token: the question is read through the cache, or no method could change anything.
if run --text "$D/c.csv" --field review --prompt 3 --classify kind --method h2o,heavy=0.1,recent=0.1 && field free_cache_share >"$D/s" &&
   awk 'NR == 2 { exit !($1 > 0.3 && $1 < 1) }' "$D/s"
then ok "the cache is read for a class"; else not_ok "the cache is read for a class" "$(cat "$D/s" "$D/err")"; fi

# ---- --sweep: values of the parameter that --target would search, from most bytes to fewest ------------------------------
if run $STORIES --prompt 50 --generate 20 --method hetero,v=8 --method h2o --sweep 3 && field method >"$D/m" && field rate_value >"$D/b" &&
  paste -d' ' "$D/m" "$D/b" | awk '$1 == last { if ($2 + 0 >= bytes) exit 1; n++ } { last = $1; bytes = $2 + 0 } END { exit !(NR == 7 && n == 4) }'
then ok "a sweep goes from many bytes to few"; else not_ok "a sweep goes from many bytes to few" "$(paste "$D/m" "$D/b")" "$(cat "$D/err")"; fi
refused 2 "a sweep of a fixed width" "method 'fp8' has no key that trades bytes for quality" $STORIES --prompt 50 --generate 20 --method fp8 --sweep 3
# snapkv keeps 32 newest tokens, so that its largest budget holds all 50 of a prompt. Every budget of shadowkv reads all entries of these sequences.
if run $STORIES --prompt 50 --generate 20 --method h2o --method snapkv --sweep 3 && field method >"$D/m" &&
  is "a value without an effect is left out" "none h2o h2o h2o snapkv snapkv" "$(tr '\n' ' ' <"$D/m" | sed 's/ $//')" &&
  grep -q "^kvdim-tasks: warning: snapkv.budget=0.45 is left out of the sweep: method 'snapkv': 'snapkv' dropped and lowered no entry" "$D/err" && [ "$(wc -l <"$D/err")" -eq 1 ]
then ok "it is named with the reason"; else not_ok "it is named with the reason" "$(cat "$D/err")"; fi
if run $STORIES --prompt 50 --generate 20 --method shadowkv --method h2o --sweep 3 && [ "$(field method | tr '\n' ' ')" = "none h2o h2o h2o " ] &&
  grep -q "^kvdim-tasks: warning: no value is left of a method: method 'shadowkv': 'shadowkv' read every entry" "$D/err"
then ok "a method without a value"; else not_ok "a method without a value" "$(field method)" "$(cat "$D/err")"; fi
# Without --sweep: the file has the other methods, and the exit status is 0, also if the same command is given again.
left="$STORIES --prompt 50 --generate 20 --method shadowkv,budget=0.9 --method h2o"
rm -f "$D/a.h5"
if run $left --resume && [ "$(field method | tr '\n' ' ')" = "none h2o " ] &&
  grep -q "^kvdim-tasks: warning: 'shadowkv.budget=0.9[^']*' is left out: method 'shadowkv': 'shadowkv' read every entry" "$D/err" &&
  grep -q "^kvdim-tasks: warning: 1 of 2 methods was left out, see above" "$D/err" && run $left --resume && grep -q '"complete": true' "$D/a.json" &&
  "$B/bin/kvdim-tasks" $MODEL $left --part 1/2 -q -o "$D/part.h5" 2>"$D/err"
then ok "a method without an effect beside another"; else not_ok "a method without an effect beside another" "$(field method)" "$(cat "$D/err")"; fi
# The given budget of snapkv and the first one of its search hold every prompt. shadowkv reads all entries whatever its budget.
if run $STORIES --prompt 50 --generate 20 --method shadowkv,budget=0.9 --method snapkv,budget=0.9 --method h2o --target 0.5 --target-metric rouge1 && [ "$(field method | sort -u | tr '\n' ' ')" = "h2o none snapkv " ] &&
  grep -q "^kvdim-tasks: warning: 'shadowkv' is not searched: method 'shadowkv': no value of shadowkv.budget changes a cached token" "$D/err" &&
  grep -q "^kvdim-tasks: warning: snapkv.budget=0.45 is left out of the search: method 'snapkv': 'snapkv' dropped" "$D/err" && grep -q '"h2o": {' "$D/a.json" && grep -q '"snapkv": {' "$D/a.json"
then ok "a search beyond values without an effect"; else not_ok "a search beyond values without an effect" "$(field method)" "$(cat "$D/err")"; fi
refused 1 "a search of nothing" "--target: no method is left to search: method 'shadowkv': no value of shadowkv.budget" $STORIES --prompt 50 --generate 20 --method shadowkv --target 0.5 --target-metric rouge1
refused 1 "a sweep of which nothing is left" "no value is left of a method: method 'shadowkv': 'shadowkv' read every entry" $STORIES --prompt 50 --generate 20 --method shadowkv --sweep 2
refused 1 "a sweep without its calibration" "no value is left of a method: method 'a2ats' needs activations" $STORIES --prompt 50 --generate 20 --method h2o --method a2ats --sweep 2
refused 2 "a sweep of a given value" "sweep tries values of hetero.k, of which --method hetero,k=4 gives one" $STORIES --prompt 50 --generate 20 --method hetero,k=4 --sweep 3

# ---- --target: the setting that keeps a share of a score ------------------------------------------------------------------
# kept METRIC SHARE: of every search in a.json the value keeps the share, the value that misses does not, and no row is left out.
kept() {
  "$PYTHON" - "$D/a.json" "$1" "$2" <<'P'
import json, sys
f = json.load(open(sys.argv[1]))
metric, share, rows = sys.argv[2], float(sys.argv[3]), f["rows"]
own = metric in ("rouge1", "edit_similarity", "exact", "needle_agree", "class_agree")
last = rows[-1]["label"]  # of a benchmark: the mean over its tasks
none = [r for r in rows if r["method"] == "none" and r["label"] == last][0][metric]
assert none == 1 or not own
for name, x in f["target"].items():
    tried = {r["rate_value"]: r for r in rows if r["purpose"] == "target-search" and r["method"] == name and r["label"] == last}
    assert x["metric"] == metric and x["target"] == share and len(tried) == x["n_points"], x
    assert tried[x["value"]][metric] >= share * none - 1e-12 and tried[x["value_misses"]][metric] < share * none, x
    saving = 1 - tried[x["value"]]["free_cache_share"] * (1 if tried[x["value"]]["cache"] == "f16" else 0.5)
    assert abs(x["saving"] - saving) < 1e-9 and x["saving"] < x["saving_misses"], x
assert f["target"]
P
}
target="$STORIES --prompt 50 --generate 20 --method hetero,v=8 --target 0.9 --target-metric rouge1 --batch 71"
if run $target && kept rouge1 0.9 >"$D/log" 2>&1 && grep -v -E '"(free_seconds|output)": ' "$D/a.json" >"$D/whole"; then ok "a share of ROUGE-1"; else not_ok "a share of ROUGE-1" "$(cat "$D/err" "$D/log")"; fi
if "$B/bin/kvdim-report" "$D/a.h5" --no-plots -q -o "$D/rep" >"$D/log" 2>&1 && grep -q '^stories,hetero,.*,search,rouge1,cannot tell$' "$D/rep/tables/target-tasks.csv"
then ok "the report's table of targets"; else not_ok "the report's table of targets" "$(cat "$D/log" "$D/rep/tables/target-tasks.csv")"; fi
# A stopped search says what is kept, and goes on: with the sequences of whole settings and of a part of one.
"$B/bin/kvdim-tasks" $MODEL $target --resume -q -o "$D/r.h5" >"$D/out" 2>"$D/err" & pid=$!
n=0; while kill -0 $pid 2>/dev/null && [ "$( (wc -l <"$D/r.h5.items") 2>/dev/null || echo 0)" -lt 8 ] && [ $n -lt 3000 ]; do n=$((n + 1)); sleep 0.02; done
kill -TERM $pid 2>/dev/null; wait $pid 2>/dev/null
if grep -Eq "^kvdim-tasks: [0-9]+ sequences are in '$D/r.h5.items', the same command continues: .*: interrupted\$" "$D/err"; then ok "a stopped search says what is kept"; else not_ok "a stopped search says what is kept" "$(cat "$D/err")"; fi
if "$B/bin/kvdim-tasks" $MODEL $target --resume --json -o "$D/r.h5" 2>"$D/err" | grep -v -E '"(free_seconds|output)": ' >"$D/again" && grep -q 'going on after' "$D/err" && cmp -s "$D/whole" "$D/again"
then ok "a search that goes on"; else not_ok "a search that goes on" "$(cat "$D/err")" "$(diff "$D/whole" "$D/again" | head)"; fi
# Items of a benchmark, two tasks of four: the references are the answers of the uncompressed model.
for task in a b; do
  for i in 1 2 3 4; do printf '{"task": "%s", "prompt": "%s", "references": ["x"], "metric": "rouge-1", "max_new_tokens": 16}\n' $task "$(sed -n "$((2 * i + 1))p" data/texts/stories.txt | tr -d '"' | cut -c 1-200) In the $task end,"; done
done >"$D/items.jsonl"
if "$PYTHON" -c 'import h5py' 2>/dev/null; then
  run --benchmark "$D/items.jsonl" --seq-len 120 --method none && "$PYTHON" - "$D/a.h5" "$D/items.jsonl" <<'P'
import json, sys
import h5py
answers = h5py.File(sys.argv[1])["answers/text"].asstr()[:]
items = [json.loads(line) for line in open(sys.argv[2])]
with open(sys.argv[2], "w") as f:
    for x, answer in zip(items, answers):
        f.write(json.dumps({**x, "references": [answer]}) + "\n")
P
  if run --benchmark "$D/items.jsonl" --seq-len 120 --method hetero,v=8 --target 0.9 && kept score 0.9 >"$D/log" 2>&1; then ok "a share of a benchmark's score"; else not_ok "a share of a benchmark's score" "$(cat "$D/err" "$D/log")"; fi
else echo "skip a share of a benchmark's score: no h5py"; fi
if run $STORIES --needle 2 --items 4 --method hetero,v=8 --target 0.9 --target-metric needle_agree && kept needle_agree 0.9 >"$D/log" 2>&1; then ok "a share of needles"; else not_ok "a share of needles" "$(cat "$D/err" "$D/log")"; fi
# The demo model finds no needle of RULER.
refused 1 "nothing to keep a share of" "the uncompressed model has a score of 0 on all 2 items" --ruler niah_single_1 --seq-len 300 --items 2 --max-new-tokens 4 --method h2o --target 0.9
refused 2 "no measure for generated text" "\-\-target requires --target-metric with tasks made from texts" $STORIES --prompt 50 --generate 5 --method h2o --target 0.9
refused 2 "a measure of another task" "\-\-target-metric class_agree requires --classify" $STORIES --prompt 50 --generate 5 --method h2o --target 0.9 --target-metric class_agree
refused 2 "a measure of text for a benchmark" "\-\-target-metric rouge1: items of --benchmark and --ruler have a score" --benchmark "$D/items.jsonl" --method h2o --target 0.9 --target-metric rouge1
refused 2 "a measure that is none" "\-\-target-metric: 'nll' is none of score, rouge1" $STORIES --needle 1 --method h2o --target 0.9 --target-metric nll
refused 2 "a share above 1" "\-\-target: '1.5' is not within 0 .. 1" $STORIES --needle 1 --method h2o --target 1.5 --target-metric needle_agree
refused 2 "a measure without a target" "\-\-target-metric requires --target" $STORIES --needle 1 --method h2o --target-metric needle_agree
refused 2 "a search in parts" "\-\-part cannot be used with --target" $STORIES --needle 1 --method h2o --target 0.9 --target-metric needle_agree --part 1/2
refused 2 "a search of nothing" "\-\-target of nothing" $STORIES --needle 1 --method none --target 0.9 --target-metric needle_agree

# ---- refusals -----------------------------------------------------------------------------------------------------------
refused 1 "an idle eviction" "'h2o' dropped and lowered no entry" $STORIES --prompt 50 --generate 5 --method h2o,heavy=110,recent=9
refused 1 "no sequence is as long" "no sequence has 50 tokens of a prompt and 100 after it: the longest has 120" $STORIES --prompt 50 --generate 100 --method h2o
refused 1 "a label that is no class" "document 2 is labelled 'bad', which is none of --classes good,fair" --text "$D/c.csv" --field review --classify kind --classes good,fair
refused 2 "tokens of documents" "\-\-classify cannot be used with --tokens" --text "$D/c.csv" --field review --classify kind --tokens 100
refused 1 "a field that is not there" "no column 'sort'" --text "$D/c.csv" --field review --classify sort
refused 1 "fields of a plain text" "'data/texts/stories.txt' has no fields, so no 'kind'" --text data/texts/stories.txt --classify kind
refused 1 "one class" "a choice between 1 classes is none" --text "$D/c.csv" --field review --classify kind --items 1
refused 2 "no prompt" "\-\-generate requires a --prompt to continue, or --reference" $STORIES --generate 5
refused 2 "a reference of nothing" "\-\-reference requires --generate" $STORIES --needle 1 --reference x
refused 2 "needles in ids" "\-\-needle requires --text" --ids "$D/ids.csv" --needle 3
refused 2 "classes of nothing" "\-\-classes requires --classify" $STORIES --needle 1 --classes a,b
refused 2 "a question to nobody" "\-\-ask requires --reference or --classify" $STORIES --needle 1 --ask x
refused 2 "no task" "no --generate, --needle, --classify, --benchmark or --ruler given" $STORIES --method h2o

# ---- options that kvdim-eval no longer has ------------------------------------------------------------------------------------
for o in generate reference needle classify classes ask items; do
  "$B/bin/kvdim-eval" $MODEL $STORIES --$o 3 -q -o "$D/none.h5" >"$D/out" 2>"$D/err"
  [ $? -eq 2 ] && [ "$(cat "$D/err")" = "kvdim-eval: kvdim-eval has no option '--$o': kvdim-tasks has it; see kvdim-tasks --help" ] || echo "$o: $(cat "$D/err")"
done >"$D/log"
if [ ! -s "$D/log" ]; then ok "kvdim-eval names kvdim-tasks"; else not_ok "kvdim-eval names kvdim-tasks" "$(cat "$D/log")"; fi
