#!/bin/sh
# Programs on models with latent attention (DeepSeek), with attention sinks, and on a GGUF file.
. tests/lib/cases.sh

awk 'BEGIN { s = 1; for (i = 0; i < 12; i++) { for (j = 0; j < 40; j++) { s = (s * 16807) % 2147483647
  printf "%s%d", j ? "," : "", s % 80 } print "" } }' >"$D/ids.csv"

# Latent attention: what is recorded, its spectrum, its bytes, and what is refused.
# refused NAME MESSAGE COMMAND...: the command fails with status 1 and one line that has the message.
refused() {
  name=$1 message=$2
  shift 2
  "$@" >"$D/out" 2>"$D/err"
  status=$?
  grep -v 'warning:' "$D/err" >"$D/errors"
  if [ $status -eq 1 ] && [ "$(wc -l <"$D/errors")" -eq 1 ] && grep -qF "$message" "$D/errors"
  then ok "$name"; else not_ok "$name" "status $status" "$(cat "$D/err")"; fi
}

for f in deepseek-v2 deepseek-v2-lite deepseek-v2-odd deepseek-v3 deepseek-v3-plain deepseek-v3-odd glm4-moe-lite youtu; do
  M=tests/data/families/$f
  if "$B/bin/kvdim-collect" $M --ids "$D/ids.csv" --seq-len 40 --rope both --dtype f32 --device cpu --moments="$D/m.h5" -q -o "$D/a.h5" 2>"$D/err" &&
     "$B/bin/kvdim-spectrum" "$D/m.h5" --pair qk,q,k,v,vw,wv -q -o "$D/s.h5" 2>>"$D/err" &&
     "$B/bin/kvdim-fit" "$D/s.h5" --overall-p 0.4 -q -o "$D/r.h5" 2>>"$D/err" &&
     "$B/bin/kvdim-eval" $M --ids "$D/ids.csv" --seq-len 40 --prompt 20 --method none --method h2o --method streaming \
       --device cpu -q --json -o "$D/e.h5" >"$D/e.json" 2>>"$D/err"
  then ok "$f: every program"; else not_ok "$f: every program" "$(cat "$D/err")"; continue; fi
  # Numbers of latent and rotated key in all layers, 2 bytes each, against two of that size for h2o's half.
  case $f in
    deepseek-v2 | deepseek-v2-lite | youtu) bytes=68 ;;
    deepseek-v2-odd) bytes=92 ;;
    deepseek-v3) bytes=84 ;;
    deepseek-v3-plain) bytes=34 ;;
    deepseek-v3-odd) bytes=52 ;;
    glm4-moe-lite) bytes=102 ;;
  esac
  if values bytes_per_token_dense "$D/e.json" | awk -v b=$bytes '$1 != "null" { if ($1 != b) exit 1; n++ } END { exit n < 1 }' &&
     values bytes_per_token_stored "$D/e.json" | awk -v b=$bytes 'NR == 1 { if ($1 != 2 * b) exit 1 } NR > 1 && !($1 < b) { exit 1 } END { exit NR < 3 }'
  then ok "$f: bytes per token"; else not_ok "$f: bytes per token" "$(grep bytes_per_token "$D/e.json")"; fi
  refused "$f: zack is refused" "one latent per token that is both: use none, or a method that only drops tokens" \
    "$B/bin/kvdim-eval" $M --ids "$D/ids.csv" --seq-len 40 --spectrum "$D/s.h5" --method zack,p=0.5 -q -o "$D/x.h5"
  refused "$f: kivi is refused" "method 'kivi' changes keys and values apart" \
    "$B/bin/kvdim-eval" $M --ids "$D/ids.csv" --seq-len 40 --method kivi -q -o "$D/x.h5"
  refused "$f: export is refused" "one latent per token that is both" \
    "$B/bin/kvdim-export" $M --spectrum "$D/s.h5" --rates "$D/r.h5" --method zack -q -o "$D/exported"
  cp "$D/a.h5" "$D/$f.a.h5" && cp "$D/s.h5" "$D/$f.s.h5"
