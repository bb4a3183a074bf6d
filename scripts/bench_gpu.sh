#!/bin/sh
# What `make bench-gpu` runs: scripts/bench_gpu.sh OUT_DIR, with ATTN=the program (default build/bin/kvdim-attn). Every file is one
# run of kvdim-attn, measured on its own against rivals of the same run; docs/kernels.md says how to read them. SAMPLES=30.
#
#   prefill.h5      1 x 16384 and 2 x 8192: equal widths 128 to 32, kvdim25m and wide at p = 0.1 to 0.8, ours against cuDNN dense
#   decode.h5       64 x 8192 and 1 x 131072: the same widths; Palu where its ranks allow
#   rivals.h5       every implementation in both phases at p = 0.5 and 0.6
#   schedules.h5    schedulers none, papers, ours: 1 x 8192 and ragged
#   sizes.h5        short to long, one request to many, p = 0 and 0.5
#   sharp.h5        inputs with outliers, fp16 and bf16, ragged
set -u
OUT=${1:?usage: bench_gpu.sh OUT_DIR}
A=${ATTN:-${BUILD:-build}/bin/kvdim-attn}
SAMPLES=${SAMPLES:-30}
W=data/widths
mkdir -p "$OUT"

# cuDNN is looked for by the loader; a PyTorch in python3 brings one along.
for name in cudnn cublas; do
  found=$(python3 -c "import nvidia.$name as m; print(list(m.__path__)[0] + '/lib')" 2>/dev/null) &&
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$found
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}

status=0
# run NAME OPTIONS...: a row that is wrong fails the whole, but the rest is still measured.
run() {
  name=$1; shift
  echo "== $name"
  start=$(date +%s)
  "$A" "$@" --samples "$SAMPLES" -o "$OUT/$name.h5" >"$OUT/$name.txt" 2>"$OUT/$name.log" || status=1
  cat "$OUT/$name.txt"; grep -v '^attn: ' "$OUT/$name.log"
  echo "$name: $(($(date +%s) - start)) s"
}

equal="--dims 128 --dims 96 --dims 64 --dims 48 --dims 32"
fitted=; wide=
for p in 10 20 30 40 50 60 70 80; do fitted="$fitted --dims $W/kvdim25m-p$p.csv"; wide="$wide --dims $W/wide-p$p.csv"; done
few="--dims $W/kvdim25m-p50.csv --dims $W/kvdim25m-p60.csv --dims $W/wide-p50.csv --dims $W/wide-p60.csv"

run prefill --phase prefill --size 1x16384,2x8192 --impl cuda,cudnn $equal $fitted $wide
run decode --phase decode --size 64x8192,1x131072 --impl cuda,cudnn,palu $equal $fitted $wide
run rivals --phase prefill,decode --size 2x8192 --impl cuda,cuda-mma,cuda-dense,cudnn,cudnn-padded,cudnn-grouped,palu --dims 128 $few
run schedules --phase prefill,decode --size 1x8192,16x4096 --ragged lognormal --schedule none,papers,ours --impl cuda,cudnn --dims 128 $few
run sizes --phase prefill,decode --size 1x1024,1x4096,8x2048,1x32768,16x8192 --impl cuda,cudnn --dims 128 --dims $W/kvdim25m-p50.csv
run sharp --phase prefill,decode --size 4x3000 --ragged lognormal --data sharp --dtype f16,bf16 --impl cuda,cuda-mma,cudnn,palu --dims 128 $few
exit $status
