#!/bin/sh
# The whole calibration of a model on one GPU, as a user runs it: every program from start to end, reading the checkpoint included.
#   scripts/bench_calibration_gpu.sh [FOLDER [OUT]]
#
# FOLDER (default /dev/shm, or /var/tmp): holds the checkpoint, the published SHAPE (llama-3.1-8b; KEYS: "num_hidden_layers=2 ..." for a
# smaller one) with random weights in bf16, 16 GB, which is written first and removed at the end; writing it is not calibration and not
# counted. OUT: a folder that keeps what the programs print, the table as calibration.csv and the small result files.
# Token ids are random, sequences of SEQ_LEN (512). Times do not depend on what weights and tokens say, but for the widths that are fitted.
# Steps run REPEAT (2) times, the long ones once: the error table, 2 layers KV-heads 6 runs of SCAN_TOKENS (2048; 0: no table), each from its
# layer on; the backward pass over MANY_TOKENS (65536) in the place of FEW_TOKENS (16384), and in float32 (F32=0: not).
# Some four minutes on an H200 with 16 cores. DEVICE=cpu COMPUTE=f32: on the CPU, for a small shape.
set -eu
B=${BUILD:-build}
if [ -n "${1:-}" ]; then D=$1; elif [ -w /dev/shm ]; then D=/dev/shm; else D=/var/tmp; fi
T=$(mktemp -d "$D/kvdim-calibration.XXXXXX")
trap 'rm -rf "$T"' EXIT INT TERM
O=${2:-$T/out}
mkdir -p "$O"
shape=${SHAPE:-llama-3.1-8b} device=${DEVICE:-cuda} compute=${COMPUTE:-bf16} len=${SEQ_LEN:-512} repeat=${REPEAT:-2}
moments=${MOMENT_TOKENS:-65536} few=${FEW_TOKENS:-16384} many=${MANY_TOKENS:-65536} scan=${SCAN_TOKENS:-2048}
csv=$O/calibration.csv

echo "# $(date -u +%F), $("$B/bin/kvdim-sensitivity" --version | head -n 1), $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo 'no GPU'), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) CPUs, Linux $(uname -r)"
now() { date +%s.%N; }
t0=$(now)
# shellcheck disable=SC2086
"$B/tests/tool_shape" "$shape" "$T/model" dtype=bf16 ${KEYS:-}
echo "# $shape ${KEYS:-}: $(du -sm "$T/model" | cut -f1) MiB of bf16 in $D, written in $(echo "$t0 $(now)" | awk '{ printf "%.1f", $2 - $1 }') s (not counted)"
vocab=$(sed -n 's/.*"vocab_size": *\([0-9]*\).*/\1/p' "$T/model/config.json")
most=$(printf '%s\n' "$moments" "$few" "$many" | sort -n | tail -n 1)
ids() { # TOKENS SEED
  awk -v n="$1" -v seed="$2" -v len="$len" -v v="$vocab" 'BEGIN { srand(seed)
    for (i = 0; i < n; i++) printf "%d%s", int(rand() * v), (i + 1) % len ? "," : "\n"
    if (n % len) print "" }'
}
ids "$most" 1 >"$T/ids.csv"
ids "$scan" 2 >"$T/scan.csv"

echo 'step,device,compute,tokens,wall_s,peak_host_MiB' >"$csv"
printf '%-58s %8s %10s\n' step 'wall s' 'host MiB'
# step NAME DEVICE COMPUTE TOKENS COMMAND...
step() {
  name=$1 on=$2 type=$3 tokens=$4; shift 4
  if ! "$B/tests/tool_rusage" "$@" >"$O/$name-$tokens-$type.json" 2>"$T/use"; then
    echo "not ok $name: $(cat "$T/use")"
    exit 1
  fi
  wall=$(tail -n 1 "$T/use" | cut -d' ' -f1) peak=$(tail -n 1 "$T/use" | cut -d' ' -f2)
  echo "$name,$on,$type,$tokens,$wall,$peak" >>"$csv"
  printf '%-58s %8s %10s\n' "$name, $on $type, $tokens tokens" "$wall" "$peak"
}
P=$B/bin
place="--device $device --compute $compute"
# sensitivity TOKENS COMPUTE OUT
sensitivity() {
  # shellcheck disable=SC2086
  step sensitivity $device "$2" "$1" "$P/kvdim-sensitivity" "$T/model" --ids "$T/ids.csv" --tokens "$1" --seq-len "$len" --device $device --compute "$2" --json -q -o "$T/$3"
}
short() {
  # shellcheck disable=SC2086
  step moments $device $compute "$moments" "$P/kvdim-collect" "$T/model" --ids "$T/ids.csv" --tokens "$moments" --seq-len "$len" --moments $place --json -q -o "$T/m.h5"
  step spectrum $device f64 "$moments" "$P/kvdim-spectrum" "$T/m.h5" --pair qk,vw,bqk,bvw --device $device --json -q -o "$T/s.h5"
  sensitivity "$few" $compute f.h5
  step fit-by-loss cpu f64 "$few" "$P/kvdim-fit" "$T/f.h5" --overall-p 0.1:0.7:0.1 --by-loss --json -q -o "$O/fisher-rates.h5"
}
short
if [ "$scan" -gt 0 ]; then
  # shellcheck disable=SC2086
  step scan-errors $device $compute "$scan" "$P/kvdim-eval" "$T/model" --ids "$T/scan.csv" --tokens "$scan" --seq-len "$len" --spectrum "$T/s.h5" --method balanced --scan-errors $place --json -q -o "$O/error-table.h5"
  step fit-by-table cpu f64 "$scan" "$P/kvdim-fit" "$T/s.h5" --overall-p 0.1:0.7:0.1 --error-table "$O/error-table.h5" --json -q -o "$O/balanced-rates.h5"
fi
while [ "$repeat" -gt 1 ]; do
  short
  repeat=$((repeat - 1))
done
[ "$many" -le "$few" ] || sensitivity "$many" $compute f.h5
[ $compute = f32 ] || [ "${F32:-1}" = 0 ] || sensitivity "$few" f32 f32.h5
awk -F, 'NR > 1 { k = $1 "," $4 "," $3; if (!(k in n)) order[++m] = k; n[k]++; sum[k] += $5; if (!(k in lo) || $5 < lo[k]) lo[k] = $5; if ($5 > hi[k]) hi[k] = $5 }
  END { for (i = 1; i <= m; i++) { k = order[i]; split(k, x, ","); printf "%s, %s, %s tokens: %.2f s (%.2f to %.2f, %d runs)\n", x[1], x[3], x[2], sum[k] / n[k], lo[k], hi[k], n[k] } }' "$csv"
