#!/bin/sh
# Times the variants of the decode kernel beside cuDNN, in about a minute. Usage: scripts/time_decode_variants.sh OUT_DIR, from the root of the
# tree, with ATTN=the program (default build/bin/kvdim-attn) and TESTS=the folder of the tests (default build/tests). Device tests come first, then a
# time line, then kvdim-attn's rows, and last a table: a line per case, a column of microseconds per variant.
set -u
OUT=${1:?usage: time_decode_variants.sh OUT_DIR}
A=${ATTN:-build/bin/kvdim-attn}
T=${TESTS:-build/tests}
W=data/widths
mkdir -p "$OUT" || exit 1
for name in cudnn cublas cu13; do
  found=$(python3 -c "import nvidia.$name as m; print(list(m.__path__)[0] + '/lib')" 2>/dev/null) &&
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$found
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
status=0
start=$(date +%s)
for test in gpu_decode_plan gpu_decode; do
  timeout 60 "$T/$test" >"$OUT/$test.txt" 2>&1 || status=1
  echo "== $test: $(grep -c '^ok ' "$OUT/$test.txt") ok, $(grep -c '^not ok' "$OUT/$test.txt") not ok, $(($(date +%s) - start)) s"
  grep -v '^ok ' "$OUT/$test.txt" | head -40
done
grep 'ours' "$OUT/gpu_decode_plan.txt" | grep 'layer 2'
timeout 60 "$T/bench_gpu_decode_timeline" 2>&1 | tee "$OUT/timeline.txt"
echo "== time line, $(($(date +%s) - start)) s"
ladder=cuda-busy,cuda,cuda-u,cuda-a,cuda-f,cuda-f16,cuda-f2048,cuda-f128K,cuda-2048,cuda-l,cuda-lw,cuda-la,cudnn
run() {
  name=$1; shift
  timeout 120 "$A" --phase decode --dims 128 --dims $W/kvdim25m-p50.csv --impl "$ladder" --samples 30 "$@" -o "$OUT/$name.h5" \
    >"$OUT/$name.txt" 2>"$OUT/$name.log" || status=1
  cat "$OUT/$name.txt"
  grep -v '^attn: ' "$OUT/$name.log"
  echo "== $name, $(($(date +%s) - start)) s"
}
run variants --size 1x1024,1x2048,1x4096,1x8192,1x16384,1x32768,16x1024,64x8192,1x131072
run variants-ragged --size 64x8192,24x1300 --ragged lognormal
{ for i in 1 2 3 4 5 6 7 8 9 10; do echo 1200; done; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22; do echo 16; done; } >"$OUT/uneven.csv"
run variants-uneven --lengths "$OUT/uneven.csv"
# table: medians in microseconds, then cuDNN's time divided by each
awk -v ladder="$ladder" '
  FNR == 1 { file = FILENAME; sub(/.*\//, "", file); sub(/\.txt$/, "", file) }
  $1 == "decode" {
    key = file " " $5 "x" $7 " p=" $9
    if (!(key in seen)) { seen[key] = ++n; name[n] = key }
    us[key, $2] = $10; wrong += /WRONG/
  }
  END {
    k = split(ladder, v, ",")
    for (part = 0; part < 2; part++) {
      printf "%-36s", part ? "times cudnn" : "us"
      for (i = 1; i <= k; i++) printf " %10s", v[i]
      print ""
      for (c = 1; c <= n; c++) {
        printf "%-36s", name[c]
        for (i = 1; i <= k; i++) printf part ? " %10.3f" : " %10.2f", part ? (us[name[c], v[i]] ? us[name[c], "cudnn"] / us[name[c], v[i]] : 0) : us[name[c], v[i]]
        print ""
      }
    }
    print wrong + 0 " wrong rows"
  }' "$OUT/variants.txt" "$OUT/variants-ragged.txt" "$OUT/variants-uneven.txt" | tee "$OUT/table.txt"
echo "== $(($(date +%s) - start)) s, status $status"
exit $status
