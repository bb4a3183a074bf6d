#!/bin/sh
# A small leaderboard on one GPU, from end to end: a Hugging Face folder with a published shape and random weights (config.json, tokenizer,
# shards and index), the estimate, calibration, RULER at 4096 tokens under methods of the GPU engine, and the page. Each line names the
# seconds that a step took. Scores and spectra of random weights mean nothing.
# usage: card.sh [SHAPE [FOLDER]]; SHAPE as kvdim-jct --shape takes (llama-3.1-8b, qwen-3-8b), FOLDER for weights and results (about 20 GB)
# Programs: make -j16 $(echo build/bin/kvdim-{collect,spectrum,sensitivity,tasks,report}) build/tests/tool_shape
set -eu
cd "$(dirname "$0")/../.."
shape=${1:-llama-3.1-8b} folder=${2:-$(mktemp -d)} bin=${BUILD:-build}
mkdir -p "$folder"
began=$(date +%s)
# Codes of keys before RoPE, which the engine has in models without norms of Q and K.
case $shape in qwen-3*) levels= ;; *) levels=kvquant,bits=4,outliers=0 ;; esac
since() { echo "== $(($(date +%s) - began)) s: $*"; }
ls /dev/nvidia[0-9]* >/dev/null 2>&1 || { echo "skip: no GPU"; exit 0; }
nvidia-smi -L 2>/dev/null || true
since "weights of $shape in $folder/$shape"
sh experiments/step.sh "$folder/$shape" "$bin/tests/tool_shape" "$shape" "$folder/$shape" shard-mb=4000 tokenizer=data/models/kvdim-6m/tokenizer.json
ls -l "$folder/$shape"
since "the leaderboard"
make -C experiments/leaderboard MODEL="$folder/$shape" TEXTS="$PWD/data/texts/stories.txt $PWD/data/texts/articles.txt" OUT="$folder/results" BIN="$PWD/$bin/bin" \
  GPU=1 TOKENS="${TOKENS:-1024}" RULER=niah_single_1,vt ITEMS="${ITEMS:-4}" LENGTH="${LENGTH:-4096}" PLOTS=0 GROUPS="tokens bits dims" \
  POINTS_tokens="h2o,heavy=0.25,recent=0.25 keyformer,keys=0.25,recent=0.25 snapkv,budget=0.25 streaming,recent=0.25 tova,budget=0.25 knorm,budget=0.25 keydiff,budget=0.25" \
  POINTS_bits="kivi,bits=4/2 $levels" POINTS_dims="zack,p=0.5 fdc,p=0.5 balanced,p=0.5"
since "done"
