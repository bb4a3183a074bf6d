#!/bin/sh
# Measured files and fixtures, which git keeps in archives: files.tar.xz in the folder of the files.
# usage: archives.sh unpack          extracts every archive into its folder (make unpack)
#        archives.sh check           fails if a folder and its archive differ
#        archives.sh pack FOLDER...  writes the archive of each FOLDER from the files in it
#
# All files of an archive have one date. A file with that date came from an archive and is replaced
# when the archive changes. A file with another date was made here: `unpack` never replaces it, but
# prints its name and fails. Run the script from the root of the tree. It needs xz.
set -eu
date=1767225600 # 2026-01-01 in seconds since 1970

# Prints the names of the files of folder $1 that belong into its archive, as .gitignore lists them.
names() {
  (
    cd "$1"
    case $1 in
      results/h200/*) find . -type f -regex '.*\.\(h5\|log\|json\|json\.gz\)' ! -path '*/report/*' ;;
      results/*) find . -type f -regex '.*\.\(h5\|csv\|svg\)' ! -path '*/report/*' ;;
      *) find . -type f ! -path ./files.tar.xz ! -name '.*' ;;
    esac
  ) | sed 's,^\./,,' | LC_ALL=C sort
}

# Extracts the archive of folder $1 into $tmp/files.
extract() {
  rm -rf "$tmp/files"
  mkdir "$tmp/files"
  tar -xJf "$1/files.tar.xz" -C "$tmp/files"
}

unpack() {
  extract "$1"
  (cd "$tmp/files" && find . -type f) | sed 's,^\./,,' >"$tmp/names"
  while IFS= read -r f; do
    if [ ! -e "$1/$f" ] || [ "$(stat -c %Y "$1/$f")" = "$date" ]; then
      mkdir -p "$1/$(dirname "$f")"
      mv -f "$tmp/files/$f" "$1/$f"
    elif ! cmp -s "$tmp/files/$f" "$1/$f"; then
      echo "kept $1/$f, which differs from $1/files.tar.xz: store it with 'sh scripts/archives.sh pack $1'," \
        "or remove it and run 'make unpack'" >&2
      status=1
    fi
  done <"$tmp/names"
}

check() {
  extract "$1"
  names "$1" >"$tmp/here"
  (cd "$tmp/files" && find . -type f) | sed 's,^\./,,' | LC_ALL=C sort >"$tmp/names"
  LC_ALL=C comm -3 "$tmp/here" "$tmp/names" | while IFS= read -r f; do
    case $f in
      "	"*) echo "$1/${f#?} is missing: run 'make unpack'" ;;
      *) echo "$1/$f is not in $1/files.tar.xz: run 'sh scripts/archives.sh pack $1'" ;;
    esac
  done >"$tmp/differences"
  LC_ALL=C comm -12 "$tmp/here" "$tmp/names" | while IFS= read -r f; do
    cmp -s "$tmp/files/$f" "$1/$f" || echo "$1/$f differs from $1/files.tar.xz"
  done >>"$tmp/differences"
  if [ -s "$tmp/differences" ]; then
    cat "$tmp/differences" >&2
    status=1
  fi
}

pack() {
  names "$1" >"$tmp/names"
  [ -s "$tmp/names" ] || {
    echo "$1 has no file that belongs into an archive" >&2
    exit 1
  }
  (cd "$1" && tar -c --format=ustar --owner=0 --group=0 --numeric-owner --mode=644 --mtime="@$date" -T "$tmp/names") |
    xz -9e -T1 >"$tmp/files.tar.xz"
  mv "$tmp/files.tar.xz" "$1/files.tar.xz"
  (cd "$1" && xargs -d '\n' touch -d "@$date" -- <"$tmp/names")
  echo "$1/files.tar.xz: $(wc -l <"$tmp/names") files, $(stat -c %s "$1/files.tar.xz") bytes"
}

usage() {
  echo "usage: archives.sh unpack|check, or archives.sh pack FOLDER..." >&2
  exit 2
}
[ $# -ge 1 ] || usage
action=$1 status=0
shift
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
case $action in
  unpack | check)
    [ $# -eq 0 ] || usage
    find results tests -name files.tar.xz | LC_ALL=C sort >"$tmp/archives"
    while IFS= read -r archive; do "$action" "$(dirname "$archive")"; done <"$tmp/archives"
    ;;
  pack)
    [ $# -ge 1 ] || usage
    for folder; do pack "${folder%/}"; done
    ;;
  *) usage ;;
esac
exit "$status"
