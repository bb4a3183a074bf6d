#!/bin/sh
# kvdim-tasks --benchmark: files of every published form, cuts, questions in turn, --resume, the report's table, refusals.
. tests/lib/cases.sh
MODEL=data/models/kvdim-6m
run() { "$B/bin/kvdim-tasks" $MODEL -q --json -o "$D/a.h5" "$@" >"$D/a.json" 2>"$D/err"; }
refused() { # STATUS NAME TEXT OPTIONS...: that status and one line with the text
  want=$1 name=$2 text=$3; shift 3
  "$B/bin/kvdim-tasks" $MODEL -q -o "$D/none.h5" "$@" >"$D/out" 2>"$D/err"; rc=$?
  if [ $rc -eq "$want" ] && grep -qF -- "$text" "$D/err" && [ "$(wc -l <"$D/err")" -eq 1 ] && [ ! -e "$D/none.h5" ]; then ok "$name"
  else not_ok "$name" "status $rc, wanted $want and '$text'" "$(cat "$D/err")"; fi
}

# ---- one file of every form; two begin with a byte order mark ------------------------------------------------------------------------
mkdir "$D/niah_single_1"
story="Once upon a time there was a little dog named Max. Max liked to play in the park with his red ball."
long=$(for i in 1 2 3 4 5 6 7 8 9 10 11 12; do printf '%s ' "$story"; done)
printf '{"index": 7, "input": "%s\\nWhat is the name of the dog?", "answer_prefix": " The name is", "outputs": ["Max"], "length": 60}\n' "$story" >"$D/niah_single_1/validation.jsonl"
printf '{"input": "What is the name?", "context": "%s", "answers": ["Max", "the dog Max"], "length": 30, "dataset": "qasper", "language": "en", "all_classes": null, "_id": "a1"}\n{"input": "Type:", "context": "%s", "answers": ["park"], "length": 30, "dataset": "trec", "all_classes": ["park", "ball"], "_id": "a2"}\n' "$story" "$story" >"$D/longbench.jsonl"
printf '\357\273\277[{"_id": "v", "question": " Who? ", "choice_A": "Max", "choice_B": "Ann", "choice_C": "Tim", "choice_D": "Sam", "answer": "A", "context": " %s "}]\n' "$story" >"$D/v2.json"
printf '{"id": 3, "context": "%s", "input": "What is the pass key?", "answer": ["71432"], "options": []}\n' "$story" >"$D/passkey.jsonl"
printf '{"question": "Max has 2 balls and 3 bones. How many things?", "answer": "2 + 3 = <<2+3=5>>5\\n#### 5"}\n' >"$D/gsm8k_test.jsonl"
printf '{"id": "s", "context": "%s", "multi_turns": [{"input": "Who plays?", "answer": "Max"}, {"input": "What colour is the ball?", "answer": "red"}, {"input": "Where?", "answer": ["park"]}]}\n' "$story" >"$D/scbench_kv.jsonl"
printf '\357\273\277{"prompt": "%s Max", "references": [3, "ball"], "metric": "match-part", "max_new_tokens": 4}\n{"context": "%s", "question": " Max played with his red", "references": "ball", "metric": "exact", "max_new_tokens": 3, "stop": "."}\n' "$story" "$long" >"$D/own.jsonl"
FILES="--benchmark $D/niah_single_1/validation.jsonl --benchmark $D/longbench.jsonl --benchmark $D/v2.json --benchmark $D/passkey.jsonl --benchmark $D/gsm8k_test.jsonl --benchmark $D/scbench_kv.jsonl --benchmark $D/own.jsonl"

if run $FILES --max-new-tokens 6 --seq-len 280 --cache f16 --method h2o,heavy=0.1,recent=0.1 --method hetero,k=8,v=8; then
  field label | sed 1d >"$D/l"; field metric >"$D/m"; field n_answers >"$D/a"; field n_cut >"$D/c"; field score_change >"$D/d"; field free_cache_share >"$D/s"
  paste -d' ' "$D/l" "$D/m" "$D/a" "$D/c" >"$D/rows"
  printf '%s\n' "niah_single_1 match-all 1 0" "qasper qa-f1 1 0" "trec classification 1 0" "longbench-v2 choice 1 0" "passkey first-integer 1 0" "gsm8k number 1 0" "scbench_kv match-part 3 0" "own several 2 1" "mean of 8 tasks several 11 1" >"$D/wanted"
  if [ "$(wc -l <"$D/rows")" -eq 27 ] && head -9 "$D/rows" | cmp -s - "$D/wanted" && tail -9 "$D/rows" | cmp -s - "$D/wanted"
  then ok "every form"; else not_ok "every form" "$(head -9 "$D/rows" | paste - "$D/wanted")"; fi
  # The uncompressed model has no change and the share of 16 bits; the methods hold less.
  if paste -d' ' "$D/d" "$D/s" | awk 'NR <= 9 { good += $1 == 0 && $2 > 0.999 && $2 < 1.001 } NR > 9 && NR <= 18 { good += $2 < 0.6 } NR > 18 { good += $2 < 0.7 } END { exit !(NR == 27 && good == 27) }'
  then ok "bytes and changes"; else not_ok "bytes and changes" "$(paste "$D/l" "$D/d" "$D/s")"; fi
  cp "$D/a.h5" "$D/first.h5"
