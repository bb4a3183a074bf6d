# Shared by the shell tests, which run in the root of the repository and begin with `. tests/lib/cases.sh`.
# Sets B (build folder), PYTHON, D (temporary folder, removed at the end) and log (output of the latest case).
set -u
B=${BUILD:-build}
PYTHON=${PYTHON:-/usr/bin/python3}
D=$(mktemp -d)
trap 'rm -rf "$D"' EXIT
log=$D/log
# Many test programs share the machine: threads that wait should sleep.
export OMP_WAIT_POLICY=passive

ok() { echo "ok $1"; }
# not_ok NAME [LINE...]: the lines, or else the end of $log, tell why
not_ok() {
  echo "not ok $1"; shift
  if [ $# -gt 0 ]; then printf '%s\n' "$@"; else tail -n 20 "$log"; fi | sed 's/^/# /'
}
# needs PROGRAM PACKAGE: without the program the whole script is skipped
needs() { command -v "$1" >/dev/null || { echo "skip $(basename "$0" .sh): no $1 (package $2)"; exit 0; }; }

# check NAME COMMAND...: the command succeeds
check() {
  name=$1; shift
  if "$@" >"$log" 2>&1; then ok "$name"; else not_ok "$name"; fi
}
# is NAME WANTED GOT
is() { if [ "$2" = "$3" ]; then ok "$1"; else not_ok "$1" "want '$2', got '$3'"; fi; }
# says FILE TEXT: the file has the text
says() { grep -qF -- "$2" "$1" || { cat "$1"; return 1; }; }
# by_python NAME ARGUMENT...: the program on stdin, which needs h5py and NumPy, succeeds
by_python() {
  if "$PYTHON" -c 'import h5py, numpy' 2>/dev/null; then name=$1; shift; check "$name" "$PYTHON" - "$@"
  else echo "skip $1: no h5py for $PYTHON"; fi
}
# refused NAME STATUS TEXT COMMAND...: the command ends with the status, says the text and writes no $D/none.h5
refused() {
  name=$1 want=$2 message=$3; shift 3
  "$@" >"$log" 2>&1; got=$?
  if [ $got -eq "$want" ] && grep -qF -- "$message" "$log" && [ ! -e "$D/none.h5" ]; then ok "$name"
  else not_ok "$name" "status $got, wanted $want and '$message'" "$(cat "$log")"; fi
}
# no_output NAME STATUS TEXT COMMAND...: as refused, with -o, no file $D/none*, and one line where the status is 1
no_output() {
  name=$1 want=$2 message=$3; shift 3
  "$@" -o "$D/none.h5" >"$D/out" 2>"$log"; got=$?
  if [ $got -eq "$want" ] && grep -qF -- "$message" "$log" && ! ls "$D"/none* >/dev/null 2>&1 &&
     { [ "$want" -ne 1 ] || [ "$(wc -l <"$log")" -eq 1 ]; }; then ok "$name"
  else not_ok "$name" "status $got, wanted $want and '$message'" "$(cat "$log")" "$(ls "$D"/none* 2>/dev/null)"; fi
}

# values KEY FILE.json: the values of a key, a line each
values() { sed -n "s/^ *\"$1\": \"*\([^\"]*[^\",]\)\"*,*\$/\1/p" "$2"; }
# field NAME: that of all rows of the JSON summary $D/a.json
field() { sed -n "s/^ *\"$1\": \"*\([^\",]*\)\"*,*\$/\1/p" "$D/a.json"; }
# attribute FILE.h5 PATH and column FILE.h5 NAME: values of an attribute, and of /rows/NAME in one line
attribute() { h5dump -a "$2" "$1" | sed -n 's/.*([0-9]*): //p'; }
column() {
  h5dump -y -w 0 -d "/rows/$2" "$1" 2>/dev/null |
    awk '/DATA \{/ { on = 1; next } on && /\}/ { exit } on { gsub(/\\000/, ""); gsub(/"/, ""); gsub(/, /, " "); print }' |
    tr -s ' \n' ' ' | sed 's/^ //; s/ $//'
}
