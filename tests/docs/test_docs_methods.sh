#!/bin/sh
# docs/methods.md has a heading for every name that --list-methods lists, and README gives their number.
. tests/lib/cases.sh
names=$($B/bin/kvdim-eval --list-methods | sed -n 's/^  \([a-z0-9]*\)  *[a-z+]*: .*/\1/p')
missing=$(for name in none $names; do
  grep -Eq "^###? $name\$" docs/methods.md || echo "$name"
done)
n=$(echo "$names" | wc -l)
if [ "$n" -gt 30 ] && [ -z "$missing" ]; then ok "headings of $n methods"
else not_ok "headings of $n methods" "without a heading:" "$missing"; fi
# The list without `none`, which the pattern above does not match.
if tr '\n' ' ' <README.md | grep -q "scores $n compression methods"; then ok "the number of methods in README"
else not_ok "the number of methods in README" "--list-methods lists $n"; fi
