#!/bin/sh
# Rows of documents between `<!-- leaderboard: FOLDER -->` and `<!-- /leaderboard -->`, or `<!-- report: ARGUMENT... -->` and `<!-- /report -->`,
# are rows of the tables that kvdim-report makes from the folder, or with the arguments.
# Rows between `<!-- targets: FOLDER -->` and `<!-- /targets -->` are seven columns of the table target-tasks.
# Rows between `<!-- kernels COLUMN,...: FOLDER NAME... -->` and `<!-- /kernels -->` are these columns of the table kernels that
# kvdim-report makes from FOLDER/NAME.h5 ....
. tests/lib/cases.sh

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
