#!/bin/sh
# scripts/claims.py: results/ledger.md and the tables of README and docs are what the ledger of the committed files gives; a number that differs is
# found; every README under results names a command; tables that documents take from reports are theirs.
. tests/lib/cases.sh

# name text command...: fails with status 1 and says the text
refused() {
  name=$1 text=$2; shift 2
  "$@" >"$D/log" 2>&1
  if [ $? -eq 1 ] && grep -qF -- "$text" "$D/log"; then ok "$name"; else not_ok "$name"; fi
}

files=$(make -s --no-print-directory claim-files)
check "the ledger of the committed files" "$B/bin/kvdim-report" $files --no-plots -o "$D/claims"
grep -q '^104 figures and tables of the papers: ' "$D/log" && ok "all figures and tables are counted" || not_ok "all figures and tables are counted"
ledger=$D/claims/tables/ledger.csv
claims() { "$PYTHON" scripts/claims.py "$@"; }
check "documents agree with the ledger" claims "$ledger" results/ledger.md README.md docs/*.md

# The reader accepts every committed file, rounding of measured times included.
unread=
for d in $(find results -name '*.h5' -not -path '*/report/*' -printf '%h\n' | sort -u); do
  "$B/bin/kvdim-report" "$d" --no-plots -q -o "$D/page" 2>"$log" || unread="$unread $d: $(head -n 1 "$log")"
done
is "every folder of results makes its page" "" "$unread"

# A number that was changed, in a table, in a paragraph, and in the whole ledger.
mkdir "$D/docs"
sed '/(ZACK Table 4)/s/(\([0-9]*\) values)/(\19 values)/' docs/results.md >"$D/docs/table.md"
refused "a changed number of a table" "$D/docs/table.md:" claims "$ledger" results/ledger.md "$D/docs/table.md"
sed 's/1\.286 times |/1.386 times |/' docs/results.md >"$D/docs/words.md"
refused "a changed number of a paragraph" "the paragraph does not say '1.286 times'" claims "$ledger" results/ledger.md "$D/docs/words.md"
sed 's/has 1\.286 times/has 1.386 times/; s/1\.286 times |/1.386 times |/' docs/results.md >"$D/docs/both.md"
refused "a number that the ledger does not have" "'1.386 times' is not what the ledger says" claims "$ledger" results/ledger.md "$D/docs/both.md"
sed '/^| ZACK Table 4 /s/(\([0-9]*\) values)/(\19 values)/' results/ledger.md >"$D/ledger.md"
refused "a changed number of the whole ledger" "$D/ledger.md:" claims "$ledger" "$D/ledger.md" docs/results.md
printf '<!-- ledger: ZACK Table 99 -->\n<!-- /ledger -->\n' >"$D/docs/unknown.md"
refused "a claim that does not exist" "the ledger has no claim 'ZACK Table 99'" claims "$ledger" results/ledger.md "$D/docs/unknown.md"
cp "$D/docs/table.md" "$D/docs/update.md" && cp results/ledger.md "$D/whole.md"
check "--update writes tables anew" claims "$ledger" "$D/whole.md" "$D/docs/update.md" --update
check "as they were" cmp docs/results.md "$D/docs/update.md"

for f in $(find results -name README.md -not -path '*/report/*' | sort); do
  grep -qE 'make -C experiments/|kvdim-[a-z]+ |make [a-z]+|python3 |sh (scripts|experiments)/|scripts/[a-z_]+\.sh' "$f" || echo "$f names no command"
done >"$D/log"
[ -s "$D/log" ] && not_ok "every README of results names a command" || ok "every README of results names a command"

# The figure of README is the one that the committed results give.
if ! "$PYTHON" -c 'import h5py' 2>/dev/null; then
  echo "skip the figure of README: $PYTHON has no h5py"
elif "$PYTHON" scripts/readme_figure.py "$D/now.svg" results/kvdim-25m/methods-sweep/*-on-wikipedia-t4096.h5 2>"$D/log" &&
  cmp "$D/now.svg" docs/figures/quality-by-bytes.svg >>"$D/log" 2>&1
then ok "the figure of README shows the committed results"
else not_ok "the figure of README shows the committed results" "run make readme-figure" "$(cat "$D/log")"; fi

# Rows of documents between `<!-- leaderboard: FOLDER -->` and `<!-- /leaderboard -->`, or `<!-- report: ARGUMENT... -->` and `<!-- /report -->`,
# are rows of the tables that kvdim-report makes from the folder, or with the arguments.
# Rows between `<!-- targets: FOLDER -->` and `<!-- /targets -->` are seven columns of the table target-tasks.
# Rows between `<!-- kernels COLUMN,...: FOLDER NAME... -->` and `<!-- /kernels -->` are these columns of the table kernels that
# kvdim-report makes from FOLDER/NAME.h5 ....

# agrees FILE: every row below a marker is one of its report's, and there are some
agrees() {
  sed -n 's/^<!-- \(leaderboard\|report\): \(.*\) -->$/\2/p' "$1" | sort -u >"$D/arguments"
  while read -r arguments; do
    page=$D/page-$(echo "$arguments" | md5sum | cut -c1-8)
    [ -d "$page" ] || "$B/bin/kvdim-report" $arguments --no-plots -q -o "$page" || return 1
    cat "$page"/tables/*.md >"$D/tables"
    # The first row of a table is its heading.
    awk -v marked=": $arguments -->" '/^<!-- (leaderboard|report): /{ on = index($0, marked); n = 0; next } /^<!-- \//{ on = 0 }
      on && /^\| [^-]/ && n++' "$1" >"$D/rows"
    [ -s "$D/rows" ] && ! grep -vxF -f "$D/tables" "$D/rows" || return 1
  done <"$D/arguments"
}
# targets FILE: every marked row is one of the table of targets, and every row of that table is there
targets() {
  folder=$(sed -n 's/^<!-- targets: \(.*\) -->$/\1/p' "$1")
  "$B/bin/kvdim-report" "$folder" --no-plots -q -o "$D/page" || return 1
  awk -F'|' '/^\| / && !/^\| (evaluated on|---)/ { print "|" $2 "|" $3 "|" $6 "|" $7 "|" $12 "|" $17 "|" $18 "|" }' "$D/page/tables/target-tasks.md" | sort >"$D/tables"
  awk '/^<!-- targets: /{ on = 1; next } /^<!-- \/targets -->/{ on = 0 } on && /^\| / && !/^\| (evaluated on|---)/' "$1" | sort >"$D/rows"
  [ -s "$D/rows" ] && diff "$D/tables" "$D/rows"
}
for f in $(grep -l '^<!-- targets: ' results/*/README.md); do
  check "the targets of $f" targets "$f"
  sed 's/ | 0\.\([0-9]\)/ | 1.\1/' "$f" >"$D/changed.md"
  if targets "$D/changed.md" >"$log" 2>&1; then not_ok "a changed target in $f"; else ok "a changed target in $f"; fi
