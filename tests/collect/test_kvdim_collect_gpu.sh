#!/bin/sh
# kvdim-collect on a GPU: float32 gives the CPU's numbers to rounding, bf16 its spectra; killed, resumed and in snapshots the bits are
# those of an undisturbed run. Without a GPU: what is refused then.
. tests/lib/cases.sh
collect=$B/bin/kvdim-collect
said=$D/said
model=$D/tiny
real=data/models/kvdim-6m
"$B/tests/tool_checkpoint" -l 3 "$model" || exit 1

refused() { name=$1 message=$2; shift 2; no_output "$name" 1 "$message" "$collect" "$@"; } # NAME TEXT ARGUMENTS...
compare() { ${PYTHON:-/usr/bin/python3} tests/tools/tool_compare_h5.py "$@"; }

refused bf16_on_the_cpu '--compute bf16: the CPU computes in f32' $model --random 10 --device cpu --compute bf16
refused gpus_on_the_cpu '--gpus 2: this runs on the CPU' $model --random 10 --device cpu --gpus 2
if ! "$collect" $model --random 10 --device cuda --moments -q -o "$D/try.h5" 2>"$said" && grep -q 'no CUDA' "$said"; then
  refused cuda_without_a_gpu '--device cuda: no CUDA' $model --random 10 --device cuda
  echo "skip collect_gpu: $(sed 's/.*--device cuda: //' "$said")"; exit 0
fi
refused too_many_gpus '--gpus 16: ' $model --random 10 --device cuda --gpus 16
if ! ${PYTHON:-/usr/bin/python3} -c 'import h5py, numpy' 2>/dev/null; then
  echo "skip collect_gpu: python3 has no h5py and numpy"; exit 0
fi

# ---- the CPU's numbers ----
text="$real --text data/texts/articles.txt --tokens 6000 --rope both --seq-len 500 --threads 2 -q"
check cpu "$collect" $text --device cpu --dtype f32 --moments="$D/cpu.m.h5" -o "$D/cpu.h5"
check cuda "$collect" $text --device cuda --dtype f32 --batch 2048 --moments="$D/gpu.m.h5" -o "$D/gpu.h5"
check moments_are_the_cpus compare near "$D/cpu.m.h5" "$D/gpu.m.h5" 1e-5
check dump_is_the_cpus compare near "$D/cpu.h5" "$D/gpu.h5" 1e-5
check moments_are_sums_of_the_dump compare moments "$D/gpu.h5" "$D/gpu.m.h5"
check cuda_again "$collect" $text --device cuda --dtype f32 --batch 2048 --moments="$D/again.m.h5" -o "$D/again.h5"
check equal_runs_equal_bits compare same "$D/gpu.h5" "$D/again.h5" "$D/gpu.m.h5" "$D/again.m.h5"
check cuda_moments_alone "$collect" $text --device cuda --batch 2048 --moments -o "$D/alone.m.h5"
check moments_alone_are_the_same compare same "$D/gpu.m.h5" "$D/alone.m.h5"
check cuda_f16 "$collect" $text --device cuda --batch 2048 -o "$D/f16.h5"
check f16_is_f32_rounded compare rounded "$D/gpu.h5" "$D/f16.h5"
check cuda_layers "$collect" $text --device cuda --batch 2048 --dtype f32 --layers 2-3 -o "$D/layers.h5"
check layers_are_those_of_the_whole compare layers "$D/gpu.h5" "$D/layers.h5"
check another_batch "$collect" $text --device cuda --moments -o "$D/large.m.h5"
check another_batch_to_rounding compare near "$D/gpu.m.h5" "$D/large.m.h5" 1e-5

# ---- bf16: close, not the same ----
check cuda_bf16 "$collect" $text --device cuda --compute bf16 --moments="$D/bf16.m.h5" --dtype bf16 -o "$D/bf16.h5"
check bf16_moments_are_sums_of_the_dump compare moments "$D/bf16.h5" "$D/bf16.m.h5"
for m in cpu bf16; do check spectrum_$m "$B/bin/kvdim-spectrum" "$D/$m.m.h5" --pair qk,vw -q -o "$D/$m.s.h5"; done
check bf16_spectra compare spectra "$D/cpu.s.h5" "$D/bf16.s.h5" 0.01

# ---- what is said and recorded ----
"$collect" $model --random 500 --device cuda --json -o "$D/j.h5" >"$D/j.json" 2>"$log"
check json_says_device ${PYTHON:-/usr/bin/python3} -c "import json; j = json.load(open('$D/j.json')); assert j['device'] == 'cuda' and 'f32' in j['engine']"
check summary_says_engine sh -c "$collect $model --random 500 --device cuda --compute bf16 -o $D/j.h5 2>/dev/null | grep -q '^on .*bf16'"
check recorded ${PYTHON:-/usr/bin/python3} -c "
import h5py
text = lambda x: x.decode() if isinstance(x, bytes) else x
f = h5py.File('$D/bf16.m.h5')
p = {k: text(v) for k, v in f['parameters'].attrs.items()}
assert (p['device'], p['compute'], p['gpus'], p['batch']) == ('cuda', 'bf16', '1', '16384'), p
q = {k: text(f['provenance'].attrs[k]) for k in ('gpu', 'driver')}
assert q['gpu'] != 'none' and q['driver'] != 'none', q
assert text(h5py.File('$D/cpu.m.h5')['provenance'].attrs['gpu']) == 'none'"
"$collect" $text --device cuda --compute bf16 --moments -o "$D/bf16.alone.h5" 2>"$said"
"$collect" $text --device cuda --moments --resume -o "$D/bf16.alone.h5" 2>"$said"
check other_compute_is_refused says "$said" "compute was 'bf16', is now 'f32'"
"$collect" $text --device cpu --moments --resume -o "$D/alone.m.h5" 2>"$said"
check other_device_is_refused says "$said" "was '"

