#!/bin/sh
# Runs the commands of docs/tutorial.md in order, as they are written.
. tests/lib/cases.sh
B=$(cd "${BUILD:-build}" && pwd)
root=$PWD
ln -s "$root/data" "$D/data"
grep '^kvdim-' docs/tutorial.md >"$D/commands"
n=$(wc -l <"$D/commands")
is "the tutorial has ten commands" 10 "$n"
if (cd "$D" && PATH="$B/bin:$PATH" sh -e commands >log 2>&1) && [ -s "$D/report/index.html" ]
then ok "they run in order"; else not_ok "they run in order"; fi