done
for f in $(grep -lE '^<!-- (leaderboard|report): ' docs/*.md $(find results -name README.md)); do
  check "the tables of $f" agrees "$f"
  sed '/^| /s/\([0-9]\)\.\([0-9]\)/\1.9\2/' "$f" >"$D/changed.md"
  if cmp -s "$f" "$D/changed.md" || agrees "$D/changed.md" >"$log" 2>&1; then not_ok "a changed number in $f"; else ok "a changed number in $f"; fi
done

# kernels FILE: every marked row has the columns that its marker names of a row of the table kernels, and there are some
kernels() {
  sed -n 's/^<!-- kernels \([0-9,]*\): \(.*\) -->$/\1 \2/p' "$1" | sort -u >"$D/arguments"
  while read -r columns folder names; do
    files=$(for name in $names; do echo "$folder/$name.h5"; done)
    page=$D/page-$(echo "$files" | md5sum | cut -c1-8)
    [ -d "$page" ] || "$B/bin/kvdim-report" $files --no-plots -q -o "$page" || return 1
    awk -F ' [|] ' -v c="$columns" 'BEGIN { n = split(c, k, ",") }
      /^[|] /{ sub(/^[|] /, ""); sub(/ [|]$/, ""); printf "|"; for (i = 1; i <= n; i++) printf " %s |", $k[i]; print "" }' "$page/tables/kernels.md" >"$D/tables"
    awk -v marked="<!-- kernels $columns: $folder $names -->" '/^<!-- kernels /{ on = $0 == marked; next } /^<!-- \/kernels/{ on = 0 } on && /^\| [^-]/' "$1" >"$D/rows"
    [ -s "$D/rows" ] && ! grep -vxF -f "$D/tables" "$D/rows" || return 1
  done <"$D/arguments"
}
for f in $(grep -l '^<!-- kernels ' docs/*.md); do
  check "the times of kernels in $f" kernels "$f"
  sed '/^| decode /s/ \([0-9]*\)\.\([0-9]\)/ \1.9\2/' "$f" >"$D/changed.md"
  if kernels "$D/changed.md" >"$log" 2>&1; then not_ok "a changed time in $f"; else ok "a changed time in $f"; fi
done
