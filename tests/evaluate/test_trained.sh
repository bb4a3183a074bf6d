#!/bin/sh
# Weights of files written with h5py: projected is compared with methods that use the same bases, locret with methods that keep as many tokens;
# damaged files are refused.
. tests/lib/cases.sh
MODEL=data/models/kvdim-6m
if ! "$PYTHON" -c 'import h5py, numpy' 2>/dev/null; then echo "skip trained: no h5py"; exit; fi
run() { $B/bin/kvdim-eval $MODEL --text data/texts/stories.txt --tokens 400 --seq-len 200 -q --json -o "$D/a.h5" "$@" >"$D/a.json" 2>"$D/err"; }
# pair FIRST SECOND LARGEST OPTIONS...: runs two methods and compares bytes and KL divergence of the two, relative to the first
pair() {
  first=$1 second=$2 largest=$3; shift 3
  run --method "$first" --method "$second" "$@" || return 1
  field cache_share >"$D/c"; field kl >"$D/k"
  paste -d' ' "$D/c" "$D/k" >"$D/rows"
  awk -v most="$largest" 'function off(x, y) { return x > y ? x - y : y - x } NR == 2 { c = $1; k = $2 } NR == 3 { ok = off(c, $1) < 1e-6 && k > 1e-3 && off(k, $2) < most * k } END { exit !(NR == 3 && ok) }' "$D/rows"
}
# fails NAME TEXT OPTIONS...: status 1 and one line
fails() { name=$1 text=$2; shift 2; no_output "$name" 1 "$text" $B/bin/kvdim-eval $MODEL --text data/texts/stories.txt --tokens 200 -q "$@"; }

$B/bin/kvdim-collect $MODEL --text data/texts/articles.txt --tokens 1024 --seq-len 256 --rope both --dtype f32 -q -o "$D/d.h5" &&
$B/bin/kvdim-spectrum "$D/d.h5" --pair qk,vw,k,v -q -o "$D/s.h5" &&
$B/bin/kvdim-spectrum "$D/d.h5" --pair k,v --rope before -q -o "$D/before.h5" || { not_ok prepare; exit 1; }
write() { "$PYTHON" docs/examples/write_projections.py "$@"; }
write "$D/s.h5" qk vw 32 "$D/uniform.h5" && write "$D/s.h5" qk vw 64 "$D/full.h5" && write "$D/before.h5" k v 24 "$D/palu.h5" && write "$D/before.h5" k v 64 "$D/palu-full.h5" || { not_ok "write files"; exit 1; }
refused "a rank beyond the bases" 1 "RANK 65: the bases of '$D/s.h5' have 1 .. 64 components" write "$D/s.h5" qk vw 65 "$D/none.h5"

