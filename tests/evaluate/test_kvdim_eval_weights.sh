#!/bin/sh
# kvdim-eval --weights-bits: the same numbers as a checkpoint whose weights NumPy quantised, a row that says what it is, and its table of the report.
. tests/lib/cases.sh
EVAL=$B/bin/kvdim-eval TEXT=data/texts/stories.txt

"$B/tests/tool_checkpoint" --untied --seed 5 "$D/model" || exit 1
data="--text $TEXT --tokens 600 --seq-len 100 --prompt 40 --cache f16 -q"
if ! "$PYTHON" -c 'import h5py' 2>/dev/null; then echo "skip weights of few bits: python3 has no h5py"; exit 0; fi

# Groups of 20 divide neither 64 nor 96 columns.
if $EVAL "$D/model" $data --method hetero,k=4,v=4 --weights-bits 4,8 --weights-group 20 -o "$D/w.h5" 2>"$D/err" &&
   "$PYTHON" - "$D/model" "$D/numpy" 4 20 >"$D/log" 2>&1 <<'END'
import json, os, shutil, struct, sys
import numpy as np
source, to, bits, group = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
shutil.copytree(source, to)
f = open(os.path.join(source, "model.safetensors"), "rb").read()
n = struct.unpack("<Q", f[:8])[0]
head, data = json.loads(f[8:8 + n]), bytearray(f[8 + n:])
for name, t in head.items():
    if name == "__metadata__" or ".layers." not in name or "norm" in name:
        continue
    begin, end = t["data_offsets"]
    w = np.frombuffer(bytes(data[begin:end]), "<f4").reshape(t["shape"]).copy()
    for j in range(0, w.shape[1], group):
        x = w[:, j:j + group].astype(np.float64)
        lo, hi = x.min(1, keepdims=True), x.max(1, keepdims=True)
        zero, step = lo.astype(np.float16).astype(np.float64), ((hi - lo) / (2 ** bits - 1)).astype(np.float16).astype(np.float64)
        w[:, j:j + group] = zero + step * np.clip(np.rint((x - zero) / step), 0, 2 ** bits - 1)
    data[begin:end] = w.astype("<f4").tobytes()
open(os.path.join(to, "model.safetensors"), "wb").write(f[:8 + n] + bytes(data))
END
then ok "weights of few bits are evaluated"; else not_ok "weights of few bits are evaluated" "$(cat "$D/err" "$D/log")"; fi

if $EVAL "$D/numpy" $data --method none -o "$D/n.h5" 2>"$D/err" && "$PYTHON" - "$D/w.h5" "$D/n.h5" >"$D/log" 2>&1 <<'END'
import sys, h5py
import numpy as np
w, n = h5py.File(sys.argv[1]), h5py.File(sys.argv[2])
r = w["rows"]
text = lambda c: [x.decode() for x in r[c]]
assert text("method") == ["none", "hetero", "weights-4bit", "weights-8bit"], text("method")
assert text("purpose") == ["point", "point", "weights", "weights"], text("purpose")
assert text("settings")[2:] == ["weights.bits=4,weights.group=20", "weights.bits=8,weights.group=20"]
# A code on the edge of two may fall to either side in float32.
a, b = w["sequences/nll"][2], n["sequences/nll"][0]
assert np.all(np.abs(a - b) < 2e-4 * b), (a, b)
assert np.all(np.abs(a - w["sequences/nll"][0]) > 1e-3 * b), "the weights are those of the model"
assert r["kl"][0] < 1e-4 < r["kl"][3] < r["kl"][2]
assert np.allclose(r["cache_share"][:], [1, 0.25 + 64 / 512, 1, 1]), r["cache_share"][:]
# Matrices of a layer: 64 x (64 + 64 + 2 x 32 + 3 x 96) weights of 2 layers; groups of 20 in 64 and 96 columns.
d, ffn, bytes_ = 64, 96, r["weight_bytes"][:]
weights, groups = 2 * d * (2 * d + 2 * 32 + 3 * ffn), 2 * ((2 * d + 2 * 32 + 2 * ffn) * 4 + d * 5)
assert bytes_[0] == bytes_[1] == n["rows/weight_bytes"][0], bytes_
assert bytes_[0] - bytes_[2] == weights * (4 - 0.5) - groups * 4, (bytes_, weights, groups)
assert bytes_[0] - bytes_[3] == weights * (4 - 1) - groups * 4
END
then ok "as a checkpoint that NumPy quantised"; else not_ok "as a checkpoint that NumPy quantised" "$(cat "$D/err" "$D/log")"; fi

if "$B/bin/kvdim-report" "$D/w.h5" --no-plots -q -o "$D/r" >"$D/log" 2>&1 && "$PYTHON" - "$D/r/tables" >>"$D/log" 2>&1 <<'END'
import csv, sys
weights, all_ = [list(csv.DictReader(open(f"{sys.argv[1]}/{n}.csv"))) for n in ("accuracy-weights", "accuracy")]
assert [t["shortened"] for t in weights] == ["nothing", "cache", "weights", "weights"], weights
assert not any("weights" in t["method"] for t in all_), all_
ledger = {t["id"]: t for t in csv.DictReader(open(f"{sys.argv[1]}/ledger.csv"))}
ours = 100 * (float(weights[1]["perplexity"]) / float(weights[2]["perplexity"]) - 1)
key = next(k for k in ledger["ZDC Fig. 3 (method 2)"] if "our" in k.lower())
assert ledger["ZDC Fig. 3 (method 2)"][key].lstrip("'").startswith("%.4g" % ours), (ledger["ZDC Fig. 3 (method 2)"], ours)
assert ledger["ZDC Fig. 3 (method 1)"]["verdict"] == "not measured"
END
then ok "the report keeps weights and caches apart"; else not_ok "the report keeps weights and caches apart" "$(cat "$D/log")"; fi

# Points are saved, weights come after them.
if $EVAL "$D/model" $data --method hetero,k=4,v=4 --weights-bits 4,8 --weights-group 20 --resume -o "$D/again.h5" 2>"$D/err" &&
   "$PYTHON" - "$D/w.h5" "$D/again.h5" >"$D/log" 2>&1 <<'END'
import sys, h5py
a, b = (h5py.File(p) for p in sys.argv[1:])
assert (a["sequences/nll"][:] == b["sequences/nll"][:]).all() and (a["rows/weight_bytes"][:] == b["rows/weight_bytes"][:]).all()
END
then ok "one after another"; else not_ok "one after another" "$(cat "$D/err" "$D/log")"; fi

fails() {
  name=$1 message=$2; shift 2
  $EVAL "$D/model" $data "$@" -o "$D/x.h5" >"$D/log" 2>"$D/err"
  if [ $? -eq 2 ] && grep -qF -- "$message" "$D/err" && [ ! -e "$D/x.h5" ]; then ok "$name"; else not_ok "$name" "$(cat "$D/err")"; fi
}
fails "too many bits" "--weights-bits: '9' is not within 2 .. 8" --weights-bits 9
fails "bits given twice" "--weights-bits: 4 is given twice" --weights-bits 4,4
if $EVAL "$D/model" $data --weights-group 64 -o "$D/none.h5" >"$D/out" 2>"$D/err"; [ $? -eq 2 ] && grep -q -- '--weights-group requires --weights-bits' "$D/err" && [ ! -e "$D/none.h5" ]
then ok "a group without bits"; else not_ok "a group without bits" "$(cat "$D/err")"; fi
fails "an empty group" "--weights-group" --weights-bits 4 --weights-group 0
