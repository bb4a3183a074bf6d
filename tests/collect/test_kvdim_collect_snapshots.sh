#!/bin/sh
# kvdim-collect --snapshots: each file is what a run of that many tokens writes, bit for bit, also when the run was killed on its way.
. tests/lib/cases.sh
collect=$B/bin/kvdim-collect
log=$D/log said=$D/said
model=$D/tiny
"$B/tests/tool_checkpoint" -l 3 "$model" || exit 1

refused() { a=$1 b=$2 c=$3; shift 3; no_output "$a" "$b" "$c" "$collect" "$@"; } # NAME STATUS TEXT ARGUMENTS...
if ! ${PYTHON:-/usr/bin/python3} -c 'import h5py, numpy' 2>/dev/null; then
  echo "skip collect_snapshots: python3 has no h5py and numpy"; exit 0
fi
same() { ${PYTHON:-/usr/bin/python3} tests/tools/tool_compare_h5.py same "$@"; }

# Sequences of 30, batches of 90: 100 ends inside a batch, 180 and 181 at the end of one and after it, 230 and 235 in one
# sequence, 240 inside that batch too, 700 is all (its last sequence is short).
for threads in 1 2; do
  t=threads_$threads
  run="$collect $model --random 700 --seed 3 --seq-len 30 --batch 90 --rope both --threads $threads -q"
  check ${t}_plain $run --moments -o "$D/plain.h5"
  check ${t}_snapshots $run --moments -o "$D/m.h5" --snapshots 2,100,180,181,230,235,240,700
  check ${t}_all_is_as_without_snapshots same "$D/plain.h5" "$D/m.h5"
  for pair in 2:30 100:120 180:180 181:210 230:240 235:240 240:240 700:700; do
    asked=${pair%:*} real=${pair#*:}
    $run --tokens "$real" --moments -o "$D/ref.h5" || echo "not ok ${t}_run_of_$real"
    check ${t}_${asked}_is_a_run_of_$real same "$D/ref.h5" "$D/m.$asked.h5"
    # The run key, and with it tokens and the hash of the ids, is that of the shorter run.
    $run --tokens "$real" --moments -o "$D/m.$asked.h5" --resume 2>"$said"
    check ${t}_${asked}_has_its_key says "$said" 'is complete: nothing to do'
  done
done
check snapshot_says_its_tokens ${PYTHON:-/usr/bin/python3} -c "
import h5py
f = h5py.File('$D/m.100.h5')
assert f['n_tokens'][()] == 120 and f.attrs['n_sequences'] == 4 and f.attrs['complete'] == 1
assert f['parameters'].attrs['tokens'] in ('120', b'120') and f['parameters'].attrs['snapshots'] in ('2,100,180,181,230,235,240,700', b'2,100,180,181,230,235,240,700')"
check snapshot_is_read_by_spectrum "$B/bin/kvdim-spectrum" "$D/m.100.h5" -q -o "$D/s.h5"

# Several documents, the dump in the same run, and a name without .h5.
printf '1,2,3,4,5,6,7\n8,9,10\n11,12,13,14,15\n5,4,3,2,1\n' >"$D/ids.csv"
ids="$collect $model --ids $D/ids.csv --seq-len 4 --batch 6 --threads 1 -q"
check beside_the_dump $ids --moments="$D/mom" -o "$D/d.h5" --snapshots 5,12
check dump_alone $ids -o "$D/d2.h5"
check dump_is_as_without same "$D/d2.h5" "$D/d.h5"
check documents_5 sh -c "$ids --tokens 7 --moments -o $D/ref.h5"
check documents_5_the_same same "$D/ref.h5" "$D/mom.5.h5"
check documents_12 sh -c "$ids --tokens 14 --moments -o $D/ref.h5"
check documents_12_the_same same "$D/ref.h5" "$D/mom.12.h5"

# ---- killed, interrupted, gone on ----
options="$model --random 6000 --seq-len 40 --batch 60 --threads 1 --save-every 0 -q --moments --snapshots 100,1000,2990,4000,5990"
"$collect" $options -o "$D/ref.h5" || exit 1
x=$D/killed.h5
for wait in 0 0.02 0.05 0.01; do
  : >"$D/mark"
  "$collect" $options -o "$x" --resume 2>>"$D/killed.log" & pid=$!
  for i in $(seq 500); do [ "$x.state" -nt "$D/mark" ] && break; sleep 0.01; done
  sleep $wait
  kill -KILL $pid 2>/dev/null
  wait $pid 2>/dev/null
done
check killed_on_its_way test ! -e "$x"
check first_snapshot_is_there test -e "$D/killed.100.h5"
before=$(stat -c '%i %Y' "$D/killed.100.h5")
"$collect" $options -o "$x" --resume 2>"$said"
check resumed test $? -eq 0
check resumed_goes_on says "$said" 'going on after'
check complete_snapshot_stays test "$before" = "$(stat -c '%i %Y' "$D/killed.100.h5")"
check resumed_is_the_same same "$D/ref.h5" "$x"
for n in 100 1000 2990 4000 5990; do
  check resumed_${n}_is_the_same same "$D/ref.$n.h5" "$D/killed.$n.h5"
done
check leaves_nothing_else sh -c "! ls $D/killed*.partial $D/killed*.state $D/killed*.lock 2>/dev/null | grep ."
"$collect" $options -o "$x" --resume 2>"$said"
check complete_has_nothing_to_do says "$said" 'is complete: nothing to do'
rm "$D/killed.2990.h5"
"$collect" $options -o "$x" --resume 2>"$said"
check lost_snapshot_gets_status_1 test $? -eq 1
check lost_snapshot_is_named says "$said" "the run is past the 3000 tokens of '$D/killed.2990.h5', which is not there"
check lost_snapshot_is_made_anew "$collect" $options -o "$x"
check lost_snapshot_is_the_same same "$D/ref.2990.h5" "$D/killed.2990.h5"

# ---- refusals ----
refused without_moments 2 '--snapshots requires --moments' $model --random 100 --snapshots 50
refused not_rising 2 '--snapshots: 50 is given twice' $model --random 100 --moments --snapshots 50,50
refused no_number 2 '--snapshots' $model --random 100 --moments --snapshots 1K
refused too_many 1 '--snapshots 101: the run has only 100 tokens' $model --random 100 --moments --snapshots 50,101
check name_of_the_dump sh -c "! $collect $model --random 100 --moments=$D/y.h5 -o $D/y.50.h5 --snapshots 50 2>&1 | grep -v 'name the same file'"
