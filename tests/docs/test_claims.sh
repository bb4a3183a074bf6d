#!/bin/sh
# scripts/claims.py: results/ledger.md and the tables of README and docs are what the ledger of the committed files gives; a number that differs is
# found; every README under results names a command.
. tests/lib/cases.sh

# name text command...: fails with status 1 and says the text
refused() {
  name=$1 text=$2; shift 2
  "$@" >"$D/log" 2>&1
  if [ $? -eq 1 ] && grep -qF -- "$text" "$D/log"; then ok "$name"; else not_ok "$name"; fi
}

files=$(find results/kvdim-25m results/kvdim-6m results/kvdim-25m-recall/rates-at-equal-accuracy results/kvdim-6m-recall/rates-at-equal-accuracy results/h200/figures results/h200/ablations results/h100/palu-70b -name '*.h5' -not -path '*/methods-sweep/*' -not -path '*/report/*' | sort)
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
