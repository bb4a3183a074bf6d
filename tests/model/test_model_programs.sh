#!/bin/sh
# Programs on models with attention sinks, and on a GGUF file.
# Attention sinks in every cache: methods that keep nearly everything are nearly the model. Without sinks each of them has
# a divergence of 1e-2.
. tests/lib/cases.sh

awk 'BEGIN { s = 1; for (i = 0; i < 6; i++) { for (j = 0; j < 40; j++) { s = (s * 16807) % 2147483647
  printf "%s%d", j ? "," : "", s % 80 } print "" } }' >"$D/ids.csv"

M=tests/data/families/gpt-oss
# near NAME PROMPT BOUND METHOD...: the largest divergence from the model
near() {
  name=$1 prompt=$2 bound=$3; shift 3
  if "$B/bin/kvdim-eval" $M --ids "$D/ids.csv" --seq-len 40 --prompt $prompt "$@" -q --json -o "$D/e.h5" >"$D/e.json" 2>"$D/err" &&
     values kl "$D/e.json" | awk -v b=$bound '{ n++; if (!($1 < b)) exit 1 } END { exit !n }'
  then ok "$name"; else not_ok "$name" "$(cat "$D/err")" "$(values kl "$D/e.json" | paste -s -d' ')"; fi
}
near "codes of 8 bits" 20 1e-4 --method hetero,k=8,v=8 --method kivi,bits=8,group=4,residual=4
near "codes of 8 bits from the first token on" 1 1e-4 --method hetero,k=8,v=8
near "a token dropped by the last row" 20 1e-9 --method h2o,heavy=19,recent=20
near "tokens ranked by denominators" 20 1e-3 --method importance+hetero,g=0.9,k=8,v=8,lk=7,lv=7
near "latents of the prompt" 20 5e-2 --method strawman,p=0.09

if "$B/bin/kvdim-collect" $M --ids "$D/ids.csv" --seq-len 40 --attention="$D/t.h5" -q -o "$D/a.h5" 2>"$D/err"
then ok "statistics of attention"; else not_ok "statistics of attention" "$(cat "$D/err")"; fi

# Gradients through experts and sinks; test_backward compares them with PyTorch.
if "$B/bin/kvdim-collect" $M --ids "$D/ids.csv" --seq-len 40 --fisher="$D/f.h5" --moments="$D/m.h5" -q -o "$D/b.h5" 2>"$D/err"
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
