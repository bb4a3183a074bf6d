#!/bin/sh
# Times decode steps of the methods that run in the CUDA engine, next to `none`: Llama 3.1 8B with random weights, bf16, 8192 tokens in each of 1, 16 and 64
# requests. Usage: scripts/time_methods_steps.sh OUT_DIR [PART...], with JCT=the program (default build/bin/kvdim-jct). Needs a GPU with 100 GB.
# PART is one of those below (default: all), so that GPUs can divide them. Each writes OUT_DIR/steps-PART.h5, and what kvdim-jct prints to steps-PART.txt.
#
# kvdim-jct --iterations --step-batch times single steps, three samples each. The longest request has 16 + 8181 tokens: 8192 before the first step, three samples,
# and two more. Budgets are fractions of the longest request. The cache of tokens, dims, bits and coded, and in levels of all methods but leankv, holds random
# numbers, so no prompt of 8192 tokens runs; that of blocks, computed and layers depends on the keys of a prompt, or on every token before, and the prompts run.
#
# The part answers times whole answers by build/tests/bench_gpu_generate instead: ITEMS (default 64) prompts of 4096 random tokens, 64 new tokens each,
# into OUT_DIR/answers.log; METHODS (default: all) are its methods.
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
steps="--batch 1 --max-batch 64 --iterations --step-batch 1,16,64 --repeats 3"
random="--input-len 16 --output-len 8181 --steps 1 $steps" prompts="--input-len 8181 --output-len 16 --steps 8 $steps"

every="none zack,p=0.5 fdc,p=0.5 uniform,p=0.5 balanced,p=0.5 matryoshka,p=0.5 palu,p=0.5 think,p=0.5 strawman,p=0.5 minicache xkv h2o keyformer
  scissorhands snapkv received+zack,p=0.4,p_u=0.7 streaming tova pyramidkv adakv expectedattention knorm keydiff quest d2o cake kvzip kvmerger prefixkv windowkv kvcrush ems
  elasticcache taskkv mpcache alisa a2ats shadowkv locret kivi,bits=4 hetero zipcache gear kvquant,bits=4 rotatekv allot fp8 mxfp4 nvfp4 turboquant,bits=4 cachegen kvtc
  comet vidkv xquant,bits=4 waterfill leankv zdc,p=0.4,p_u=0.7 mikv snapkv+kivi,bits=4 h2o+uniform,p=0.5 zack+kivi,p=0.5,bits=4"

[ $# -gt 0 ] || set -- tokens dims levels bits coded blocks computed layers
for part; do
  # shellcheck disable=SC2086
  case $part in
  tokens) run tokens $random none h2o keyformer snapkv streaming tova knorm keydiff expectedattention pyramidkv adakv prefixkv cake windowkv taskkv kvzip quest alisa \
    scissorhands kvcrush ;;
  dims) run dims $random none uniform,p=0.5 zack,p=0.5 palu,p=0.5 palu,p=0.25 strawman,p=0.5 think,p=0.5 zack+kivi,p=0.5,bits=4 ;;
  levels) run levels $prompts none zdc,p=0.4,p_u=0.7 received+zack,p=0.4,p_u=0.7 mikv leankv ;;
  bits) run bits $random none kivi,bits=4 kivi,bits=2 kvquant,bits=4 fp8 mxfp4 nvfp4 turboquant,bits=4,qjl=0 turboquant,bits=4 comet allot hetero rotatekv ;;
  blocks) run blocks $prompts none zipcache vidkv xquant,bits=4 ;;
  coded) run coded $random none waterfill,block=64 kvtc,bits=2,window=0,lanes=1 cachegen,group=8,groups=8,lanes=1 ;;
  computed) run computed $prompts none d2o ems elasticcache kvmerger mpcache,threshold=1e-5 a2ats shadowkv gear ;;
  layers) run layers $prompts none minicache xkv ;;
  answers) build/tests/bench_gpu_generate llama-3.1-8b "${ITEMS:-64}" 4096 64 ${METHODS:-$every} >"$OUT/answers.log" 2>&1 ;;
  *)
    echo "time_methods_steps.sh: no part '$part'; parts are tokens dims levels bits coded blocks computed layers answers" >&2
    exit 2
    ;;
  esac
done
