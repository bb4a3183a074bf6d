#!/bin/sh
# Runs the commands of documents as they are written: docs/tutorial.md, and the first workflow of README, from a checkpoint to
# the page, on a model and texts that are not those of the demo.
. tests/lib/cases.sh
B=$(cd "$B" && pwd)
mkdir "$D/tutorial" "$D/readme"
# run FOLDER: the commands of FOLDER/commands, in that folder
run() { (cd "$1" && PATH="$B/bin:$PATH" sh -e commands); }

T=$D/tutorial
ln -s "$PWD/data" "$T/data"
grep '^kvdim-' docs/tutorial.md >"$T/commands"
is "the tutorial has ten commands" 10 "$(wc -l <"$T/commands")"
check "they run in order" run "$T"
check "they leave a page" test -s "$T/report/index.html"

# The first code block that collects and reports.
T=$D/readme
awk '/^```/ { if (inside && block ~ /\nkvdim-collect / && block ~ /\nkvdim-report /) { printf "%s", block; exit }
    inside = !inside; block = "\n"; next }
  { block = block $0 "\n" }' README.md >"$T/commands"
check "README has a workflow" test "$(grep -c '^kvdim-' "$T/commands")" -ge 5
"$B/tests/tool_checkpoint" --layers 2 --d-model 32 --heads 2 --kv-heads 1 "$T/MODEL" || exit 1
cat docs/*.md >"$T/articles.txt"
grep '^[A-Za-z]' CONTRIBUTING.md | sed 's/[\\"]/\\&/g; s/.*/{"text": "&"}/' >"$T/reviews.jsonl"
check "it runs to its end" run "$T"
check "it leaves a page" test -s "$T/report/index.html" -a -s "$T/report/tables/accuracy.csv"
if command -v gnuplot >/dev/null 2>&1; then
  grep -o 'Not drawn[^<]*' "$T/report/index.html" >"$D/undrawn"
  check "with every figure" test ! -s "$D/undrawn" -a -s "$T/report/figures/accuracy-1.svg"
else
  echo "skip figures: gnuplot is not installed"
fi
