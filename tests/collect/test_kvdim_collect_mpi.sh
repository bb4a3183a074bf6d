#!/bin/sh
# kvdim-collect on several ranks: the sums of one process to 1e-12, one line and an end for all when one rank fails.
. tests/lib/cases.sh
collect=$B/bin/kvdim-collect
said=$D/said
model=$D/tiny
"$B/tests/tool_checkpoint" -l 3 "$model" || exit 1

# A launcher's environment without MPI: a program built without MPI must not do the work N times.
if ! strings -a "$collect" 2>/dev/null | grep -q MPI_Allreduce && ! grep -aq MPI_Allreduce "$collect"; then
  OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 "$collect" "$model" --random 100 --moments -o "$D/x.h5" 2>"$said"
  check built_without_gets_status_1 test $? -eq 1
  check built_without_says_so grep -qxF 'kvdim-collect: started on several ranks, but built without MPI' "$said"
  OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "$collect" "$model" --random 100 --moments -o "$D/x.h5" 2>"$said"
  check built_without_says_it_once test $? -eq 0 -a ! -s "$said"
  check built_without_leaves_nothing test ! -e "$D/x.h5"
  echo "skip collect_mpi: built without MPI"; exit 0
fi
command -v mpirun >/dev/null || { echo "skip collect_mpi: no mpirun"; exit 0; }
${PYTHON:-/usr/bin/python3} -c 'import h5py, numpy' 2>/dev/null || { echo "skip collect_mpi: python3 has no h5py and numpy"; exit 0; }
# The launcher's own remarks about a rank that failed are not ours; MPI itself leaks.
export ASAN_OPTIONS=detect_leaks=0 OMPI_MCA_orte_execute_quiet=1 OMPI_MCA_rmaps_base_oversubscribe=1
launch=mpirun
mpirun --version 2>/dev/null | grep -q 'Open MPI' && launch='mpirun --oversubscribe --allow-run-as-root --bind-to none'
ranks() { # N ARGUMENTS...; ends it when it hangs
  n=$1; shift
  timeout 60 $launch -n "$n" "$collect" "$@"
}
if ! timeout 60 $launch -n 2 true >"$log" 2>&1; then echo "skip collect_mpi: mpirun starts nothing: $(tail -1 "$log")"; exit 0; fi
close() { # FILE FILE: sums within 1e-12 of the largest of their matrix, all else equal
  ${PYTHON:-/usr/bin/python3} - "$1" "$2" <<'END'
import sys, h5py, numpy as np
a, b = h5py.File(sys.argv[1]), h5py.File(sys.argv[2])
assert a["gram"].keys() == b["gram"].keys() and len(a["gram"]) >= 5
assert a["n_tokens"][()] == b["n_tokens"][()]
for n in ("label", "corpus_hash", "n_sequences", "seq_len", "first_layer"):
    assert a.attrs[n] == b.attrs[n], n
for n in a["gram"]:
    x, y = a["gram"][n][()], b["gram"][n][()]
    apart = (np.abs(x - y).max((2, 3)) / np.abs(x).max((2, 3))).max()
    assert apart <= (0 if n.startswith("w") else 1e-12), (n, apart)
END
}

# Enough text that every rank has several batches; the number of batches differs between ranks.
common="$model --random 2000 --seed 3 --seq-len 30 --batch 90 --rope both --threads 1 -q --moments"
check one_process "$collect" $common -o "$D/one.h5"
for n in 1 2 3 4; do
  check "ranks_$n" ranks $n $common -o "$D/r$n.h5"
  check "ranks_${n}_give_the_same_sums" close "$D/one.h5" "$D/r$n.h5"
done
check one_rank_is_bit_for_bit ${PYTHON:-/usr/bin/python3} tests/tools/tool_compare_h5.py same "$D/one.h5" "$D/r1.h5"
check ranks_are_recorded ${PYTHON:-/usr/bin/python3} -c "
import h5py
for n in 1, 3:
    f = h5py.File('$D/r%d.h5' % n)
    assert int(f['parameters'].attrs['ranks']) == n and ('ranks=%d\n' % n) in str(f.attrs['run_key'], 'ascii') if isinstance(f.attrs['run_key'], bytes) else ('ranks=%d\n' % n) in f.attrs['run_key']"
