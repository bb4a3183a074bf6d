#!/bin/sh
# Measured files, fixtures and the demo model, which git keeps in archives: files.tar.xz in the folder
# of the files.
# usage: archives.sh unpack [TOP...] extracts every archive below TOP (default: data, results and tests)
#        archives.sh check           fails if a file of an archive is missing or differs; names other files
#        archives.sh pack FOLDER...  writes the archive of each FOLDER from the files in it
#
# All files of an archive have one date. A file with that date came from an archive and is replaced
# or removed when the archive changes. A file with another date was made here: `unpack` never
# replaces it, but prints its name and fails. Run the script from the root of the tree. `pack` needs
# xz.
set -eu
date=1767225600 # 2026-01-01 in seconds since 1970

# Prints the names of the files of folder $1 that belong into its archive, as .gitignore lists them.
names() {
  (
    cd "$1"
    case $1 in
      results/*) find . -type f -regex '.*\.\(h5\|csv\|svg\|log\|json\|json\.gz\)' ! -path '*/report/*' ;;
      *) find . -type f ! -path ./files.tar.xz ! -name '.*' ;;
    esac
  ) | sed 's,^\./,,' | LC_ALL=C sort
}

# Prints the archive of folder $1 uncompressed.
content() {
  if command -v xz >/dev/null 2>&1; then
    xz -dc "$1/files.tar.xz"
  else
    "${PYTHON:-python3}" -c 'import lzma, shutil, sys
shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' "$1/files.tar.xz"
  fi
}

# Writes the archive's uncompressed content to $tmp/files.tar and the names in it to $tmp/names.
open_archive() {
  content "$1" >"$tmp/files.tar" || {
    echo "cannot read $1/files.tar.xz: it is damaged, or neither xz nor python3 with lzma is installed" >&2
    exit 1
  }
  tar -tf "$tmp/files.tar" | LC_ALL=C sort >"$tmp/names"
}

# Extracts the file $2 of the open archive and compares it with the one in folder $1.
same() { tar -xOf "$tmp/files.tar" "$2" | cmp -s - "$1/$2"; }

unpack() {
  open_archive "$1"
  (cd "$1" && xargs -d '\n' stat -c '%Y %n' <"$tmp/names" 2>/dev/null) | sed -n "/^$date /!s/^[0-9]* //p" >"$tmp/other"
  tar -xf "$tmp/files.tar" -C "$1" --no-wildcards --anchored -X "$tmp/other"
  # Files of an earlier archive.
  names "$1" | LC_ALL=C comm -23 - "$tmp/names" >"$tmp/more"
  (cd "$1" && xargs -d '\n' stat -c '%Y %n' <"$tmp/more" 2>/dev/null | sed -n "s/^$date //p" | xargs -d '\n' rm -f --)
  while IFS= read -r f; do
    same "$1" "$f" && continue
    echo "kept $1/$f, which differs from $1/files.tar.xz: store it with 'sh scripts/archives.sh pack $1'," \
      "or remove it and run 'sh scripts/archives.sh unpack'" >&2
    status=1
  done <"$tmp/other"
}

check() {
  open_archive "$1"
  names "$1" >"$tmp/here"
  {
    LC_ALL=C comm -13 "$tmp/here" "$tmp/names" |
      sed "s,.*,$1/& is missing: run 'sh scripts/archives.sh unpack',"
    tar -df "$tmp/files.tar" -C "$1" 2>/dev/null |
      sed -n "s,\(.*\): \(Contents\|Size\) differ.*,$1/\1 differs from $1/files.tar.xz,p"
  } | sort -u >"$tmp/differences"
  [ ! -s "$tmp/differences" ] || status=1
  LC_ALL=C comm -23 "$tmp/here" "$tmp/names" |
    sed "s,.*,note: $1/& is not in $1/files.tar.xz; 'sh scripts/archives.sh pack $1' adds it," >>"$tmp/differences"
  cat "$tmp/differences" >&2
}

pack() {
  [ -d "$1" ] || {
    echo "pack: there is no folder '$1'" >&2
    exit 1
  }
  names "$1" >"$tmp/names"
  [ -s "$tmp/names" ] || {
    echo "$1 has no file that belongs into an archive" >&2
    exit 1
  }
  # lc, lp and pb suit the width of the numbers of which most files of the folder consist.
  case $1 in
    results/*) width=lc=0,lp=3,pb=3 ;;     # eight bytes
    data/models/*) width=lc=1,lp=1,pb=1 ;; # two
    *) width=lc=1,lp=2,pb=2 ;;             # four
  esac
  (cd "$1" && tar -c --format=ustar --owner=0 --group=0 --numeric-owner --mode=644 --mtime="@$date" -T "$tmp/names") |
    xz --lzma2=preset=9e,$width -T1 >"$tmp/files.tar.xz"
  mv "$tmp/files.tar.xz" "$1/files.tar.xz"
  (cd "$1" && xargs -d '\n' touch -d "@$date" -- <"$tmp/names")
  echo "$1/files.tar.xz: $(wc -l <"$tmp/names") files, $(stat -c %s "$1/files.tar.xz") bytes"
}

usage() {
  echo "usage: archives.sh unpack [TOP...], archives.sh check, or archives.sh pack FOLDER..." >&2
  exit 2
}
[ $# -ge 1 ] || usage
action=$1 status=0
shift
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
case $action in
  unpack | check)
    [ $# -eq 0 ] || [ "$action" = unpack ] || usage
    [ $# -gt 0 ] || set -- data results tests
    for top; do
      [ -d "$top" ] || {
        echo "archives.sh: $PWD has no folder $top: run it from the root of the tree" >&2
        exit 2
      }
    done
    find "$@" -name files.tar.xz | LC_ALL=C sort >"$tmp/archives"
    while IFS= read -r archive; do "$action" "$(dirname "$archive")"; done <"$tmp/archives"
    ;;
  pack)
    [ $# -ge 1 ] || usage
    for folder; do pack "${folder%/}"; done
    ;;
  *) usage ;;
esac
exit "$status"
