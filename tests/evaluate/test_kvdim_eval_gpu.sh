#!/bin/sh
# kvdim-eval on a GPU against the CPU, demo checkpoint: all methods, the search for a target, the error table, float32 and bf16.
# Skips where there is no GPU. $KEEP: a folder that keeps the results.
. tests/lib/cases.sh
EVAL=$B/bin/kvdim-eval MODEL=data/models/kvdim-6m TEXT=data/texts/stories.txt
if [ -n "${KEEP:-}" ]; then rmdir "$D"; trap - EXIT; D=$KEEP log=$KEEP/log; fi

printf '1,2,3,4\n' >"$D/ids.csv"
if ! $EVAL $MODEL --ids "$D/ids.csv" --method none --device cuda -q -o "$D/try.h5" 2>"$D/err"; then
  if grep -q 'no CUDA' "$D/err"; then echo "skip kvdim-eval on a GPU: $(sed 's/.*cuda: //' "$D/err")"; exit 0; fi
  not_ok "kvdim-eval on a GPU" "$(cat "$D/err")"; exit 1
fi

"$B/bin/kvdim-collect" $MODEL --text data/texts/articles.txt --tokens 2048 --seq-len 256 --moments -q -o "$D/m.h5" &&
"$B/bin/kvdim-spectrum" "$D/m.h5" --pair qk,vw,wv,bqk,bvw --device cpu -q -o "$D/s.h5" || { not_ok prepare; exit 1; }

# Rows of two runs, column by column: relative differences beyond the limit, and counts off by more than `flips` predictions.
cat >"$D/compare.py" <<'END'
import json, math, sys
want, got = (json.load(open(f))["rows"] for f in sys.argv[1:3])
limit, flips, kl_floor = (float(x) for x in sys.argv[3:6])
assert len(want) == len(got) and len(want) > 1, (len(want), len(got))
worst = {}
for a, b in zip(want, got):
    n = a["n_predictions"]
    for c in ("method", "overall_p", "rule", "bytes_per_token_nominal", "n_tokens"):
        assert a[c] == b[c], (c, a[c], b[c])
    assert a["bytes_per_token_stored"] / a["stored_element_bytes"] == b["bytes_per_token_stored"] / b["stored_element_bytes"]
    off = {c: abs(b[c] - a[c]) / abs(a[c]) for c in ("perplexity", "nll")}
    for c in ("perplexity_lo", "perplexity_hi"):  # null below 8 sequences
        assert (a[c] is None) == (b[c] is None), (c, a[c], b[c])
        if a[c] is not None:
            off[c] = abs(b[c] - a[c]) / abs(a[c])
    off["kl"] = max(0, abs(b["kl"] - a["kl"]) - kl_floor) / max(abs(a["kl"]), 1e-300)
    for c in ("attention_error",):
        if a[c] is not None and a["method"] != "none":
            off[c] = abs(b[c] - a[c]) / a[c]
    for c in ("top1", "agree"):
        off[c] = 0 if abs(b[c] - a[c]) * n <= flips + 1e-6 else abs(b[c] - a[c])
    for c, x in off.items():
        worst[c] = max(worst.get(c, 0), x)
print("# " + ", ".join("%s %.2g" % i for i in sorted(worst.items())))
sys.exit(any(not x <= limit for x in worst.values()))
END
compare() { # name cpu.json cuda.json limit flips kl_floor
  if "$PYTHON" "$D/compare.py" "$2" "$3" "$4" "$5" "$6" >"$D/log" 2>&1; then ok "$1"; grep '^#' "$D/log"
  else not_ok "$1" "$(cat "$D/log")"; fi
}

all="--text $TEXT --tokens 2048 --seq-len 256 --spectrum $D/s.h5 --method zack,p=0.5 --method zack,p=0.3 --method fdc,p=0.5
     --method uniform,p=0.5 --method balanced,p=0.5 --method balanced,p=0.7 -q --json"
run() { # name options: $D/name.h5, $D/name.json
  name=$1; shift
  if $EVAL $MODEL "$@" -o "$D/$name.h5" >"$D/$name.json" 2>"$D/err"; then return 0; fi
  not_ok "$name runs" "$(cat "$D/err")"; return 1
}

if run cpu $all --device cpu && run cuda $all --device cuda; then
  compare "all methods, float32" "$D/cpu.json" "$D/cuda.json" 1e-5 1 1e-9
  if values engine "$D/cuda.json" | grep -q 'cuBLAS products, f32' &&
     values engine "$D/cuda.json" | head -1 | grep -q 'f32, cuBLAS' && values full_rank_error "$D/cuda.json" |
     awk '$1 != "null" && !($1 > 0 && $1 < 1e-4) { exit 1 }'
  then ok "engine and guard"; else not_ok "engine and guard" "$(values engine "$D/cuda.json")" "$(values full_rank_error "$D/cuda.json")"; fi
  # Quantiles of single predictions, and the change of the right token's probability.
  check "quantiles of single predictions" "$PYTHON" - "$D/cpu.json" "$D/cuda.json" <<'END'