# Documents of unequal length, and more ranks than sequences.
printf '1,2,3,4,5,6,7\n8,9,10\n11,12,13,14,15\n' >"$D/ids.csv"
ids="$model --ids $D/ids.csv --seq-len 7 --threads 1 --moments -q"
check few_one "$collect" $ids -o "$D/one.h5"
check few_ranks ranks 5 $ids -o "$D/few.h5"
check few_ranks_give_the_same_sums close "$D/one.h5" "$D/few.h5"
ranks 2 $model --random 300 --moments --threads 1 -o "$D/said.h5" >"$said" 2>/dev/null
check summary_is_printed_once test "$(grep -c '^300 tokens in ' "$said")" -eq 1
ranks 3 --version >"$said" 2>/dev/null
check version_is_printed_once test "$(grep -c '^kvdim-collect ' "$said")" -eq 1

# ---- errors: one line of ours, status not 0, no file ----
one_line() { # NAME MESSAGE
  if [ "$status" -eq 0 ] || [ "$status" -eq 124 ]; then echo "not ok $1: status $status"
  elif [ "$(grep -c '^kvdim-collect: ' "$said")" -ne 1 ]; then echo "not ok $1: $(grep -c '^kvdim-collect: ' "$said") lines: $(head -3 "$said" | tr '\n' '|')"
  elif ! grep '^kvdim-collect: ' "$said" | grep -qF -- "$2"; then echo "not ok $1: $(grep '^kvdim-collect: ' "$said")"
  elif ls "$D"/bad* >/dev/null 2>&1; then echo "not ok $1: left $(ls "$D"/bad*)"
  else echo "ok $1"; fi
}
fails() { # NAME MESSAGE ARGUMENTS...
  name=$1 message=$2; shift 2
  ranks 3 "$@" -o "$D/bad.h5" >"$D/out" 2>"$said"
  status=$?
  one_line "$name" "$message"
}
fails dump_is_refused 'rank 0: 3 ranks cannot write a dump: give --moments without a file' $model --random 100
fails dump_beside_is_refused '3 ranks cannot write a dump' $model --random 100 --moments="$D/badm.h5"
fails resume_is_refused '--resume works on one rank only, not on 3' $model --random 100 --moments --resume
fails snapshots_are_refused '--snapshots works on one rank only, not on 3' $model --random 100 --moments --snapshots 50
fails attention_is_refused '--attention works on one rank only, not on 3' $model --random 100 --attention
fails fisher_is_refused '--fisher works on one rank only, not on 3' $model --random 100 --fisher
fails wrong_usage 'no --text, --ids or --random given' $model --moments
fails missing_model 'nowhere' "$D/nowhere" --random 100 --moments
# Two program blocks: the ranks differ in their options.
pair() { # NAME MESSAGE OPTIONS-OF-RANK-0 OPTIONS-OF-RANK-1
  timeout 60 $launch -n 1 "$collect" $model --moments -q -o "$D/bad.h5" $3 : -n 1 "$collect" $model --moments -q -o "$D/bad.h5" $4 >"$D/out" 2>"$said"
  status=$?
  one_line "$1" "$2"
}
pair rank_1_alone_fails "rank 1: " '--random 100' "--ids $D/nowhere.csv"
pair other_data_is_refused "rank 1: corpus is 'xxh3:" '--random 100 --seed 1' '--random 100 --seed 2'
# A weight that is not finite: only the rank whose sequences hold the last token id meets it, in its last batch.
"$B/tests/tool_checkpoint" -l 2 "$D/nan" && ${PYTHON:-/usr/bin/python3} - "$D/nan" <<'END'
import glob, json, struct, sys
name = glob.glob(sys.argv[1] + "/*.safetensors")[0]
data = bytearray(open(name, "rb").read())
n = struct.unpack("<Q", data[:8])[0]
t = json.loads(data[8:8 + n])["model.embed_tokens.weight"]
assert t["dtype"] == "F32"
struct.pack_into("<f", data, 8 + n + t["data_offsets"][1] - 4, float("nan"))
open(name, "wb").write(data)
END
awk 'BEGIN { for (s = 0; s < 40; s++) for (i = 0; i < 20; i++) printf "%d%s", s == 39 && i == 9 ? 299 : (s * 7 + i) % 290, i < 19 ? "," : "\n" }' >"$D/nan.csv"
fails rank_2_fails_at_its_end 'rank 2: ' "$D/nan" --ids "$D/nan.csv" --batch 40 --moments -q --threads 1
# Interrupted: all end, and an earlier result stays.
cp "$D/few.h5" "$D/kept.h5"
$launch -n 2 "$collect" $model --random 4000000 --seq-len 64 --threads 1 --moments -q -o "$D/kept.h5" >"$D/out" 2>"$said" & pid=$!
for i in $(seq 500); do [ -e "$D/kept.h5.partial" ] && break; sleep 0.02; done
sleep 0.3
kill -TERM $pid
wait $pid
status=$?
check interrupted_is_an_error test $status -ne 0
check interrupted_keeps_the_old_result cmp "$D/few.h5" "$D/kept.h5"