done
M=tests/data/families/deepseek-v3
refused "sensitivity is refused" "has latent attention, whose gradients are not computed" \
  "$B/bin/kvdim-sensitivity" $M --ids "$D/ids.csv" --seq-len 40 -q -o "$D/x.h5"
if ! "$B/bin/kvdim-jct" $M --input-len 8 --output-len 4 -q -o "$D/x.h5" 2>"$D/err" &&
   grep -qF "has latent attention, which the serving engine does not compute" "$D/err"
then ok "the serving engine refuses"; else not_ok "the serving engine refuses" "$(cat "$D/err")"; fi

# On a GPU: the rows, bytes and predictions of the CPU; second moments are refused.
if ! "$B/bin/kvdim-collect" $M --ids "$D/ids.csv" --seq-len 40 --rope both --dtype f32 --device cuda -q -o "$D/g.h5" 2>"$D/err"; then
  if grep -q 'no CUDA' "$D/err"; then echo "skip a latent on a GPU: no CUDA"; else not_ok "a latent on a GPU" "$(cat "$D/err")"; fi
else
  if ${PYTHON:-python3} tests/tools/tool_compare_h5.py near "$D/$(basename $M).a.h5" "$D/g.h5" 1e-5 >"$D/log" 2>&1
  then ok "rows of a GPU"; else not_ok "rows of a GPU" "$(tail -n 3 "$D/log")"; fi
  refused "second moments on a GPU are refused" "which has latent attention, are summed on the CPU alone: use --device cpu" \
    "$B/bin/kvdim-collect" $M --ids "$D/ids.csv" --seq-len 40 --device cuda --moments -q -o "$D/x.h5"
  for device in cpu cuda; do
    "$B/bin/kvdim-eval" $M --ids "$D/ids.csv" --seq-len 40 --prompt 20 --method none --method h2o --device $device -q --json -o "$D/e.h5" 2>"$D/err" |
      sed -n '/"bytes_per_token_stored"/p; s/\("perplexity": [0-9]*\.[0-9]\{0,2\}\).*/\1/p' >"$D/$device.rows"
  done
  if [ -s "$D/cpu.rows" ] && cmp -s "$D/cpu.rows" "$D/cuda.rows"
  then ok "bytes and predictions of a GPU"; else not_ok "bytes and predictions of a GPU" "$(diff "$D/cpu.rows" "$D/cuda.rows")" "$(cat "$D/err")"; fi
fi

if ! ${PYTHON:-python3} -c 'import h5py' 2>/dev/null; then echo "skip what is recorded: no h5py"
elif ${PYTHON:-python3} - "$D" <<'PY' 2>"$D/err"
import sys, h5py, numpy as np
for name, rope in (("deepseek-v2", 6), ("deepseek-v2-lite", 4), ("deepseek-v2-odd", 8), ("deepseek-v3", 10),
                   ("deepseek-v3-plain", 6), ("deepseek-v3-odd", 4), ("glm4-moe-lite", 6), ("youtu", 6)):
    with h5py.File(f"{sys.argv[1]}/{name}.a.h5") as a, h5py.File(f"{sys.argv[1]}/{name}.s.h5") as s:
        k, pre, v = a["k"][:], a["k_pre"][:], a["v"][:]
        assert k.shape[1] == 1 and not np.any(v[..., :rope])
        assert np.array_equal(k[..., rope:], v[..., rope:]) and np.array_equal(pre[..., rope:], k[..., rope:])
        assert np.any(pre[..., :rope] != k[..., :rope])
        for layer in range(k.shape[0]):
            sigma = np.linalg.svd(k[layer, 0].astype(float), compute_uv=False)
            assert np.allclose(s["k/sigma"][layer, 0], sigma, rtol=1e-4), (name, layer)
PY
then ok "what is recorded"; else not_ok "what is recorded" "$(cat "$D/err")"; fi