# ---- a value that does not fit, and one that is none ----
"$B/tests/tool_checkpoint" -l 2 "$D/large"
${PYTHON:-/usr/bin/python3} - "$D/large" <<'END'
import json, struct, sys
path = sys.argv[1] + "/model.safetensors"
data = bytearray(open(path, "rb").read())
n = struct.unpack("<Q", data[:8])[0]
head = json.loads(data[8:8 + n])
t = head["model.layers.1.self_attn.v_proj.weight"]
begin, end = t["data_offsets"]
for at in range(8 + n + begin, 8 + n + end, 4):
    data[at:at + 4] = struct.pack("<f", 3e4)
open(path, "wb").write(data)
END
refused too_large_for_f16 'which overflows f16; use --dtype bf16 or f32' "$D/large" --random 300 --device cuda

# ---- snapshots ----
run="$collect $model --random 700 --seed 3 --seq-len 30 --batch 90 --rope both --device cuda -q"
check snapshots $run --moments -o "$D/m.h5" --snapshots 2,100,180,181,235,700
check all_is_as_without_snapshots sh -c "$run --moments -o $D/plain.h5 && exec ${PYTHON:-/usr/bin/python3} tests/tools/tool_compare_h5.py same $D/plain.h5 $D/m.h5"
for pair in 2:30 100:120 180:180 181:210 235:240 700:700; do
  asked=${pair%:*} real_n=${pair#*:}
  $run --tokens "$real_n" --moments -o "$D/ref.h5" || echo "not ok run_of_$real_n"
  check snapshot_${asked}_is_a_run_of_$real_n compare same "$D/ref.h5" "$D/m.$asked.h5"
done

# ---- killed and interrupted ----
options="$model --random 60000 --seq-len 40 --batch 400 --rope both --device cuda --save-every 0 -q --snapshots 1000,30000"
check undisturbed "$collect" $options --moments="$D/ref.m" -o "$D/ref"
x=$D/killed
for wait in 0 0.1 0.03; do
  : >"$D/mark"
  "$collect" $options --moments="$x.m" -o "$x" --resume 2>>"$D/killed.log" & pid=$!
  for i in $(seq 1000); do [ "$x.state" -nt "$D/mark" ] && break; sleep 0.01; done
  sleep $wait
  kill -KILL $pid 2>/dev/null
  wait $pid 2>/dev/null
done
check killed_leaves_no_result test ! -e "$x"
check killed_then_resumed "$collect" $options --moments="$x.m" -o "$x" --resume
check killed_goes_on says "$D/killed.log" 'going on after'
check killed_files_are_the_same compare same "$D/ref" "$x" "$D/ref.m" "$x.m"
check killed_snapshots_are_the_same compare same "$D/ref.m.1000.h5" "$x.m.1000.h5" "$D/ref.m.30000.h5" "$x.m.30000.h5"
x=$D/term
: >"$D/mark"
"$collect" $options --moments="$x.m" -o "$x" >"$said" 2>&1 & pid=$!
for i in $(seq 1000); do [ "$x.state" -nt "$D/mark" ] && break; sleep 0.01; done
kill -TERM $pid
wait $pid
check interrupted_gets_status_1 test $? -eq 1
check interrupted_says_how_to_go_on says "$said" 'what was recorded is kept; to continue: the same command with --resume'
check interrupted_resumed "$collect" $options --moments="$x.m" -o "$x" --resume
check interrupted_files_are_the_same compare same "$D/ref" "$x" "$D/ref.m" "$x.m"

# ---- two GPUs that hold the model between them; ranks with a GPU each, or one for all ----
if "$collect" $text --device cuda --batch 2048 --gpus 2 --dtype f32 --moments="$D/two.m.h5" -o "$D/two.h5" 2>"$said"; then
  check two_gpus_moments compare near "$D/gpu.m.h5" "$D/two.m.h5" 1e-5
  check two_gpus_dump compare near "$D/gpu.h5" "$D/two.h5" 1e-5
  check two_gpus_moments_are_sums_of_the_dump compare moments "$D/two.h5" "$D/two.m.h5"
elif grep -q 'can be used here' "$said"; then echo "skip two_gpus: there is one"
else echo "not ok two_gpus: $(head -1 "$said")"; fi
if command -v mpirun >/dev/null && grep -aq MPI_Allreduce "$collect"; then
  launch=mpirun
  mpirun --version 2>/dev/null | grep -q 'Open MPI' && launch='mpirun --oversubscribe --allow-run-as-root --bind-to none'
  check ranks timeout 60 $launch -n 2 "$collect" $text --device cuda --batch 2048 --moments -o "$D/ranks.m.h5"
  check ranks_add_up compare near "$D/gpu.m.h5" "$D/ranks.m.h5" 1e-12
else
  echo "skip ranks: no mpirun, or built without MPI"
fi
