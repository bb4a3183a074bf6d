#!/bin/sh
# kvdim-eval, kvdim-tasks and kvdim-jct under kill -9 at random times, again and again, with --resume: each ends with the
# rows of a run that nobody disturbed, and leaves nothing else. KILLS=N kills of each program (default 6), SEED=N.
. tests/lib/cases.sh
needs h5dump hdf5-tools
kills=${KILLS:-6} seed=${SEED:-$$}
echo "# SEED=$seed KILLS=$kills"
M=data/models/kvdim-6m
text=data/texts/articles.txt
# Prints one waiting time per kill, in seconds, spread evenly below the given time.
waits() { awk -v n="$kills" -v seed="$seed" -v most="$1" 'BEGIN { srand(seed); for (i = 0; i < n; i++) printf "%.3f\n", rand() * most }'; }
# same NAME COLUMNS: the columns of cut.h5 are those of whole.h5, and no other file is next to it. Removes cut.h5.
same() {
  for c in $2; do
    is "$1: $c" "$(column "$D/whole.h5" "$c")" "$(column "$D/cut.h5" "$c")"
    [ -n "$(column "$D/cut.h5" "$c")" ] || not_ok "$1 has no column $c"
  done
  is "$1 leaves nothing else" "$D/cut.h5" "$(echo "$D"/cut.h5*)"
  rm -f "$D"/cut.h5*
}
# disturbed NAME COLUMNS COMMAND...: runs the command under kills; a run that ends before its kill is compared with
# one that nobody disturbed, and the next kills meet a new run.
disturbed() {
  name=$1 columns=$2; shift 2
  begin=$(date +%s.%N)
  if ! "$@" --resume -q -o "$D/whole.h5" >"$log" 2>&1; then not_ok "$name, undisturbed"; return; fi
  took=$(echo "$begin $(date +%s.%N)" | awk '{ print $2 - $1 }')
  killed=0
  for wait in $(waits "$took"); do
    "$@" --resume -q -o "$D/cut.h5" >"$log" 2>&1 & pid=$!
    sleep "$wait"
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    case $? in
      0) same "$name" "$columns" ;;
      137) killed=$((killed + 1)) ;;
      *) not_ok "$name, resumed"; return ;;
    esac
  done
  echo "# $name: $killed of $kills kills met a running program, of $took s undisturbed"
  if "$@" --resume -q -o "$D/cut.h5" >"$log" 2>&1; then same "$name, resumed to the end" "$columns"; else not_ok "$name, resumed to the end"; fi
  rm -f "$D/whole.h5"
}

disturbed kvdim-eval "method perplexity kl top1" "$B/bin/kvdim-eval" $M --text $text --tokens 1024 --seq-len 256 --threads 1 \
  --method none --method h2o --method kivi,residual=32,bits=2/4/8 --method scissorhands
disturbed kvdim-tasks "method score bytes_stored" "$B/bin/kvdim-tasks" $M --ruler niah_single_1 --seq-len 400 --items 6 \
  --max-new-tokens 8 --threads 1 --method none --method h2o
# Times differ between runs; what is counted does not.
disturbed kvdim-jct "method input output batch cache_bytes" "$B/bin/kvdim-jct" $M --device cpu --threads 1 --input-len 20,40,60 \
  --output-len 10 --batch 1,2 --repeats 2 --method none,h2o