import json, sys
want, got = (json.load(open(f))["rows"] for f in sys.argv[1:])
for a, b in zip(want, got):
    for c in ("kl_median", "kl_p90", "kl_p99", "kl_p999", "kl_max"):
        assert abs(b[c] - a[c]) <= 1e-3 * a[c] + 1e-8, (a["method"], c, a[c], b[c])
    assert abs(b["p_change"] - a["p_change"]) <= 1e-5, (a["method"], a["p_change"], b["p_change"])
assert max(b["kl_max"] for b in got) > 0.01
END
  # Batches of one sequence, where the CPU took eight: rounding only.
  run small $all --device cuda --batch 256 && compare "small batches" "$D/cpu.json" "$D/small.json" 1e-5 1 1e-9
  # The uncompressed model through the cache is the uncompressed model.
  if values kl "$D/cuda.json" | head -1 | grep -qx 0.0; then ok "none has no divergence"; else not_ok "none has no divergence" "$(values kl "$D/cuda.json" | head -1)"; fi
  run again $all --device cuda
  check "equal runs give equal bits" "$PYTHON" - "$D/cuda.json" "$D/again.json" <<'END'
import json, sys
a, b = (json.load(open(f))["rows"] for f in sys.argv[1:])
for x in a + b:
    x.pop("seconds")
sys.exit(a != b)
END
fi
run cpu16 $all --device cpu --cache f16 && run cuda16 $all --device cuda --cache f16 &&
  compare "all methods, f16 store" "$D/cpu16.json" "$D/cuda16.json" 1e-4 1 1e-6

by_python "file of a GPU run" "$D/cpu.h5" "$D/cuda.h5" <<'END'
import sys, h5py, numpy as np
a, b = (h5py.File(f) for f in sys.argv[1:])
p = b["provenance"].attrs
assert p["gpu"] not in (b"none", "none") and p["driver"] not in (b"none", "none"), (p["gpu"], p["driver"])
q = {k: v.decode() if isinstance(v, bytes) else v for k, v in b["parameters"].attrs.items()}
assert q["device"] == "cuda" and q["compute"] == "f32" and "cuBLAS" in q["engine"], q
cut = b["rows/overall_p"][:] > 0
x, y = a["attention_error/relative"][cut], b["attention_error/relative"][cut]
assert np.isfinite(y).all() and (abs(y - x) <= 1e-5 * x).all(), abs(y / x - 1).max()
# Elementwise errors are ruled by the few outputs that are nearly 0, where rounding is everything: the middle one of all heads.
x, y = a["attention_error/zdc"][cut], b["attention_error/zdc"][cut]
assert np.isfinite(y).all() and np.median(abs(y / x - 1)) <= 0.02, np.median(abs(y / x - 1))
print("# zdc: median difference %.2g, largest %.2g" % (np.median(abs(y / x - 1)), abs(y / x - 1).max()))
assert (abs(a["sequences/nll"][:] - b["sequences/nll"][:]) <= 1e-5 * a["sequences/nll"][:]).all()
END
grep '^#' "$log"

# ---- a second model on the device, with weights of few bits ----------------------------------------
few="--text $TEXT --tokens 2048 --seq-len 256 --spectrum $D/s.h5 --method zack,p.qk=0.5,p.v=0.3 --weights-bits 4,8 -q --json"
run wcpu $few --device cpu && run wcuda $few --device cuda && compare "weights of few bits, float32" "$D/wcpu.json" "$D/wcuda.json" 1e-5 1 1e-9
run wbf16 $few --device cuda --compute bf16 && compare "weights of few bits, bf16" "$D/wcpu.json" "$D/wbf16.json" 3e-3 20 1e-3

# ---- search and table ------------------------------------------------------------------------
target="--text $TEXT --tokens 512 --seq-len 64 --spectrum $D/s.h5 --method uniform --method balanced --target 0.9 -q --json"
run tcpu $target --device cpu && run tcuda $target --device cuda &&
  compare "search for a target" "$D/tcpu.json" "$D/tcuda.json" 1e-5 1 1e-9

scan="--text $TEXT --tokens 256 --seq-len 64 --spectrum $D/s.h5 --method zack --scan-errors -q"
if run ecpu $scan --device cpu && run ecuda $scan --device cuda; then
  by_python "error table" "$D/ecpu.h5" "$D/ecuda.h5" <<'END'
import sys, h5py, numpy as np
a, b = (h5py.File(f) for f in sys.argv[1:])
worst = 0
for pair in ("qk", "vw"):
    x, y = a[pair + "/error"][:], b[pair + "/error"][:]
    assert x.shape == y.shape and (x[..., -1] == 0).all() and (y[..., -1] == 0).all()
    assert (abs(y - x) <= 1e-4 * x + 1e-9).all(), (pair, abs(y - x).max(), x.min())
    worst = max(worst, (abs(y - x)[..., :-1] / x[..., :-1]).max())
