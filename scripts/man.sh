#!/bin/sh
# Makes a man page of every program from its --help: the help text is the one source.
set -eu
B=${BUILD:-build}
mkdir -p "$B/man"
roff() { sed 's/\\/\\\\/g; s/-/\\-/g; s/^\([.'"'"']\)/\\\&\1/'; }
for p in "$B"/bin/kvdim-*; do
  n=$(basename "$p")
  version=$("$p" --version | head -n 1)
  # argp prints "Usage: ..." (continued on indented lines), then the text, then the options.
  what=$(ARGP_HELP_FMT=rmargin=1000 "$p" --help | grep -v '^ *\(Usage\|or\):' | grep -v '^$' | head -n 1 | sed 's/\. .*//; s/\.$//')
  {
    printf '.TH %s 1 "" "%s" "kvdim"\n.SH NAME\n' "$(echo "$n" | tr a-z A-Z)" "$version"
    printf '%s \\- %s\n' "$n" "$(echo "$what" | roff)"
    printf '.SH SYNOPSIS\n.nf\n'
    "$p" --usage | sed 's/^Usage: //; s/^       //' | roff
    printf '.fi\n.SH DESCRIPTION\n.nf\n'
    "$p" --help | awk 'text || (NR > 1 && /^[^ ]/) { text = 1; print }' | roff
    printf '.fi\n'
  } >"$B/man/$n.1"
done