# ---- the same bases give the same results --------------------------------------------------------
if pair uniform,p=0.5 "projected,file=$D/uniform.h5" 1e-4 --spectrum "$D/s.h5"; then ok "bases after RoPE equal uniform"; else not_ok "bases after RoPE equal uniform" "$(cat "$D/rows" "$D/err")"; fi
if pair uniform,p=0.5 "projected,file=$D/full.h5,p=0.5" 1e-4 --spectrum "$D/s.h5"; then ok "p cuts the last components"; else not_ok "p cuts the last components" "$(cat "$D/rows" "$D/err")"; fi
if pair palu,heads=1,p=0.625 "projected,file=$D/palu.h5" 1e-3 --calibration "$D/d.h5"; then ok "bases before RoPE equal palu"; else not_ok "bases before RoPE equal palu" "$(cat "$D/rows" "$D/err")"; fi
if pair palu+kivi,heads=1,p=0.625,residual=32 "projected+kivi,file=$D/palu.h5,residual=32" 1e-2 --calibration "$D/d.h5" --prompt 100; then ok "latents of a file are coded"; else not_ok "latents of a file are coded" "$(cat "$D/rows" "$D/err")"; fi
if run --method "projected,file=$D/full.h5" --method "projected,projected.file=$D/palu-full.h5" && field kl | awk '{ n += $1 < 1e-6 && $1 > -1e-6 } END { exit !(NR == 3 && n == 3) }'; then ok "orthogonal matrices of full rank equal the model"
else not_ok "orthogonal matrices of full rank equal the model" "$(field kl)" "$(cat "$D/err")"; fi
if run --prompt 100 --method "projected,file=$D/full.h5,p=0/0.25/0.5" --method "h2o+projected,file=$D/full.h5,p=0.5" && field kl | awk 'NR == 3 { low = $1 } NR == 4 { high = $1 } END { exit !(NR == 5 && low > 1e-5 && high > low) }'; then ok "values of p, and tokens left out"
else not_ok "values of p, and tokens left out" "$(field kl)" "$(cat "$D/err")"; fi
if run --method "projected,file=$D/full.h5" --target 0.9 && [ "$(field purpose | grep -c target)" -ge 1 ]; then ok "a search over p"; else not_ok "a search over p" "$(cat "$D/err")"; fi
run --method "projected,file=$D/uniform.h5" && "$PYTHON" - "$D/a.h5" "$D/uniform.h5" <<'PYTHON' && ok "the file is an input of the result" || not_ok "the file is an input of the result" "$(cat "$D/err")"
import sys, h5py
with h5py.File(sys.argv[1]) as f:
    inputs = f["provenance/inputs"]
    found = [i for i in inputs.values() if i.attrs["path"] in (sys.argv[2], sys.argv[2].encode())]
    sys.exit(not (len(found) == 1 and str(found[0].attrs["schema"]).find("projections") >= 0))
PYTHON

# ---- unequal ranks, and latents of all heads -----------------------------------------------------
"$PYTHON" - "$D" <<'PYTHON' || not_ok "write uneven files"
import shutil, sys, h5py, numpy as np
D = sys.argv[1]
shutil.copy(D + "/full.h5", D + "/uneven.h5")
with h5py.File(D + "/uneven.h5", "r+") as f:
    for side in "kv":
        rank = f[side]["rank"]
        rank[()] = 16 + 8 * (np.arange(rank.size).reshape(rank.shape) % 6)
    f["k"]["down"][0, 0, :, 63] = 7  # a component beyond its rank is not read
with h5py.File(D + "/palu-full.h5") as f, h5py.File(D + "/wide.h5", "w") as g:
    for name, value in f.attrs.items():
        g.attrs[name] = value
    f.copy("model", g)
    g.attrs["heads"] = 2
    for side in "kv":
        layers, n_kv, d, _ = f[side]["down"].shape
        down, up = np.zeros((layers, n_kv, 2 * d, 2 * d)), np.zeros((layers, n_kv, 2 * d, d))
        for h in range(n_kv):
            down[:, :, h * d:(h + 1) * d, h * d:(h + 1) * d] = f[side]["down"][:, h:h + 1]
            up[:, h, h * d:(h + 1) * d] = f[side]["up"][:, h]
        g[f"{side}/down"], g[f"{side}/up"] = down, up
        g[f"{side}/rank"] = np.full((layers, n_kv), 2 * d, dtype="int32")
PYTHON
if run --method "projected,file=$D/uneven.h5" --method "projected,file=$D/wide.h5" && { field cache_share; field kl; } | paste -sd' ' | awk '{ exit !($1 == 2 && $2 > 1.12 && $2 < 1.13 && $3 == 2 && $5 > 1e-4 && $6 < 1e-6 && $6 > -1e-6) }'; then ok "ranks of heads, and a latent of two heads"
else not_ok "ranks of heads, and a latent of two heads" "$(field cache_share; field kl)" "$(cat "$D/err")"; fi

