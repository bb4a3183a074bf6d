#!/bin/sh
# kvdim-collect on a GPU with the shape of Llama 3.1 8B and random weights:
#   scripts/bench_collect_gpu.sh [FOLDER [TOKENS]]     FOLDER on the disk that is to be measured (default /var/tmp)
#
# Moments of TOKENS random tokens (1048576; a 32nd of that in float32) in sequences of 4096: tokens a second, the share of the time that the
# statistics take, and for bf16 what the products come to next to one large product measured in the same run. Then a dump of 32768 tokens in
# bf16, and what of the device is written without a forward pass, against a plain write and fsync of as many bytes in the same folder.
# About a minute and a half on an H200, 15 GB on the disk.
set -eu
B=${BUILD:-build}
D=${1:-/var/tmp}
N=${2:-1048576}
T=$(mktemp -d "$D/kvdim-bench.XXXXXX")
trap 'rm -rf "$T"' EXIT INT TERM
shape=llama-3.1-8b
field() { sed -n "s/^ *\"$1\": \"\{0,1\}\([^\"]*[^\",]\)\"\{0,1\},\{0,1\}\$/\1/p" "$T/json" | head -n 1; }
collect() { "$B/bin/kvdim-collect" --shape $shape --seq-len 4096 --device cuda --json -q "$@" >"$T/json"; }

"$B/bin/kvdim-collect" --version | head -n 1
df -h "$D" | tail -n 1
"$B/tests/bench_gpu_forward" shape:$shape 4096 4 >"$T/forward"
grep -E '^(ceiling|[0-9]+ x)' "$T/forward"
# FLOP of a token in products, from the line of the pass alone.
flop=$(sed -n 's/^4 x 4096 tokens: .*, \([0-9]*\) tokens\/s, \([0-9.]*\) TFLOP.*/\1 \2/p' "$T/forward" | awk '{ print $2 * 1e12 / $1 }')
ceiling=$(sed -n 's/^ceiling: \([0-9.]*\) .*/\1/p' "$T/forward")
for compute in bf16 f32; do
  n=$N
  [ $compute = bf16 ] || n=$((N / 32))
  collect --random "$n" --compute $compute --moments -o "$T/m.h5"
  echo "$compute $n $(field start_seconds) $(field tokens_per_s) $(field forward) $(field record) $(field write) $flop $ceiling" |
    awk '{ printf "moments, %s, %d tokens: ready after %.1f s, then %.0f tokens/s (%.1f us a token): statistics %.1f %% of the forward pass; of all time saving %.1f %%",
             $1, $2, $3, $4, 1e6 / $4, 100 * $6 / $5, $7
           if ($1 == "bf16") printf "; products %.1f %% of the ceiling", 100 * $4 * $8 / ($9 * 1e12)
           print "" }'
done
echo "engine: $(field engine)"
"$B/tests/bench_gpu_dump" "$T" 3.2 | tee "$T/dump"
collect --random 32768 --compute bf16 --dtype bf16 -o "$T/d.h5"
plain=$(sed -n 's/.*fsync \([0-9.]*\) GB.*/\1/p' "$T/dump")
# Q, K and V alone: the weights are written before the first batch.
echo "$(field seconds) $(field start_seconds) $plain" |
  awk '{ gb = 32768 * 32 * 48 * 128 * 2 / 1e9; t = $1 - $2
         printf "kvdim-collect, dump of 32768 tokens, %.1f GB: %.2f GB/s until all is on the disk, %.2f of the plain write\n", gb, gb / t, gb / t / $3 }'
