#!/bin/sh
# The commands of `make bench-gpu`. Usage: scripts/bench_gpu.sh OUT_DIR [SAMPLES], with ATTN=the program (default build/bin/kvdim-attn). Every file
# is one run of kvdim-attn with its own measured ceilings and its own rivals; docs/kernels.md says how to read them. Between
# three and four minutes on an H200 with the default of 30 samples, a third of it cuDNN looking for its fastest engines.
# ONLY, names of the files below (default all), lets several GPUs divide them.
#
#   prefill           1 x 16384 and 2 x 8192 against cuDNN: equal widths 128 to 32, kvdim25m and wide at p = 0.1 to 0.8
#   decode            64 x 8192 and 1 x 131072, the same
#   rivals-*          every implementation at p = 0, 0.5 and 0.6
#   mha               decode 1 x 65536 of 32 heads without GQA, p = 0.5: the shape of Palu's own kernel
#   schedules-*       schedulers none, papers, ours; equal and ragged lengths
#   sizes-*           short to long, one request to many, p = 0 and 0.5
#   sharp-*           inputs with outliers, fp16 and bf16, ragged
set -u
OUT=${1:?usage: bench_gpu.sh OUT_DIR [SAMPLES]}
SAMPLES=${2:-30}
A=${ATTN:-build/bin/kvdim-attn}
W=data/widths/lists.csv
mkdir -p "$OUT" || exit 1

# cuDNN and cuBLAS are looked for by the loader; a PyTorch in python3 brings them along.
for name in cudnn cublas cu13; do
  found=$(python3 -c "import nvidia.$name as m; print(list(m.__path__)[0] + '/lib')" 2>/dev/null) &&
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$found
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}

status=0
# run NAME OPTIONS...: a row that is wrong fails the whole, but the rest is still measured.
run() {
  name=$1; shift
  case " ${ONLY:-$name} " in *" $name "*) ;; *) return ;; esac
  known="${known:-} $name"
  start=$(date +%s)
  "$A" "$@" --samples "$SAMPLES" -o "$OUT/$name.h5" >"$OUT/$name.txt" 2>"$OUT/$name.log" || status=1
  grep -v '^attn: ' "$OUT/$name.log" >"$OUT/$name.log.new"; mv "$OUT/$name.log.new" "$OUT/$name.log"
  echo "== $name, $(($(date +%s) - start)) s"
  cat "$OUT/$name.txt" "$OUT/$name.log"
  [ -s "$OUT/$name.log" ] || rm -f "$OUT/$name.log"
}

equal="--dims 128 --dims 96 --dims 64 --dims 48 --dims 32"
lists=
for p in 10 20 30 40 50 60 70 80; do lists="$lists --dims $W:kvdim25m-p$p --dims $W:wide-p$p"; done
few="--dims 128 --dims $W:kvdim25m-p50 --dims $W:kvdim25m-p60 --dims $W:wide-p50 --dims $W:wide-p60"
rivals="--dims 128 --dims $W:kvdim25m-p50 --dims $W:kvdim25m-p60 --dims $W:wide-p50"
two="--dims 128 --dims $W:kvdim25m-p50"

run prefill --phase prefill --size 1x16384,2x8192 --impl cuda,cudnn $equal $lists
run decode --phase decode --size 64x8192,1x131072 --impl cuda,cudnn $equal $lists
run rivals-prefill --phase prefill --size 1x16384,2x8192 --impl cuda,cuda-mma,cuda-dense,cudnn,cudnn-padded,cudnn-grouped $rivals
run rivals-decode --phase decode --size 64x8192,1x131072 --impl cuda,cuda-dense,cudnn,cudnn-padded,cudnn-grouped,palu $rivals
run mha --phase decode --size 1x65536 --heads 32 --kv-heads 32 --impl cuda,cuda-dense,cudnn,palu --dims 64
run schedules-prefill --phase prefill --size 1x8192,1x16384 --schedule none,papers,ours --impl cuda,cudnn $few
run schedules-prefill-ragged --phase prefill --size 16x2048 --ragged lognormal --schedule none,papers,ours --impl cuda,cudnn $few
run schedules-decode --phase decode --size 64x8192,1x131072 --schedule none,papers,ours --impl cuda,cudnn $few
run schedules-decode-ragged --phase decode --size 64x8192 --ragged lognormal --schedule none,papers,ours --impl cuda,cudnn $few
run schedules-decode-one-long --phase decode --size 64x65536 --ragged one-long --schedule none,papers,ours --impl cuda,cudnn $two
run sizes-prefill --phase prefill --size 1x1024,1x4096,8x2048,4x4096,1x32768 --impl cuda,cudnn $two
run sizes-decode --phase decode --size 1x1024,1x8192,1x32768,16x1024,16x8192,16x32768,128x1024,256x1024 --impl cuda,cudnn $two
run sharp-prefill --phase prefill --size 4x3000 --ragged lognormal --data sharp --dtype f16,bf16 --impl cuda,cuda-mma,cudnn $few
run sharp-decode --phase decode --size 16x6000 --ragged lognormal --data sharp --dtype f16,bf16 --impl cuda,cudnn $few
for name in ${ONLY:-}; do
  case " ${known:-} " in *" $name "*) ;; *) echo "bench_gpu.sh: ONLY has '$name', which is no file of it" >&2; exit 2 ;; esac
done
exit $status
