#!/bin/sh
# Times decode steps of the methods that run in the CUDA engine without calibration, next to `none`: Llama 3.1 8B with random weights, bf16.
# Usage: scripts/time_methods_steps.sh OUT_DIR, with JCT=the program (default build/bin/kvdim-jct). Needs a GPU with 100 GB.
# Writes OUT_DIR/methods-steps.h5, with a row per method, number of requests (1, 2, 4, 8, 9, 16, 17, 32, 33, 64) and tokens of each request (16 to 8192),
# and OUT_DIR/methods-steps.txt, what kvdim-jct prints.
#
# kvdim-jct --iterations times single steps on a cache of random numbers, so no prompt of 8192 tokens runs. The longest request has 16 + 8181 tokens: 8192
# before the first step, three samples, and two more. Budgets are fractions of the longest request. kvdim-jct has no column with the least time that the
# bytes of a step take; `weight_bytes` and, for `none`, 131,072 bytes per token give the bytes. leankv and mpcache are left out, because their caches
# cannot start at any position, so every point would run its prompts.
set -u
OUT=${1:?usage: time_methods_steps.sh OUT_DIR}
J=${JCT:-build/bin/kvdim-jct}
mkdir -p "$OUT" || exit 1
"$J" --shape llama-3.1-8b --input-len 16 --output-len 8181 --steps 1 --batch 1 --max-batch 64 --iterations --repeats 3 \
  --method none --method uniform,p=0.5 --method zack,p=0.5 --method zdc,p=0.5 \
  --method h2o --method keyformer --method snapkv --method streaming --method tova --method knorm --method keydiff \
  --method expectedattention --method pyramidkv --method adakv --method prefixkv --method cake --method windowkv --method taskkv --method kvzip --method quest --method alisa --method mpcache \
  --method scissorhands --method kvcrush --method d2o --method ems --method elasticcache --method kvmerger \
  --method kivi,bits=4 --method kivi,bits=2 --method kvquant,bits=4 \
  --method fp8 --method mxfp4 --method nvfp4 --method turboquant,bits=4,qjl=0 --method turboquant,bits=4 --method comet --method allot \
  --method hetero --method rotatekv --method gear --method waterfill,block=64 --method kvtc,bits=2,window=0,lanes=1 --method cachegen,group=8,groups=8,lanes=1 --method zack+kivi,p=0.5,bits=4 \
  --method palu,p=0.5 --method strawman,p=0.5 \
  -o "$OUT/methods-steps.h5" >"$OUT/methods-steps.txt" 2>"$OUT/methods-steps.log"
status=$?
cat "$OUT/methods-steps.txt"
grep -v '^jct: ' "$OUT/methods-steps.log" | tail -20
exit $status