# Attention sinks in every cache: methods that keep nearly everything are nearly the model. Without sinks each of them has
# a divergence of 1e-2.
head -n 6 "$D/ids.csv" >"$D/few.csv"
M=tests/data/families/gpt-oss
# near NAME PROMPT BOUND METHOD...: the largest divergence from the model
near() {
  name=$1 prompt=$2 bound=$3; shift 3
  if "$B/bin/kvdim-eval" $M --ids "$D/few.csv" --seq-len 40 --prompt $prompt "$@" -q --json -o "$D/e.h5" >"$D/e.json" 2>"$D/err" &&
     values kl "$D/e.json" | awk -v b=$bound '{ n++; if (!($1 < b)) exit 1 } END { exit !n }'
  then ok "$name"; else not_ok "$name" "$(cat "$D/err")" "$(values kl "$D/e.json" | paste -s -d' ')"; fi
}
near "codes of 8 bits" 20 1e-4 --method hetero,k=8,v=8 --method kivi,bits=8,group=4,residual=4
near "codes of 8 bits from the first token on" 1 1e-4 --method hetero,k=8,v=8
near "a token dropped by the last row" 20 1e-9 --method h2o,heavy=19,recent=20
near "tokens ranked by denominators" 20 1e-3 --method importance+hetero,g=0.9,k=8,v=8,lk=7,lv=7
near "latents of the prompt" 20 5e-2 --method strawman,p=0.09

if "$B/bin/kvdim-collect" $M --ids "$D/few.csv" --seq-len 40 --attention="$D/t.h5" -q -o "$D/a.h5" 2>"$D/err"
then ok "statistics of attention"; else not_ok "statistics of attention" "$(cat "$D/err")"; fi

# Gradients through experts and sinks; test_backward compares them with PyTorch.
if "$B/bin/kvdim-collect" $M --ids "$D/few.csv" --seq-len 40 --fisher="$D/f.h5" --moments="$D/m.h5" -q -o "$D/b.h5" 2>"$D/err"
then ok "information"; else not_ok "information" "$(cat "$D/err")"; fi

# A GGUF file: text by the tokenizer in it, weights out of blocks.
M=tests/data/gguf/text.gguf
head -c 3000 data/texts/stories.txt >"$D/text.txt"
if "$B/bin/kvdim-collect" $M --text "$D/text.txt" --seq-len 64 --dtype f32 --moments="$D/m.h5" -q -o "$D/a.h5" 2>"$D/err" &&
   "$B/bin/kvdim-spectrum" "$D/m.h5" --pair qk,vw -q -o "$D/s.h5" 2>>"$D/err" &&
   "$B/bin/kvdim-fit" "$D/s.h5" --overall-p 0.4 -q -o "$D/r.h5" 2>>"$D/err" &&
   "$B/bin/kvdim-eval" $M --text "$D/text.txt" --seq-len 64 --spectrum "$D/s.h5" --rates "$D/r.h5" --method zack \
     -q --json -o "$D/e.h5" >"$D/e.json" 2>>"$D/err"
then ok "every program"; else not_ok "every program" "$(cat "$D/err")"; exit; fi
if values full_rank_error "$D/e.json" | awk '$1 != "null" { if (!($1 > 0 && $1 < 1e-4)) exit 1; n++ } END { exit n < 1 }'
then ok "full rank is the model"; else not_ok "full rank is the model" "$(values full_rank_error "$D/e.json")"; fi

if ! ${PYTHON:-python3} -c 'import h5py' 2>/dev/null; then echo "skip what the file says: no h5py"; exit; fi
if ${PYTHON:-python3} - "$D/a.h5" <<'PY' 2>"$D/err"
import sys, h5py
with h5py.File(sys.argv[1]) as f:
    m = {k: v.decode() if isinstance(v, bytes) else v for k, v in f["model"].attrs.items()}
assert m["dtype"] == "q8_0" and m["family"] == "llama" and m["rope_layout"] == "half", m
assert m["vocab_size"] == 900, m
PY
then ok "what the file says"; else not_ok "what the file says" "$(cat "$D/err")"; fi
