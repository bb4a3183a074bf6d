#!/bin/sh
# Makes a man page of every program from its --help: the help text is the one source.
set -eu
B=${BUILD:-build}
mkdir -p "$B/man"
for p in "$B"/bin/kvdim-*; do
  n=$(basename "$p")
  version=$("$p" --version | head -n 1)
  {
    printf '.TH %s 1 "" "%s" "kvdim"\n.SH NAME\n' "$(echo "$n" | tr a-z A-Z)" "$version"
    # argp prints "Usage: ...", then the doc line, then options.
    what=$("$p" --help | sed -n '2,/^$/p' | grep -v '^  or:' | grep -v '^$' | head -n 1 | sed 's/[.]$//')
    printf '%s \\- %s\n.SH SYNOPSIS\n.nf\n' "$n" "$what"
    "$p" --usage | sed 's/^Usage: //; s/\\/\\\\/g; s/^\([.'"'"']\)/\\\&\1/'
    printf '.fi\n.SH DESCRIPTION\n.nf\n'
    "$p" --help | sed '1d; s/\\/\\\\/g; s/-/\\-/g; s/^\([.'"'"']\)/\\\&\1/'
    printf '.fi\n'
  } >"$B/man/$n.1"
done
