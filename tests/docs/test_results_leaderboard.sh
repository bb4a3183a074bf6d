#!/bin/sh
# Rows of documents between `<!-- leaderboard: FOLDER -->` and `<!-- /leaderboard -->`, or `<!-- report: ARGUMENT... -->` and `<!-- /report -->`,
# are rows of the tables that kvdim-report makes from the folder, or with the arguments.
# Rows between `<!-- targets: FOLDER -->` and `<!-- /targets -->` are seven columns of the table target-tasks.
. tests/lib/cases.sh

# rows FILE: the rows of its marked tables, without headings
rows() { awk '/^<!-- (leaderboard|report): /{ on = 1; next } /^<!-- \/(leaderboard|report) -->/{ on = 0 } on && /^\| [^-]/ && !/^\| (at most|method) \|/' "$1"; }
# agrees FILE: every marked row is one of the report's, and there are some
agrees() {
  arguments=$(sed -n 's/^<!-- \(leaderboard\|report\): \(.*\) -->$/\2/p' "$1" | head -n 1)
  "$B/bin/kvdim-report" $arguments --no-plots -q -o "$D/page" && rows "$1" >"$D/rows" && [ -s "$D/rows" ] || return 1
  cat "$D"/page/tables/*.md >"$D/tables"
  ! grep -vxF -f "$D/tables" "$D/rows"
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