print("# largest relative difference %.2g, smallest entry %.2g" % (worst, min(a[p + "/error"][..., :-1].min() for p in ("qk", "vw"))))
END
  grep '^#' "$log"
fi

# Plans that go row by row: on the host, between the layers of a pass on the GPU. A code or a choice may fall the other way.
rows="--text $TEXT --tokens 256 --seq-len 128 --prompt 48 --method h2o --method kivi,residual=32 --method snapkv,window=8 --method minicache
      --method xkv,rank_k=20,rank_v=30 -q --json"
run rcpu $rows --device cpu && run rcuda $rows --device cuda && compare "row by row" "$D/rcpu.json" "$D/rcuda.json" 1e-3 1 1e-7

# Latents and widths after a prompt: in blocks on both.
"$B/bin/kvdim-collect" $MODEL --text data/texts/articles.txt --tokens 1024 --seq-len 256 --rope both --device cpu -q -o "$D/dump.h5" || not_ok "prepare latents"
latents="--text $TEXT --tokens 1024 --seq-len 128 --prompt 48 --spectrum $D/s.h5 --calibration $D/dump.h5 --method palu,p=0.5 --method palu,p=0.3,heads=1
         --method zack,p=0.5 --method balanced,p=0.5 -q --json"
if run lcpu $latents --device cpu && run lcuda $latents --device cuda; then
  compare "latents and prompts in blocks" "$D/lcpu.json" "$D/lcuda.json" 1e-5 1 1e-9
  if [ "$(values engine "$D/lcuda.json" | tail -n +2 | sort -u)" = 'cuBLAS products, f32' ]
  then ok "engine of latents"; else not_ok "engine of latents" "$(values engine "$D/lcuda.json" | sort -u)"; fi
fi
run lcpu16 $latents --device cpu --cache f16 && run lcuda16 $latents --device cuda --cache f16 &&
  compare "latents, f16 store" "$D/lcpu16.json" "$D/lcuda16.json" 1e-4 1 1e-6

# Killed in the middle of a sweep and continued: the rows of a run that nobody disturbed.
sweep="--text $TEXT --tokens 2048 --seq-len 256 --prompt 64 --spectrum $D/s.h5 --calibration $D/dump.h5 --cache f16 --sweep 3 --method zack --method palu
       --method h2o --method kivi,residual=32 --method snapkv,window=8 --device cuda --resume"
rows() { grep -v -e '"seconds"' -e '"output"' "$1"; }
if $EVAL $MODEL $sweep -q --json -o "$D/whole.h5" >"$D/whole.json" 2>"$D/err"; then
  $EVAL $MODEL $sweep -q -o "$D/killed.h5" 2>"$D/err" & pid=$!
  states=0 last=
  while kill -0 $pid 2>/dev/null && [ $states -lt 5 ]; do
    now=$([ -e "$D/killed.h5.rows" ] && cksum <"$D/killed.h5.rows")
    [ -n "$now" ] && [ "$now" != "$last" ] && states=$((states + 1)) last=$now
    sleep 0.02
  done
  kill -9 $pid 2>/dev/null; wait $pid 2>/dev/null
  if [ -e "$D/killed.h5.rows" ] && [ ! -e "$D/killed.h5" ] &&
     $EVAL $MODEL $sweep --json -o "$D/killed.h5" >"$D/killed.json" 2>"$D/err" && rows "$D/whole.json" >"$D/1" && rows "$D/killed.json" >"$D/2" &&
     cmp -s "$D/1" "$D/2" && grep -q "going on after" "$D/err"
  then ok "killed and continued"; grep "going on after" "$D/err" | sed 's/^/# /'
  else not_ok "killed and continued" "$(diff "$D/1" "$D/2" | head -5)" "$(cat "$D/err")"; fi
else not_ok "killed and continued" "$(cat "$D/err")"; fi

# ---- bf16 --------------------------------------------------------------------------------------
# A product rounded to 2^-9 costs this model 1e-3 of its perplexity; a KL is off by as much and by up to 1e-3 nats, and of 2040
# predictions some 5 fall the other way.
if run bf16 $all --device cuda --compute bf16; then
  compare "all methods, bf16" "$D/cpu.json" "$D/bf16.json" 3e-3 20 1e-3
  if [ "$(values engine "$D/bf16.json" | tail -n +2 | sort -u | sed 's/sm_90a\|mma.sync/X/')" = 'X kernel' ] &&
     [ "$(values stored_element_bytes "$D/bf16.json" | sort -u)" = 2 ]
  then ok "bf16 runs on the attention kernels"; else not_ok "bf16 runs on the attention kernels" "$(values engine "$D/bf16.json")"; fi
fi
