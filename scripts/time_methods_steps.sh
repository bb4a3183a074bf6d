#!/bin/sh
# Times decode steps of the methods that run in the CUDA engine, next to `none`: Llama 3.1 8B with random weights, bf16, 8192 tokens in each of 1, 16 and 64
# requests. Usage: scripts/time_methods_steps.sh OUT_DIR [PART...], with JCT=the program (default build/bin/kvdim-jct). Needs a GPU with 100 GB.
# PART is one of those below (default: all), so that GPUs can divide them. Each writes OUT_DIR/steps-PART.h5, and what kvdim-jct prints to steps-PART.txt.
#
# tokens, dims, bits, coded: kvdim-jct --iterations times single steps, three samples each, on a cache of random numbers, so no prompt of 8192 tokens runs. The
# longest request has 16 + 8181 tokens: 8192 before the first step, three samples, and two more. Budgets are fractions of the longest request.
# computed: methods whose cache depends on the keys of a prompt, or on every token before. Jobs compute the prompts; their TBT is that of 8 steps.
set -u
OUT=${1:?usage: time_methods_steps.sh OUT_DIR [PART...]}
shift
J=${JCT:-build/bin/kvdim-jct}
mkdir -p "$OUT" || exit 1

run() {
  part=$1
  shift
  options=
  for m; do case $m in --*) options="$options $m" ;; [0-9]*) options="$options $m" ;; *) options="$options --method $m" ;; esac; done
  # shellcheck disable=SC2086
  "$J" --shape llama-3.1-8b $options -o "$OUT/steps-$part.h5" >"$OUT/steps-$part.txt" 2>"$OUT/steps-$part.log"
  status=$?
  cat "$OUT/steps-$part.txt"
  grep -v '^jct: ' "$OUT/steps-$part.log" | tail -20
  [ $status -eq 0 ] || exit $status
}
steps="--input-len 16 --output-len 8181 --steps 1 --batch 1 --max-batch 64 --iterations --repeats 3"

[ $# -gt 0 ] || set -- tokens dims bits coded computed
for part; do
  # shellcheck disable=SC2086
  case $part in
  tokens) run tokens $steps none h2o keyformer snapkv streaming tova knorm keydiff expectedattention pyramidkv adakv prefixkv cake windowkv taskkv kvzip quest alisa \
    scissorhands kvcrush ;;
  dims) run dims $steps none uniform,p=0.5 zack,p=0.5 palu,p=0.5 strawman,p=0.5 zack+kivi,p=0.5,bits=4 ;;
  bits) run bits $steps none kivi,bits=4 kivi,bits=2 kvquant,bits=4 fp8 mxfp4 nvfp4 turboquant,bits=4,qjl=0 turboquant,bits=4 comet allot hetero rotatekv ;;
  coded) run coded $steps none waterfill,block=64 kvtc,bits=2,window=0,lanes=1 cachegen,group=8,groups=8,lanes=1 ;;
  computed) run computed --input-len 8181 --output-len 16 --steps 8 --batch 1,16,64 --repeats 1 none d2o ems elasticcache kvmerger mpcache gear ;;
  *)
    echo "time_methods_steps.sh: no part '$part'; parts are tokens dims bits coded computed" >&2
    exit 2
    ;;
  esac
done