# ---- refused -------------------------------------------------------------------------------------
# change CODE: a copy of uniform.h5 changed by Python
change() { cp "$D/${2:-uniform}.h5" "$D/bad.h5"; "$PYTHON" -c "
import h5py, numpy as np
with h5py.File('$D/bad.h5', 'r+') as f:
    $1
"; }
M="projected,file=$D/bad.h5"
change 'f["k"]["down"][2, 1, 3, 5] = np.nan'; fails "a NaN" "bad.h5' /k/down[2][1][3][5]" --method "$M"
change 'f["v"]["up"][0, 0, 0, 0] = np.inf'; fails "an infinity" '/v/up[0][0][0][0]' --method "$M"
change 'f["v"]["up"][0, 0, 0, 0] = 1e300'; fails "a number beyond float32" 'infinite as float32' --method "$M"
change 'del f["v"]["up"]'; fails "a dataset missing" '/v/up' --method "$M"
change 'x = f["k"]["down"][:-1]; del f["k"]["down"]; f["k"]["down"] = x'; fails "a layer missing" '/k/down' --method "$M"
change 'x = f["k"]["up"][:, :, :5]; del f["k"]["up"]; f["k"]["up"] = x'; fails "other components" '/k/up' --method "$M"
change 'x = np.zeros((6, 2, 64, 65)); del f["k"]["down"]; f["k"]["down"] = x'; fails "too many components" 'has 65 components, not 1 .. 64' --method "$M"
change 'f["v"]["rank"][1, 1] = 33'; fails "a rank beyond the components" '/v/rank[1][1] is 33, not in 1 .. 32' --method "$M"
change 'f["v"]["rank"][1, 1] = 0'; fails "a rank of 0" '/v/rank[1][1] is 0, not in 1 .. 32' --method "$M"
change 'f.attrs["rope"] = "during"'; fails "an unknown rope" "rope is 'during', neither 'before' nor 'after'" --method "$M"
change 'f.attrs["heads"] = 2'; fails "latents of two heads after RoPE" 'heads is 2, but keys after RoPE' --method "$M"
change 'f["k"]["down"][3, 1, 0, 0] = 9' wide; fails "two matrices for one latent" 'KV heads 0 and 1 of layer 3 share a latent of k' --method "$M"
change 'f["model"].attrs["hash"] = "xxh3:0"'; fails "another model" 'are of different models: hash' --method "$M"
change 'del f.attrs["origin"]'; fails "no origin" 'origin' --method "$M"
change 'del f.attrs["complete"]'; fails "an incomplete file" 'complete' --method "$M"
fails "a file of another schema" 'holds kvdim/spectrum, kvdim/projections is wanted' --method "projected,file=$D/s.h5"
fails "a file that is not there" 'No such file' --method "projected,file=$D/nothing.h5"
fails "no file" "'projected': it needs file=PATH" --method projected

# ---- locret: networks that score tokens, in a file that the example of docs/formats.md writes ------
"$PYTHON" - "$D" <<'PYTHON' || not_ok "the example of docs/formats.md"
import re, sys, numpy as np
D = sys.argv[1]
code = re.search("```python\n(.*?)```", open("docs/formats.md").read().split("\n## retaining-heads\n")[1], re.S)[1]
random = np.random.default_rng(3)
fc1 = [random.normal(0, 1 / 16, (96, (4 + 2 * 2) * 64)) for layer in range(6)]
fc2 = [random.normal(0, 1 / 8, (2, 96)) for layer in range(6)]
exec(code.replace("MODEL.h5", D + "/d.h5").replace("heads.h5", D + "/heads.h5"))
PYTHON
H="locret,file=$D/heads.h5"
if run --prompt 100 --method "$H,budget=0.3,local=8" --method snapkv,budget=0.3,window=8 --method "$H,budget=0.9,local=9" && { field cache_share; field kl; } | paste -sd' ' | awk '{ exit !(NF == 8 && $2 == $3 && $2 > 1 && $2 < 1.3 && $6 > 1e-3 && $8 > 0 && $8 < $6) }'; then ok "locret drops tokens, and keeps as many as snapkv"
else not_ok "locret drops tokens, and keeps as many as snapkv" "$(field cache_share; field kl)" "$(cat "$D/err")"; fi
if run --prompt 100 --method "locret+kivi,file=$D/heads.h5,local=8,residual=32" --method "locret+projected,locret.file=$D/heads.h5,projected.file=$D/full.h5,p=0.5,local=8" && [ "$(field kl | awk '$1 > 1e-3' | grep -c .)" = 2 ]; then ok "locret with codes and with projections"
else not_ok "locret with codes and with projections" "$(field kl)" "$(cat "$D/err")"; fi
if run --prompt 100 --method "$H,local=8" --target 0.9 && [ "$(field purpose | grep -c target)" -ge 1 ]; then ok "a search over locret's budget"; else not_ok "a search over locret's budget" "$(cat "$D/err")"; fi
# A decoder in NumPy, written from docs/methods.md, scores tokens with the networks of heads.h5.
awk 'BEGIN { s = 1; for (i = 0; i < 2; i++) { for (j = 0; j < 61; j++) { s = (s * 16807) % 2147483647; printf "%s%d", j ? "," : "", s % 8192 } print "" } }' >"$D/ids.csv"
if "$PYTHON" tests/oracle/whole_model.py $MODEL "$D/ids.csv" 33 "$D/heads.h5" >"$D/oracle" 2>"$D/err" &&
   $B/bin/kvdim-eval $MODEL --ids "$D/ids.csv" --seq-len 61 --prompt 33 -q --json --method "$(sed "s|^locret|locret,file=$D/heads.h5|" "$D/oracle" | cut -d' ' -f1 | paste -sd,)" -o "$D/a.h5" >"$D/a.json" 2>"$D/err" &&
   field nll | sed 1d | paste -d' ' "$D/oracle" - | awk '{ d = $2 - $3 } NF != 3 || d > 2e-5 || -d > 2e-5 { print; wrong = 1 } END { exit wrong || NR != 4 }' >"$D/rows"
then ok "losses with locret by a decoder in NumPy"; else not_ok "losses with locret by a decoder in NumPy" "$(cat "$D/rows" "$D/err")"; fi
H="locret,file=$D/bad.h5"
fails "a budget that drops nothing" "dropped and lowered no entry" --prompt 100 --method "locret,file=$D/heads.h5,budget=1000"
change 'f["fc2"][5, 1, 95] = np.nan' heads; fails "a NaN in a network" "bad.h5': /fc2[5][1][95] is not finite" --prompt 100 --method "$H"
change 'f["fc1"][5, 1, 3] = np.inf' heads; fails "an infinity in a network" "/fc1[5][1][3] is not finite" --prompt 100 --method "$H"
change 'x = f["fc1"][..., :-1]; del f["fc1"]; f["fc1"] = x' heads; fails "inputs missing" "/fc1" --prompt 100 --method "$H"
change 'x = f["fc2"][:, :, :7]; del f["fc2"]; f["fc2"] = x' heads; fails "other hidden units" "/fc2" --prompt 100 --method "$H"
change 'del f["fc2"]' heads; fails "a matrix missing" "/fc2" --prompt 100 --method "$H"
change 'f["model"].attrs["hash"] = "xxh3:0"' heads; fails "networks of another model" 'are of different models: hash' --prompt 100 --method "$H"
fails "projections for networks" 'holds kvdim/projections, kvdim/retaining-heads is wanted' --prompt 100 --method "locret,file=$D/full.h5"
fails "networks that are not there" "nothing.h5': No such file" --prompt 100 --method "locret,file=$D/nothing.h5"
fails "no networks" "'locret': it needs file=PATH, a file of retaining heads" --prompt 100 --method locret

# ---- docs/formats.md names what a file holds --------------------------------------------------------
told() { check "the schema of $1 in docs/formats.md" "$PYTHON" - "$1" "$2" <<'PYTHON'
import re, sys, h5py
text = open("docs/formats.md").read().split("\n## %s\n" % sys.argv[1])[1].split("\n## ")[0]
rows = [re.sub("`", "", line).strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `/")]
with h5py.File(sys.argv[2]) as f:
    told = {row[1] for row in rows if len(row) == 5} | {"schema", "schema_version", "title", "complete"}
    paths = {row[0]: row[1].count("[") for row in rows if len(row) == 6}
    held = {}
    f.visititems(lambda name, x: held.update({"/" + name: x.ndim}) if isinstance(x, h5py.Dataset) else None)
    print("#", told ^ set(f.attrs), held, paths)
    sys.exit(told != set(f.attrs) or held != paths)
PYTHON
}
told projections "$D/uniform.h5"
told retaining-heads "$D/heads.h5"