else not_ok "every form" "$(cat "$D/err")"; fi

# The printed table has the columns of bytes of kvdim-eval's, and tells the rows of a grid apart.
if "$B/bin/kvdim-tasks" $MODEL --benchmark "$D/own.jsonl" --seq-len 280 --cache f16 --method hetero,k=8/4,v=8 -o "$D/a.h5" >"$D/t" 2>"$D/err" && head -1 "$D/t" | grep -q ' B/token  cache   read .* settings$' &&
   grep -q ' none .* 3072  1\.000  1\.000 ' "$D/t" && grep -q ' hetero .*  k=8,v=8$' "$D/t" && grep -q ' hetero .*  k=4,v=8$' "$D/t" && grep -q '^B/token: .*; cache: these over an uncompressed 16-bit cache$' "$D/t" && grep -q '^read: ' "$D/t"
then ok "settings and bytes in the printed table"; else not_ok "settings and bytes in the printed table" "$(cat "$D/t" "$D/err")"; fi
if "$B/bin/kvdim-collect" $MODEL --random 512 --moments -q -o "$D/m.h5" 2>"$D/err" && "$B/bin/kvdim-spectrum" "$D/m.h5" -q -o "$D/s.h5" 2>>"$D/err" &&
   "$B/bin/kvdim-tasks" $MODEL --benchmark "$D/own.jsonl" --seq-len 280 --spectrum "$D/s.h5" --method uniform,p=0.5/0.25 --method uniform+kivi,p=0.5 -o "$D/a.h5" >"$D/t" 2>>"$D/err" &&
   "$B/bin/kvdim-tasks" $MODEL --text data/texts/stories.txt --seq-len 64 --prompt 56 --generate 4 --items 1 --spectrum "$D/s.h5" --method uniform,p=0.5 -o "$D/a.h5" >"$D/u" 2>>"$D/err" &&
   grep -q '^numbers are stored with 32 bits, .* --cache f16 ' "$D/t" && grep -q ' uniform .*  p=0\.5$' "$D/t" && grep -q ' uniform .*  p=0\.25$' "$D/t" && grep -q ' uniform+kivi .*  p=0\.5,kivi\.bits=2$' "$D/t" && grep -q ' uniform .*  p=0\.5$' "$D/u" && ! grep -q ' none .*p=' "$D/t" "$D/u" && grep -q '^95 %: intervals, "-" with fewer than 8 sequences$' "$D/u"
then ok "p in the printed table"; else not_ok "p in the printed table" "$(cat "$D/t" "$D/u" "$D/err")"; fi

"$B/bin/kvdim-collect" $MODEL --random 512 --seq-len 16 --moments -q -o "$D/m.h5" && "$B/bin/kvdim-spectrum" "$D/m.h5" -q -o "$D/s.h5" 2>"$D/err" &&
  "$B/bin/kvdim-tasks" $MODEL --benchmark "$D/own.jsonl" --seq-len 280 --spectrum "$D/s.h5" --method uniform,p=0.5 -q -o "$D/a.h5" >"$D/t" 2>>"$D/err"
is "prompts longer than the sequences of the calibration are said" 1 "$(grep -c "'$D/s.h5' was calibrated on sequences of at most 16 tokens, the longest here has [0-9]*: " "$D/err")"

"$B/bin/kvdim-tasks" $MODEL --benchmark "$D/gsm8k_test.jsonl" --benchmark "$D/passkey.jsonl" --max-new-tokens 1 --method none -o "$D/a.h5" >"$D/t" 2>"$D/err" && grep -q "scores 0 on 'gsm8k' and 1 further task: no method can lose anything there$" "$D/err" &&
  ok "a model that answers nothing" || not_ok "a model that answers nothing" "$(cat "$D/t" "$D/err")"

