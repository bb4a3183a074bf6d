#!/bin/sh
# Makes a man page of every program from its --help, and one of the library from its header. The
# pages have no other text.
set -eu
B=${BUILD:-build}
mkdir -p "$B/man"
roff() { sed 's/\\/\\\\/g; s/-/\\-/g; s/^\([.'"'"']\)/\\\&\1/'; }
for p in "$B"/bin/kvdim-*; do
  n=$(basename "$p")
  version=$("$p" --version)
  help=$("$p" --help)
  # --help prints lines of usage, an empty line, the summary, an empty line and the options.
  summary=$(printf "%s\n" "$help" | awk 'BEGIN { RS = ""; ORS = " " } NR == 2 { gsub("\n", " "); print }' | sed 's/[.:] .*//')
  {
    printf '.TH %s 1 "" "%s" "kvdim"\n.SH NAME\n' "$(echo "$n" | tr a-z A-Z)" "$version"
    printf '%s \\- %s\n' "$n" "$(echo "$summary" | roff)"
    printf '.SH SYNOPSIS\n.nf\n'
    printf "%s\n" "$help" | sed -n '/^$/q; s/^Usage: //; s/^   or: //; p' | roff
    printf '.fi\n.SH DESCRIPTION\n.nf\n'
    printf "%s\n" "$help" | sed '1,/^$/d' | roff
    printf '.fi\n'
  } >"$B/man/$n.1"
done

header=include/kvdim/attention.h
version=$(sed -n 's/^KVD_VERSION := //p' Makefile)
{
  printf '.TH KVDIM-ATTENTION 3 "" "kvdim %s" "kvdim"\n.SH NAME\n' "$version"
  printf 'kvdim-attention \\- attention on KV caches whose heads have unequal widths\n'
  printf '.SH SYNOPSIS\n.nf\n#include <kvdim/attention.h>\n\n'
  # shellcheck disable=SC2016 # the command is text for the reader
  echo 'cc program.c $(pkg-config --cflags --libs kvdim-attention)' | roff
  printf '.fi\n.SH DESCRIPTION\n.nf\n'
  sed -n '1,/\*\/$/{s/ \*\/$//;s/^[ \/]\* \{0,1\}//;p;}' $header | roff
  printf '.fi\n.SH DECLARATIONS\n.nf\n'
  # Between the two tests for C++.
  awk '/^#ifdef __cplusplus/ { part++ } part == 1 && !/^#ifdef|^extern|^#endif/' $header | roff
  printf '.fi\n'
} >"$B/man/kvdim-attention.3"