# ---- the file ---------------------------------------------------------------------------------------
by_python "answers in the file" "$D/first.h5" <<'P'
import sys
import h5py
import numpy as np
f = h5py.File(sys.argv[1])
a, r = f["answers"], f["rows"]
assert a["score"].shape == (3 * 11,), a["score"].shape
task = a["task"].asstr()[:]
label, score = r["label"].asstr()[:], r["score"][:]
# Means of the answers of an item, then of the items, then of the tasks.
for row in range(27):
    if row % 9 == 8:
        assert label[row] == "mean of 8 tasks"
        np.testing.assert_allclose(score[row], score[row - 8 : row].mean(), atol=1e-12)
        continue
    mine = (a["point"][:] == row // 9) & (task == label[row])
    items = {}
    for item, x in zip(a["item"].asstr()[:][mine], a["score"][:][mine]):
        items.setdefault(item, []).append(x)
    np.testing.assert_allclose(score[row], np.mean([np.mean(v) for v in items.values()]), atol=1e-12)
assert set(a["item"].asstr()[:][:11]) == {"7", "a1", "a2", "v", "3", "1", "s", "2"}
assert (a["generated"][:] <= 6).all() and (a["generated"][:] >= 1).all()
none = a["point"][:] == 0
np.testing.assert_allclose(a["bytes"][:][none], a["bytes_dense"][:][none])
assert (a["prompt_tokens"][:] + a["steps"][:] <= 280).all() and a["cut"][:].sum() > 0
assert (a["turn"][:11] == [0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0]).all()
assert (a["prompt_s"][:] > 0).all() and (a["steps_s"][:] > 0).all()
P

# ---- the report's table ---------------------------------------------------------------------------------
if "$B/bin/kvdim-report" "$D/first.h5" --no-plots -q -o "$D/rep" >"$D/log" 2>&1 && [ "$(wc -l <"$D/rep/tables/benchmarks.csv")" -eq 28 ] && head -1 "$D/rep/tables/benchmarks.csv" | grep -q 'score_change_lo'
then ok "the report's table"; else not_ok "the report's table" "$(cat "$D/log" "$D/rep/tables/benchmarks.csv")"; fi

# ---- items of RULER made here: the same results from the file of --write-items; no prompt is cut -----------
r="--seq-len 320 --max-new-tokens 4 --items 2 --method h2o,heavy=0.1,recent=0.1"
both() { field label; field n_items; field n_cut; field score; field prompt_tokens; field bytes_stored; }
if run --ruler niah_single_1,niah_multivalue --essay data/texts/stories.txt --write-items "$D/ruler.jsonl" $r && both >"$D/1" && run --benchmark "$D/ruler.jsonl" --seq-len 320 --max-new-tokens 4 --method h2o,heavy=0.1,recent=0.1 && both >"$D/2" &&
   cmp -s "$D/1" "$D/2" && [ "$(field n_cut | sort -u)" = 0 ] && [ "$(wc -l <"$D/ruler.jsonl")" -eq 4 ] && run --ruler niah_single_1 --compress-at context $r && [ "$(field n_cut | sort -u)" = 0 ]
then ok "RULER's items"; else not_ok "RULER's items" "$(cat "$D/err")" "$(paste "$D/1" "$D/2")"; fi
# Methods that decide at the end of a prompt take the prompts of the items, whatever their lengths.
small="budget=0.25,window=8"
if run --ruler niah_single_1 --seq-len 300 --items 2 --max-new-tokens 4 --batch 256 --cache f16 --method snapkv,budget=64,window=8 --method think --method strawman --method xkv --method minicache \
     --method pyramidkv,$small --method adakv,$small --method cake,$small --method expectedattention --method knorm --method keydiff --method kvzip --method importance+hetero,k=8,v=8 &&
   [ "$(field free_cache_share | awk '$1 < 0.9 { n++ } END { print n }')" -eq 13 ]
then ok "every method that decides at a prompt"; else not_ok "every method that decides at a prompt" "$(cat "$D/err"; field free_cache_share)"; fi
# quest stores more than the uncompressed cache and reads a part; h2o reads what it stores. With both cache types.
for type in f16 f32; do
  if run --ruler niah_single_1 --seq-len 300 --items 2 --max-new-tokens 4 --cache $type --method quest,budget=0.25 --method h2o,heavy=0.1,recent=0.1 && field free_cache_share >"$D/s" && field free_read_share >"$D/r" &&
     paste -d' ' "$D/s" "$D/r" | awk -v unit=$([ $type = f32 ] && echo 2 || echo 1) 'function near(x, y) { return x > y - 0.02 * unit && x < y + 0.02 * unit }
       NR == 1 { good += near($1, unit) && near($2, unit) } NR == 2 { good += $1 > unit && $2 < 0.5 * unit && $2 > 0.25 * unit } NR == 3 { good += $1 < 0.3 * unit && near($2, $1) } END { exit !(NR == 3 && good == 3) }'
  then ok "bytes that a step reads, $type"; else not_ok "bytes that a step reads, $type" "$(cat "$D/err"; paste "$D/s" "$D/r")"; fi
done
refused 1 "a prompt that the model cannot read twice" "method 'kvzip' reads every prompt twice: sequence 0 has a prompt of " --ruler niah_single_1 --seq-len 700 --items 1 --max-new-tokens 4 --method kvzip
refused 1 "such a prompt, before others run" "method 'kvzip' reads every prompt twice: sequence 0 has a prompt of " --ruler niah_single_1 --seq-len 700 --items 1 --max-new-tokens 4 --method h2o,kvzip --resume
# In a sweep of many methods the others run, and a warning names the one that has no value left.
"$B/bin/kvdim-tasks" $MODEL -q --json -o "$D/left.h5" --ruler niah_single_1 --seq-len 700 --items 1 --max-new-tokens 4 --method h2o --method kvzip --sweep 2 >"$D/left.json" 2>"$D/err"; rc=$?
if [ $rc -eq 0 ] && [ "$(grep -c 'kvzip.budget=.* is left out of the sweep' "$D/err")" -eq 2 ] && grep -q 'no value is left of a method' "$D/err" && [ -s "$D/left.h5" ]
then ok "such a prompt in a sweep"; else not_ok "such a prompt in a sweep" "status $rc" "$(cat "$D/err")"; fi
if [ -e "$D/none.h5.items" ]; then not_ok "no saved sequences of a refused run" "$(wc -c "$D/none.h5.items")"; else ok "no saved sequences of a refused run"; fi
# A method that cannot run is found before the methods in front of it have run.
early="--ruler niah_single_1 --seq-len 300 --items 2 --max-new-tokens 4 --method h2o --resume"
refused 1 "a method that cannot run, before others run" "method 'importance': entries that 'importance' lowers take no fewer bits" $early --method importance
refused 1 "a parameter, before others run" "method 'snapkv': kernel = 4 is not odd" $early --method snapkv,kernel=4
refused 1 "kept layers, before others run" "method 'kivi': keep_layers=9:9 keeps all 6 layers of the model whole" $early --method kivi,keep_layers=9:9
refused 1 "a code, before others run" "method 'cachegen': 'cachegen' with own=1 stores a table per block" $early --method cachegen,own=1,lanes=1
refused 1 "projections without a file, before others run" "method 'projected': it needs file=PATH" $early --method projected
if [ -e "$D/none.h5.items" ]; then not_ok "nothing ran before the refusal" "$(wc -c "$D/none.h5.items")"; else ok "nothing ran before the refusal"; fi
# Without --output no model runs, and the length may exceed the model's.
if "$B/bin/kvdim-tasks" $MODEL --ruler vt,fwe --seq-len 2048 --items 3 --write-items "$D/long.jsonl" >"$D/out" 2>"$D/err" && [ "$(wc -l <"$D/long.jsonl")" -eq 6 ] && grep -q '"task": "fwe"' "$D/long.jsonl" && [ ! -s "$D/out" ]
then ok "items alone"; else not_ok "items alone" "$(cat "$D/err")"; fi

if "$B/bin/kvdim-tasks" $MODEL --ruler vt --write-items "$D/none.jsonl" --method none >"$D/out" 2>"$D/err"; then not_ok "no run without --output"
elif [ $? -eq 2 ] && grep -qF -- '--method requires --output; --write-items alone runs no model' "$D/err" && [ ! -e "$D/none.jsonl" ]; then ok "no run without --output"; else not_ok "no run without --output" "$(cat "$D/err")"; fi

# ---- compressing before the question, questions apart -------------------------------------------------------
if run --benchmark "$D/scbench_kv.jsonl" --max-new-tokens 4 --method none --compress-at context && field prompt_tokens >"$D/p" && run --benchmark "$D/scbench_kv.jsonl" --max-new-tokens 4 --method none && field prompt_tokens >"$D/q" &&
   run --benchmark "$D/scbench_kv.jsonl" --max-new-tokens 4 --method none --turns apart --compress-at context && field prompt_tokens >"$D/r" && field n_answers >"$D/n" && [ "$(cat "$D/n")" = 3 ] && cmp -s "$D/p" "$D/r" && awk 'NR == FNR { p = $1 } NR > FNR { exit !($1 > p) }' "$D/p" "$D/q"
then ok "before the question"; else not_ok "before the question" "$(cat "$D/p" "$D/q" "$D/r" "$D/n" "$D/err")"; fi

# ---- a run that goes on ---------------------------------------------------------------------------------------
one="$FILES --max-new-tokens 3 --seq-len 280 --method h2o,heavy=0.1,recent=0.1 --batch 1"
run $one && field score >"$D/1" && field bytes_stored >>"$D/1"
"$B/bin/kvdim-tasks" $MODEL $one --resume -q -o "$D/r.h5" >"$D/out" 2>"$D/err" & pid=$!
n=0; while kill -0 $pid 2>/dev/null && [ "$( (wc -l <"$D/r.h5.items") 2>/dev/null || echo 0)" -lt 5 ] && [ $n -lt 3000 ]; do n=$((n + 1)); sleep 0.02; done
kill -9 $pid 2>/dev/null; wait $pid 2>/dev/null
saved=$( (wc -l <"$D/r.h5.items") 2>/dev/null || echo 0)
printf '{"run": "cut' >>"$D/r.h5.items" # a line that a kill cut
cp "$D/r.h5.items" "$D/saved.items"
if "$B/bin/kvdim-tasks" $MODEL $one --resume --json -o "$D/r.h5" >"$D/a.json" 2>"$D/err" && [ "$saved" -ge 5 ] && grep -q 'going on after' "$D/err" && [ ! -e "$D/r.h5.items" ] && { field score; field bytes_stored; } >"$D/2" && cmp -s "$D/1" "$D/2"
then ok "goes on after a kill"; else not_ok "goes on after a kill" "saved $saved" "$(cat "$D/err")" "$(paste "$D/1" "$D/2")"; fi
if "$B/bin/kvdim-tasks" $MODEL $one --resume -o "$D/r.h5" >"$D/out" 2>"$D/err" && grep -q 'is complete: nothing to do' "$D/err"
then ok "nothing to do"; else not_ok "nothing to do" "$(cat "$D/err")"; fi
if "$B/bin/kvdim-tasks" $MODEL $one --seed 5 --resume -q -o "$D/r.h5" >"$D/out" 2>"$D/err"; then not_ok "a complete result of other options"
elif grep -q "nothing to resume: '$D/r.h5' is complete, but not from this run: seed was '1', is now '5'" "$D/err" && [ -e "$D/r.h5" ]; then ok "a complete result of other options"; else not_ok "a complete result of other options" "$(cat "$D/err")"; fi
# A changed token, a file of the user, a piece of a first line.
mv "$D/r.h5" "$D/whole.h5"
sed '3s/"token":\[[0-9]*/"token":[7/' "$D/saved.items" >"$D/r.h5.items"
if "$B/bin/kvdim-tasks" $MODEL $one --resume -q -o "$D/r.h5" >"$D/out" 2>"$D/err"; then not_ok "a changed token among the items"
elif grep -q "r.h5.items', line 3 does not match its checksum; remove the file, or run without --resume" "$D/err" && [ ! -e "$D/r.h5" ]; then ok "a changed token among the items"; else not_ok "a changed token among the items" "$(cat "$D/err")"; fi
printf 'my notes' >"$D/r.h5.items"
if "$B/bin/kvdim-tasks" $MODEL $one --resume -q -o "$D/r.h5" >"$D/out" 2>"$D/err"; then not_ok "a file of the user among the items"
elif grep -q "r.h5.items' is no file of saved sequences" "$D/err" && [ "$(cat "$D/r.h5.items")" = 'my notes' ]; then ok "a file of the user among the items"; else not_ok "a file of the user among the items" "$(cat "$D/err")"; fi
printf '{"ke' >"$D/r.h5.items"
if "$B/bin/kvdim-tasks" $MODEL $one --resume -q -o "$D/r.h5" >"$D/out" 2>"$D/err" && [ ! -e "$D/r.h5.items" ]; then ok "a piece of a first line"; else not_ok "a piece of a first line" "$(cat "$D/err")"; fi
printf '{"key": "program=other\\n"}\n' >"$D/k.h5.items"
if "$B/bin/kvdim-tasks" $MODEL $one --resume -q -o "$D/k.h5" >"$D/out" 2>"$D/err"; then not_ok "another run's items"
elif grep -q "k.h5.items' cannot be resumed: program was 'other', is now .*; give the options of that run, --threads too, or remove the file$" "$D/err"; then ok "another run's items"; else not_ok "another run's items" "$(cat "$D/err")"; fi

if "$B/bin/kvdim-tasks" $MODEL --benchmark "$D/own.jsonl" --seq-len 280 --max-new-tokens 1 --method none -q -o "$D/k.h5" >"$D/out" 2>"$D/err" &&
   grep -qF "warning: '$D/k.h5.items' has results of an interrupted run; this run does not use them" "$D/err" && [ -s "$D/k.h5.items" ]
then ok "items of an interrupted run beside a run without --resume"; else not_ok "items of an interrupted run beside a run without --resume" "$(cat "$D/err")"; fi

# ---- parts, as on several machines: the merged table is that of one run but for times --------------------------
untimed() { grep -v -E '"(prompt_s|step_s|free_seconds|output)": '; }
two="--batch 300 --method hetero,k=8,v=8"
part() { "$B/bin/kvdim-tasks" $MODEL $one $two --part "$1" -o "$D/p.h5" >"$D/out" 2>"$D/err"; }
"$B/bin/kvdim-tasks" $MODEL $one $two -q --json -o "$D/w.h5" 2>"$D/err" | untimed >"$D/1"
if part 1/3 && grep -qF "part 1 of 3 is complete in '$D/p.h5.items.1-of-3'" "$D/err" && part 3/3 && [ ! -e "$D/p.h5" ] && [ ! -e "$D/p.h5.items" ] && lines=$(wc -l <"$D/p.h5.items.3-of-3") && [ "$lines" -gt 4 ]
then ok "parts"; else not_ok "parts" "$(cat "$D/err")" "$(ls "$D")"; fi
# A part that was killed goes on: its file loses two lines.
head -n $((lines - 2)) "$D/p.h5.items.3-of-3" >"$D/short" && cp "$D/p.h5.items.3-of-3" "$D/long" && cp "$D/short" "$D/p.h5.items.3-of-3"
if part 3/3 && grep -q 'going on after' "$D/err" && [ "$(wc -l <"$D/p.h5.items.3-of-3")" -eq "$lines" ]; then ok "a part that goes on"; else not_ok "a part that goes on" "$(cat "$D/err")"; fi
if part 2/3 && "$B/bin/kvdim-tasks" $MODEL $one $two --resume --json -o "$D/p.h5" 2>"$D/err" | untimed >"$D/2" && grep -q "and 3 files of parts" "$D/err" && [ "$(wc -l <"$D/1")" -gt 500 ] && cmp -s "$D/1" "$D/2" && ! ls "$D" | grep -q 'p.h5.'
then ok "the table of all parts"; else not_ok "the table of all parts" "$(cat "$D/err")" "$(diff "$D/1" "$D/2" | head)" "$(ls "$D")"; fi
# An array of Slurm jobs makes the same table: two jobs and one job after them.
rm -f "$D/p.h5"
slurm() { env SLURM_CPUS_PER_TASK=2 KVDIM_TASKS="$B/bin/kvdim-tasks" "$@" sh experiments/slurm/tasks.sbatch $MODEL -o "$D/p.h5" $one $two $more; }
more=
if slurm SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_MAX=2 2>"$D/err" && slurm SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_TASK_MAX=2 2>"$D/err" && [ -e "$D/p.h5.items.2-of-2" ] && more=--json && slurm 2>"$D/err" | untimed >"$D/2" && cmp -s "$D/1" "$D/2" && ! ls "$D" | grep -q 'p.h5.'
then ok "an array of jobs"; else not_ok "an array of jobs" "$(cat "$D/err")" "$(ls "$D")"; fi
# Without one of the parts its sequences are generated; a part of another run is refused.
rm -f "$D/p.h5"; part 1/2
if "$B/bin/kvdim-tasks" $MODEL $one $two --resume --json -o "$D/p.h5" 2>"$D/err" | untimed >"$D/2" && grep -q "and 1 file of parts" "$D/err" && cmp -s "$D/1" "$D/2"
then ok "the table of some parts"; else not_ok "the table of some parts" "$(cat "$D/err")" "$(diff "$D/1" "$D/2" | head)"; fi
rm -f "$D/p.h5"; part 1/2
if "$B/bin/kvdim-tasks" $MODEL $one $two --seed 5 --resume -q -o "$D/p.h5" >"$D/out" 2>"$D/err"; then not_ok "another run's part"
elif grep -q "p.h5.items.1-of-2' cannot be resumed: seed was '1', is now '5'" "$D/err"; then ok "another run's part"; else not_ok "another run's part" "$(cat "$D/err")"; fi
rm -f "$D"/p.h5*
refused 2 "no such part" "--part 3/2: expected I/N with 1 <= I <= N <= 9999" --benchmark "$D/own.jsonl" --part 3/2 --method none
refused 2 "a part that resumes" "--part cannot be used with --resume" --benchmark "$D/own.jsonl" --part 1/2 --resume --method none
refused 1 "GPUs on the CPU" "--gpus 2: this runs on the CPU" --benchmark "$D/own.jsonl" --device cpu --gpus 2 --method none

# ---- chat templates --------------------------------------------------------------------------------------------
mkdir "$D/chat"
for f in config.json model.safetensors; do ln -s "$PWD/$MODEL/$f" "$D/chat/$f"; done
sed 's/<|eos|>/<|im_end|>/' $MODEL/tokenizer.json >"$D/chat/tokenizer.json"
cat >"$D/chat/tokenizer_config.json" <<'J'
{"chat_template": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}", "eos_token": "<|im_end|>"}
J
turns="--benchmark $D/scbench_kv.jsonl --max-new-tokens 4 --method h2o,heavy=0.1,recent=0.1"
if "$B/bin/kvdim-tasks" "$D/chat" $turns --chat auto -o "$D/auto.h5" >"$D/out" 2>"$D/err" && grep -qF "tokenizer_config.json' has the chat form chatml" "$D/err" &&
  "$B/bin/kvdim-tasks" "$D/chat" $turns --chat chatml -q --json -o "$D/named.h5" >"$D/named.json" 2>"$D/err" && "$B/bin/kvdim-tasks" "$D/chat" $turns -q --json -o "$D/plain.h5" >"$D/plain.json" 2>"$D/err"
then ok "a chat form"; else not_ok "a chat form" "$(cat "$D/err")"; fi
by_python "a chat form in the file" "$D/auto.h5" "$D/named.h5" "$D/plain.h5" <<'P'
import sys
import h5py
files = [h5py.File(path) for path in sys.argv[1:]]
texts = [list(f["answers/text"].asstr()[:]) for f in files]
chat = [f["parameters"].attrs["chat"].decode() for f in files]
assert chat == ["chatml", "chatml", "none"], chat
assert texts[0] == texts[1], texts
assert texts[0] != texts[2], texts
P
# The template of DeepSeek-R1 removes reasoning from earlier answers, which the cache holds.
sed -i 's/<|im_end|>/<｜end▁of▁sentence｜>/; s/<|bos|>/<｜begin▁of▁sentence｜>/' "$D/chat/tokenizer.json"
if "$B/bin/kvdim-tasks" "$D/chat" $turns --chat deepseek-r1 -q -o "$D/r1.h5" 2>"$D/err"; then not_ok "a form of one turn" "accepted"
elif grep -qF "'deepseek-r1' removes reasoning from earlier answers, which the cache holds: use --turns apart" "$D/err" &&
  "$B/bin/kvdim-tasks" "$D/chat" $turns --turns apart --chat deepseek-r1 -q -o "$D/r1.h5" 2>"$D/err"
then ok "a form of one turn"; else not_ok "a form of one turn" "$(cat "$D/err")"; fi
sed 's/<|eos|>/<|im_end|>/' $MODEL/tokenizer.json >"$D/chat/tokenizer.json"
# Items of --ruler leave room for the text of the template, so that no prompt loses its middle.
if "$B/bin/kvdim-tasks" "$D/chat" --ruler niah_single_1 --items 2 --seq-len 400 --max-new-tokens 8 --chat auto --method h2o,heavy=0.1,recent=0.1 -q --json -o "$D/ruler.h5" >"$D/a.json" 2>"$D/err" && [ "$(field n_cut | sort -u)" = 0 ]
then ok "a chat form around --ruler"; else not_ok "a chat form around --ruler" "$(cat "$D/err")" "$(field n_cut)"; fi
refused 1 "no chat template" "kvdim-6m/tokenizer_config.json' has no chat_template: choose a form with --chat NAME, or --chat none" --benchmark "$D/gsm8k_test.jsonl" --chat auto --method none
refused 1 "another model's chat form" "--chat chatml: the tokenizer has no token '<|im_end|>' of this form" --benchmark "$D/gsm8k_test.jsonl" --chat chatml --method none
refused 2 "a chat form without special tokens" "--no-special: --chat chatml writes the special tokens of its template" --benchmark "$D/gsm8k_test.jsonl" --chat chatml --no-special --method none

# ---- refusals ----------------------------------------------------------------------------------------------------
printf '\n{"text": "a", "label": 3}\n' >"$D/odd.jsonl"
refused 1 "an unknown form" "odd.jsonl', line 2: the fields are those of no benchmark known here: text, label; docs/tasks.md lists the forms" --benchmark "$D/odd.jsonl" --method none
printf '{"prompt": "a", "references": ["b"]}\n' >"$D/nometric.jsonl"
refused 1 "no metric" "nometric.jsonl', line 1: field 'metric' is missing: add it, or give --metric" --benchmark "$D/nometric.jsonl" --method none
printf '{"prompt": "a", "references": ["b"], "metric": "bleu"}\n' >"$D/bleu.jsonl"
refused 1 "an unknown metric" "bleu.jsonl', line 1: metric 'bleu' is unknown" --benchmark "$D/bleu.jsonl" --method none
printf '{"prompt": "a", "references": ["b"], "metric": "exact", "MaxNewToken": 4}\n' >"$D/spelt.jsonl"
refused 1 "a misspelt field" "spelt.jsonl', line 1: field 'MaxNewToken' is not read: it is spelt 'max_new_tokens'" --benchmark "$D/spelt.jsonl" --method none
printf '{"input": "a b", "outputs": ["b"], "metric": "bleu"}\n' >"$D/unread.jsonl"
refused 1 "a metric that the form does not read" "unread.jsonl', line 1: field 'metric' is not read in the form ruler: remove it, or give --metric NAME" --benchmark "$D/unread.jsonl" --method none
printf '{"question": "a", "answer": "#### 1", "max_new_tokens": 4}\n' >"$D/unread.jsonl"
refused 1 "a length that the form does not read" "field 'max_new_tokens' is not read in the form gsm8k" --benchmark "$D/unread.jsonl" --method none
printf '{"prompt": "a", "references": ["b"], "metric": "exact", "task": "a\\nb"}\n' >"$D/task.jsonl"
refused 1 "a task of two lines" "task.jsonl', line 1: byte 2 of the name of the task is the control character 10" --benchmark "$D/task.jsonl" --method none
printf '{"prompt": "a", "references": ["b"], "metric": "exact", "task": ""}\n' >"$D/task.jsonl"
refused 1 "a task without a name" "task.jsonl', line 1: field 'task' is empty" --benchmark "$D/task.jsonl" --method none
printf '{"prompt": "a", "references": [["b"]], "metric": "exact"}\n' >"$D/nested.jsonl"
refused 1 "nested references" "nested.jsonl', line 1: field 'references' holds a value that is no string and no number" --benchmark "$D/nested.jsonl" --method none
printf '{"prompt": "a", "references": ["b"], "references": ["c"], "metric": "exact"}\n' >"$D/twice.jsonl"
refused 1 "a field that is given twice" "twice.jsonl', line 1: duplicate object key near '\"references\"'" --benchmark "$D/twice.jsonl" --method none
printf '[{"prompt": "a", "references": ["b"], "metric": "exact", "metric": "code"}]' >"$D/twice.json"
refused 1 "a field that is given twice in a list" "twice.json', line 1: duplicate object key near '\"metric\"'" --benchmark "$D/twice.json" --method none
printf '{"prompt": "a", "references": ["b"], "metric": "exact", "stop": 3}\n' >"$D/stop.jsonl"
refused 1 "a stop text that is a number" "stop.jsonl', line 1: field 'stop' is no string" --benchmark "$D/stop.jsonl" --method none
printf '{"input": "a", "outputs": ["b"], "answer_prefix": ["c"]}\n' >"$D/prefix.jsonl"
refused 1 "an answer prefix that is a list" "prefix.jsonl', line 1: field 'answer_prefix' is no string" --benchmark "$D/prefix.jsonl" --method none
printf '{"input": "a"}\n' >"$D/nooutputs.jsonl"
refused 1 "a missing field" "nooutputs.jsonl', line 1: field 'outputs' is missing" --benchmark "$D/nooutputs.jsonl" --form ruler --method none
printf '{"prompt": "a", "references": ["b"], "metric": "exact", "max_new_tokens": 1048577}\n' >"$D/most.jsonl"
refused 1 "an answer of too many tokens" "most.jsonl', line 1: field 'max_new_tokens' is no whole number of 1 to 1048576" --benchmark "$D/most.jsonl" --method none
printf '{"input": "a", "outputs": [""]}\n' >"$D/nothing.jsonl"
refused 1 "an empty reference" "nothing.jsonl', line 1: metric match-all needs a reference that is not empty" --benchmark "$D/nothing.jsonl" --method none
printf '{"prompt": "a", "references": [], "metric": "exact"}\n' >"$D/empty.jsonl"
refused 1 "no references" "empty.jsonl', line 1: no reference" --benchmark "$D/empty.jsonl" --method none
printf '{"prompt": "a"\n' >"$D/cut.jsonl"
refused 1 "no JSON" "cut.jsonl', line 1: " --benchmark "$D/cut.jsonl" --method none
printf '{"input": "q", "context": "c", "answers": ["a"], "dataset": "dureader", "all_classes": null}\n' >"$D/zh.jsonl"
sed 's/dureader/mine/' "$D/zh.jsonl" >"$D/mine.jsonl"
refused 1 "a dataset that LongBench has not" "dataset 'mine' is not supported: give items of your own in the form general" --benchmark "$D/mine.jsonl" --method none
refused 1 "a Chinese dataset" "zh.jsonl', line 1: LongBench's dataset 'dureader' is not supported" --benchmark "$D/zh.jsonl" --method none
printf '{"question": "q", "answer": "5"}\n' >"$D/g.jsonl"
refused 1 "an answer without its mark" "g.jsonl', line 1: metric number needs '#### N' at the end of the reference" --benchmark "$D/g.jsonl" --method none
refused 1 "examples for another benchmark" "own.jsonl', line 1: --shots 8 is for GSM8K, and this item has the form general" --benchmark "$D/own.jsonl" --shots 8 --method none
refused 2 "too many examples" "--shots" --benchmark "$D/gsm8k_test.jsonl" --shots 9 --method none
refused 1 "a form by force" "gsm8k_test.jsonl', line 1: field 'input' is missing, or is no string" --benchmark "$D/gsm8k_test.jsonl" --form ruler --method none
refused 1 "no question apart" "task own, item 1: --compress-at context: the item has no question apart from its context" --benchmark "$D/own.jsonl" --compress-at context --method none
# A window of 40 tokens in every layer: the uncompressed cache holds 40 tokens of 3072 bytes, in its own bytes and in those that it is compared with.
mkdir "$D/windowed"
cp data/models/kvdim-6m/* "$D/windowed/"
sed 's/"LlamaForCausalLM"/"MistralForCausalLM"/; s/"model_type": "llama"/"model_type": "mistral", "sliding_window": 40/' data/models/kvdim-6m/config.json >"$D/windowed/config.json"
MODEL=$D/windowed
if run --benchmark "$D/longbench.jsonl" --items 1 --max-new-tokens 4 --seq-len 280 --cache f16 --method hetero,k=8,v=8; then
  is "bytes of windows" "122880.0 1.0 1.0" "$(field bytes_stored | head -1) $(field free_cache_share | head -1) $(field free_read_share | head -1)"
else not_ok "bytes of windows" "$(cat "$D/err")"; fi
MODEL=data/models/kvdim-6m
refused 1 "a question that does not fit" "task scbench_kv, item s: the prompt has " --benchmark "$D/scbench_kv.jsonl" --max-new-tokens 6 --seq-len 40 --compress-at context --method none
refused 2 "texts too" "--benchmark cannot be used with --text" --benchmark "$D/own.jsonl" --text data/texts/stories.txt --method none
refused 2 "a metric of nothing" "--metric requires --benchmark" --text data/texts/stories.txt --needle 1 --metric exact
refused 2 "no essay" "--ruler niah_single_2 hides needles in a text: give it with --essay" --ruler vt,niah_single_2 --method none
refused 2 "an essay for nothing" "--essay: no task of --ruler hides needles in a text" --ruler vt --essay data/texts/stories.txt --method none
cp data/texts/stories.txt "$D/essay.txt"
refused 1 "items over the essay" "essay.txt': it is the input '" --ruler niah_single_2 --essay "$D/essay.txt" --seq-len 512 --items 1 --write-items "$D/essay.txt" --method none
cmp -s data/texts/stories.txt "$D/essay.txt" && ok "the essay is whole" || not_ok "the essay is whole" "$(ls -l "$D/essay.txt")"
refused 1 "items in the model's folder" "it would be part of the input folder 'data/models/kvdim-6m'" --ruler niah_single_1 --seq-len 512 --items 1 --write-items data/models/kvdim-6m/items.jsonl --method none
[ ! -e data/models/kvdim-6m/items.jsonl ] && ok "no file in the model's folder" || not_ok "no file in the model's folder"
refused 2 "an unknown task" "--ruler: 'qa_1' is none of niah_single_1, " --ruler qa_1 --method none
refused 2 "two outputs in one" "name the same file" --ruler vt --write-items "$D/none.h5" --method none
refused 1 "longer than the model" "--seq-len 2048: the model was made for at most 1024 positions" --ruler vt --seq-len 2048 --method none
refused 1 "too short for RULER" "--ruler vt: the shortest prompt has " --ruler vt --seq-len 512 --method none
refused 2 "a stop that is none" "--stop: 'a\\b' has a backslash before neither n nor a backslash" --benchmark "$D/own.jsonl" --stop 'a\b' --method none
