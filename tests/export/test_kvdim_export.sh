#!/bin/sh
# kvdim-export: what kvdim-eval predicts is what the folder computes, here and in Transformers (tests/oracle); projections for use elsewhere; what is
# refused, and that nothing half-written is left.
set -u
B=${BUILD:-build}
PYTHON=${PYTHON:-/usr/bin/python3}
EXPORT=$B/bin/kvdim-export EVAL=$B/bin/kvdim-eval MODEL=data/models/kvdim-6m TEXT=data/texts/stories.txt
D=$(mktemp -d)
mounted=0
cleanup() {
  [ "$mounted" = 0 ] || umount "$D/disk"
  rm -rf "$D"
}
trap cleanup EXIT
export OMP_WAIT_POLICY=passive

ok() { echo "ok $1"; }
bad() { echo "not ok $1"; shift; for l in "$@"; do echo "# $l"; done; }
values() { sed -n "s/^ *\"$1\": \"*\([^\",]*\)\"*,*\$/\1/p" "$2"; }
# near NAME A B RELATIVE
near() {
  if awk -v a="$2" -v b="$3" -v t="$4" 'BEGIN { d = a - b; exit !(a > 0 && b > 0 && d <= t * b && -d <= t * b) }'
  then ok "$1"; else bad "$1" "$2 and $3, relative tolerance $4"; fi
}
# perplexity DATA-OPTIONS MODEL METHOD-OPTIONS...: of the last row
perplexity() {
  data=$1 model=$2; shift 2
  "$EVAL" "$model" $data "$@" -q --json -o "$D/e.h5" >"$D/e.json" 2>"$D/err" || cat "$D/err"
  values perplexity "$D/e.json" | tail -1
}

"$B/bin/kvdim-collect" $MODEL --text data/texts/articles.txt --tokens 2048 --seq-len 256 --moments -q -o "$D/m.h5" &&
"$B/bin/kvdim-spectrum" "$D/m.h5" --pair qk,vw,wv,bqk,bvw -q -o "$D/s.h5" &&
"$B/bin/kvdim-fit" "$D/s.h5" --overall-p 0.3,0.5 -q -o "$D/r.h5" &&
"$B/bin/kvdim-fit" "$D/s.h5" --overall-p 0.5 --pair bqk,bvw -q -o "$D/b.h5" || { bad prepare; exit 1; }
bases="--spectrum $D/s.h5"
small="--text $TEXT --tokens 512 --seq-len 256"
: >"$D/found"

# ---- the demo model: V folds, Q and K have RoPE after them --------------------------------------
if $EXPORT $MODEL $bases --rates "$D/r.h5" --overall-p 0.5 -q --json -o "$D/zack" >"$D/x.json" 2>"$D/err" &&
   grep -q '"predicted_by": "zack,cut=v"' "$D/x.json" && [ "$(values tensors_folded "$D/x.json")" = 12 ] &&
   $EXPORT $MODEL $bases --rates "$D/r.h5" --point 1 --dtype f32 -q -o "$D/zack-f32" 2>>"$D/err" &&
   $EXPORT $MODEL $bases --rates "$D/b.h5" -q -o "$D/balanced" 2>>"$D/err" &&
   $EXPORT $MODEL $bases --method fdc,p=0.3 -q -o "$D/fdc" 2>>"$D/err"
then ok "exports"; else bad "exports" "$(cat "$D/err" "$D/x.json")"; exit 1; fi
"$EVAL" $MODEL $small $bases --method zack,p=0.5,cut=v --method balanced,p=0.5,cut=v --method fdc,p=0.3,cut=v -q --json -o "$D/p.h5" \
  >"$D/p.json" 2>"$D/err" || bad "predict" "$(cat "$D/err")"
values perplexity "$D/p.json" >"$D/predicted"
predicted() { sed -n "$1p" "$D/predicted"; }
found=$(perplexity "$small" "$D/zack-f32" --method none)
near "zack in float32 is as predicted" "$found" "$(predicted 2)" 1e-5
for m in zack balanced fdc; do
  found=$(perplexity "$small" "$D/$m" --method none)
  echo "kvdim-6m-$m,$found" >>"$D/found"
  case $m in zack) i=2 ;; balanced) i=3 ;; fdc) i=4 ;; esac
  near "$m in bfloat16 is as predicted within 0.05 %" "$found" "$(predicted $i)" 5e-4
done
kept=zack,p=0.5,cut=v,keep_layers=1:1
if $EXPORT $MODEL $bases --method $kept --dtype f32 -q --json -o "$D/kept" >"$D/x.json" 2>"$D/err" && [ "$(values tensors_folded "$D/x.json")" = 8 ]
then near "layers kept whole are as predicted" "$(perplexity "$small" "$D/kept" --method none)" "$(perplexity "$small" $MODEL $bases --method $kept)" 1e-5
else bad "layers kept whole are as predicted" "$(cat "$D/err" "$D/x.json")"; fi
near "and not the uncompressed model" "$(predicted 1)" "$(predicted 2)" 0.3
awk -v a="$(predicted 1)" -v b="$(predicted 2)" 'BEGIN { exit !(b > 1.02 * a) }' && ok "the cut shows" || bad "the cut shows" "$(cat "$D/predicted")"
for f in config.json generation_config.json tokenizer.json tokenizer_config.json; do cmp "$MODEL/$f" "$D/zack/$f"; done >"$D/log" 2>&1 &&
  [ "$(ls "$D/zack" | tr '\n' ' ')" = "config.json generation_config.json model.safetensors rates.json tokenizer.json tokenizer_config.json " ] &&
  ok "files beside the weights" || bad "files beside the weights" "$(cat "$D/log"; ls "$D/zack")"

# ---- families: fused tensors, and OPT, whose Q and K fold too --------------------------------------
awk 'BEGIN { s = 1; for (i = 0; i < 12; i++) { for (j = 0; j < 40; j++) { s = (s * 16807) % 2147483647
  printf "%s%d", j ? "," : "", s % 80 } print "" } }' >"$D/ids.csv"
ids="--ids $D/ids.csv --seq-len 40"
for f in opt-before opt-after phi3-short falcon-40b qwen2-gqa; do
  M=tests/data/families/$f
  case $f in opt-*) how= ;; *) how=,cut=v ;; esac
  if "$B/bin/kvdim-collect" $M $ids --moments -q -o "$D/fm.h5" 2>"$D/err" && "$B/bin/kvdim-spectrum" "$D/fm.h5" -q -o "$D/fs.h5" 2>>"$D/err" &&
     "$B/bin/kvdim-fit" "$D/fs.h5" --overall-p 0.4 -q -o "$D/fr.h5" 2>>"$D/err" &&
     $EXPORT $M --spectrum "$D/fs.h5" --rates "$D/fr.h5" --dtype f32 -q --json -o "$D/$f" >"$D/x.json" 2>>"$D/err" &&
     grep -q "\"predicted_by\": \"zack$how\"" "$D/x.json"
  then
    found=$(perplexity "$ids" "$D/$f" --method none)
    near "$f is as predicted" "$found" "$(perplexity "$ids" $M --spectrum "$D/fs.h5" --rates "$D/fr.h5" --method "zack$how")" 1e-5
    echo "$f,$found" >>"$D/found"
  else bad "$f is as predicted" "$(cat "$D/err" "$D/x.json")"; fi
done

# ---- Transformers -----------------------------------------------------------------------------------
# Compares recorded results of Transformers, which transformers_oracle.py wrote, with those of kvdim-eval.
if [ "$(wc -l <"$D/found")" -eq 8 ] && tail -n +2 tests/data/export_expected.csv | paste -d, - "$D/found" | awk -F, '
     { d = $2 - $4 } $1 != $3 || !($2 > 0) || d > 5e-4 * $2 || -d > 5e-4 * $2 { print; wrong = 1 } { n++ } END { exit wrong || n != 8 }' >"$D/log"
then ok "as Transformers within 0.05 %"; else bad "as Transformers within 0.05 %" "$(cat "$D/log" "$D/found")"; fi
if "$PYTHON" -c 'import torch, transformers' 2>/dev/null; then
  { "$PYTHON" tests/oracle/transformers_oracle.py perplexity $TEXT 512 256 "kvdim-6m-zack=$D/zack" "kvdim-6m-balanced=$D/balanced" "kvdim-6m-fdc=$D/fdc" &&
    "$PYTHON" tests/oracle/transformers_oracle.py perplexity "$D/ids.csv" 480 40 "opt-before=$D/opt-before" "opt-after=$D/opt-after" "phi3-short=$D/phi3-short" \
      "falcon-40b=$D/falcon-40b" "qwen2-gqa=$D/qwen2-gqa"; } >"$D/now" 2>"$D/err"
  if paste -d, "$D/now" "$D/found" | awk -F, '{ d = $2 - $4 } $1 != $3 || d > 1e-5 * $2 || -d > 1e-5 * $2 { print; wrong = 1 }
       { n++ } END { exit wrong || n != 8 }' >"$D/log"
  then ok "Transformers loads them, here and now"; else bad "Transformers loads them, here and now" "$(tail -3 "$D/err"; cat "$D/log" "$D/now")"; fi
else
  echo "skip Transformers loads them, here and now: no transformers for $PYTHON"
fi

# ---- one file with a configuration of its own; a tokenizer by its name -------------------------------
mkdir "$D/single" && cp $MODEL/model.safetensors "$D/single/a.safetensors" && cp $MODEL/config.json "$D/single/a.config.json" &&
  cp $MODEL/tokenizer.json "$D/single/a.tokenizer.json" && echo x >"$D/single/tokenizer_of_another.json"
"$B/bin/kvdim-collect" "$D/single/a.safetensors" --random 300 --moments -q -o "$D/am.h5" && "$B/bin/kvdim-spectrum" "$D/am.h5" -q -o "$D/as.h5"
if $EXPORT "$D/single/a.safetensors" --spectrum "$D/as.h5" --method uniform,p=0.5 -q -o "$D/a" 2>"$D/err" && cmp $MODEL/tokenizer.json "$D/a/tokenizer.json" &&
   cmp $MODEL/config.json "$D/a/config.json" && [ "$(ls "$D/a" | wc -l)" -eq 4 ]
then ok "NAME.safetensors becomes a folder"; else bad "NAME.safetensors becomes a folder" "$(cat "$D/err"; ls "$D/a")"; fi

# ---- projections for use elsewhere ------------------------------------------------------------------
if $EXPORT $MODEL $bases --rates "$D/b.h5" --rotations-only -q -o "$D/rotations" 2>"$D/err" &&
   $EXPORT $MODEL $bases --method zack,p=0.3,cut=v --rotations-only -q -o "$D/v-only" 2>>"$D/err" &&
   [ "$(ls "$D/rotations" | tr '\n' ' ')" = "rates.json rotations.safetensors " ]
then ok "rotations"; else bad "rotations" "$(cat "$D/err")"; fi
if "$PYTHON" -c 'import h5py, numpy' 2>/dev/null; then
  if "$PYTHON" - "$D" docs/formats.md <<'PY' 2>"$D/err"
import json, re, struct, sys
import h5py, numpy as np
folder, page = sys.argv[1:]
def tensors(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__")
    return {k: np.frombuffer(raw[8 + n:][slice(*v["data_offsets"])], "<f4").reshape(v["shape"]) for k, v in head.items()}
t, note = tensors(folder + "/rotations/rotations.safetensors"), json.load(open(folder + "/rotations/rates.json"))
with h5py.File(folder + "/s.h5") as s, h5py.File(folder + "/b.h5") as r:
    kq, kv = r["bqk/kept"][0], r["bvw/kept"][0]
    assert note["qk"]["kept"] == kq.tolist() and note["v"]["kept"] == kv.tolist()
    assert note["qk"]["kept16"] == r["bqk/kept16"][0].tolist() and note["v"]["kept16"] == r["bvw/kept16"][0].tolist()
    assert note["overall_p"] == r["overall_p"][0] and note["overall_p16"] == r["overall_p16"][0] and note["removal_rate"] == r["removal_rate"][0]
    assert note["calibration"]["bases_hash"].encode() == r.attrs["bases_hash"] and note["model"]["hash"].encode() == r["model"].attrs["hash"]
    assert len(t) == 4 * kq.size
    for l in range(kq.shape[0]):
        for h in range(kq.shape[1]):
            m, w = kq[l, h], kv[l, h]
            for name, pair, side, n in (("a_q", "bqk", "left", m), ("a_k", "bqk", "right", m), ("a_v", "bvw", "left", w)):
                assert np.array_equal(t[f"layers.{l}.kv_heads.{h}.{name}"], s[f"{pair}/{side}"][l, h][:, :n].astype("f4"))
            assert np.array_equal(t[f"layers.{l}.kv_heads.{h}.b_v"], s["bvw/right"][l, h][:, :w].T.astype("f4"))
v = tensors(folder + "/v-only/rotations.safetensors")
assert all(k.endswith(("a_v", "b_v")) for k in v) and len(v) == 24
whole = json.load(open(folder + "/v-only/rates.json"))
assert whole["qk"]["pair"] is None and set(sum(whole["qk"]["kept"], [])) == {64} and whole["settings"] == "cut=v"
# Every field is in the page, and every field of the page in the file.
def fields(x, prefix=""):
    for k, y in x.items():
        yield prefix + k
        if isinstance(y, dict):
            yield from fields(y, prefix + k + ".")
        elif k == "inputs":
            yield from fields(y[0], k + "[].")
text = open(page).read().split("\n## Exported folders\n")[1].split("\n## ")[0]
of_sides = lambda names: {re.sub(r"^(qk|v)\.", "<side>.", k) for k in names if k not in ("qk", "v")}
listed = {k for row in re.findall(r"^\| (`.*?`) \|", text, re.M) for k in re.findall(r"`([^`]+)`", row)}
assert of_sides(fields(note)) | {"<side>"} == listed, of_sides(fields(note)) ^ listed
checkpoint = json.load(open(folder + "/zack/rates.json"))
assert set(fields(checkpoint)) == set(fields(note)) and checkpoint["form"] == "checkpoint" and checkpoint["v"]["folded"] and not checkpoint["qk"]["folded"]
assert checkpoint["point"] == 1 and abs(checkpoint["folded_p"] - (1 - (np.mean(checkpoint["v"]["kept"]) + 64) / 128)) < 1e-12
PY
  then ok "rotations and rates.json hold what spectrum and rates hold"; else bad "rotations and rates.json hold what spectrum and rates hold" "$(cat "$D/err")"; fi
else
  echo "skip rotations and rates.json hold what spectrum and rates hold: no h5py for $PYTHON"
fi

# ---- what is refused ----------------------------------------------------------------------------------
# fails NAME STATUS TEXT COMMAND...: one line, no folder left, nor a part of one
fails() {
  name=$1 want=$2 text=$3; shift 3
  "$@" -o "$D/none" >"$D/out" 2>"$D/err"; rc=$?
  if [ $rc -eq "$want" ] && grep -qF -- "$text" "$D/err" && [ -z "$(ls -d "$D"/none* 2>/dev/null)" ] &&
     [ "$(grep -c '^kvdim-export: ' "$D/err")" -eq 1 ]; then ok "refuses $name"
  else bad "refuses $name" "status $rc, wanted $want and '$text'" "$(cat "$D/err")"; fi
}
# The printed command is one that a shell reads, whatever the paths.
cp "$D/s.h5" "$D/a 'b' s.h5"
$EXPORT $MODEL --spectrum "$D/a 'b' s.h5" --method zack,p=0.5 -o "$D/quoted" >"$D/out" 2>"$D/err"
eval "set -- $(sed -n 's/^predicted by: //p' "$D/out")"
[ "$1 $3 $5" = "kvdim-eval --spectrum --method" ] && cmp "$4" "$D/s.h5" && ok "the command of the prediction is quoted" || bad "the command of the prediction is quoted" "$(cat "$D/out" "$D/err")"

z="$EXPORT $MODEL $bases"
fails "no widths" 2 "no widths given" $z
fails "rates and p" 2 "has widths of its own: leave out --rates" $z --rates "$D/r.h5" --method zack,p=0.5
fails "a point without rates" 2 "--point requires --rates" $z --method zack,p=0.5 --point 0
fails "two ways to a point" 2 "--overall-p cannot be used with --point" $z --rates "$D/r.h5" --point 0 --overall-p 0.5
fails "none" 2 "--method none cannot be folded into weights; give one of zack, fdc, uniform, balanced, fisher, matryoshka" $z --method none
fails "latents" 2 "--method palu cannot be folded" $z --method palu
fails "rotations of every prompt" 2 "cannot be folded into weights; give one of zack, fdc, uniform, balanced, fisher, matryoshka alone, without online and explicit" $z --method zack,p=0.5,online=1
fails "another axis" 2 "--method zack+kivi,p=0.5 cannot be folded" $z --method zack+kivi,p=0.5
fails "a type of rotations" 2 "--dtype cannot be used with --rotations-only" $z --method zack,p=0.5 --rotations-only --dtype f16
fails "no choice among points" 1 "has 2 points: choose one with --point or --overall-p" $z --rates "$D/r.h5"
fails "a point too many" 1 "--point 2: '$D/r.h5' has 2 points" $z --rates "$D/r.h5" --point 2
$z --rates "$D/r.h5" --overall-p 0.4 --rotations-only -q -o "$D/next" 2>"$D/err" && grep -qF "has no point at --overall-p 0.4: 0.5 is taken" "$D/err" &&
  $z --rates "$D/r.h5" --overall-p 0.3 --rotations-only -q -o "$D/third" 2>"$D/err" && ! [ -s "$D/err" ] &&
  ok "says that another p is taken" || bad "says that another p is taken" "$(cat "$D/err")"
fails "a p that is not reached" 1 "--overall-p 0.6: '$D/r.h5' goes up to 0.5" $z --rates "$D/r.h5" --overall-p 0.6
fails "Q and K of a model with RoPE" 1 "nothing folds: method 'zack,p=0.5,cut=qk' cuts Q and K alone, and RoPE comes after W_Q and W_K" \
  $z --method zack,p=0.5,cut=qk
fails "rates of other pairs" 1 "method 'zack' has pairs qk and vw" $z --rates "$D/b.h5" --method zack
fails "a spectrum of another model" 1 "are of different models" $EXPORT tests/data/families/opt-before $bases --method zack,p=0.5
"$B/bin/kvdim-collect" $MODEL --random 40 --moments -q -o "$D/few.m.h5" && "$B/bin/kvdim-spectrum" "$D/few.m.h5" --pair bqk,bvw -q -o "$D/few.h5"
fails "bases of too few tokens" 1 "calibrate with more tokens" $EXPORT $MODEL --spectrum "$D/few.h5" --method balanced,p=0.1
"$B/tests/tool_checkpoint" "$D/l2.bin" && "$B/bin/kvdim-collect" "$D/l2.bin" --random 300 --moments -q -o "$D/l2m.h5" &&
  "$B/bin/kvdim-spectrum" "$D/l2m.h5" -q -o "$D/l2s.h5"
fails "llama2.c" 1 "l2.bin' is not in safetensors, which a checkpoint is written from; --rotations-only takes it" \
  $EXPORT "$D/l2.bin" --spectrum "$D/l2s.h5" --method zack,p=0.5
$EXPORT "$D/l2.bin" --spectrum "$D/l2s.h5" --method zack,p=0.5 --rotations-only -q -o "$D/l2" && grep -q '"rope_layout": "interleaved"' "$D/l2/rates.json" &&
  ok "rotations of a llama2.c file" || bad "rotations of a llama2.c file"

# target NAME TEXT DIR OPTIONS...: refused, and DIR is as it was
target() {
  name=$1 text=$2 dir=$3; shift 3
  rm -rf "$D/before"; cp -r "$dir" "$D/before"
  $z --method zack,p=0.5 "$@" -o "$dir" >"$D/out" 2>"$D/err"; rc=$?
  if [ $rc -eq 1 ] && grep -qF -- "$text" "$D/err" && [ "$(wc -l <"$D/err")" -eq 1 ] && diff -r "$dir" "$D/before" >"$D/log"; then ok "refuses $name"
  else bad "refuses $name" "status $rc" "$(cat "$D/err" "$D/log")"; fi
}
mkdir "$D/mine" "$D/deep" && cp "$D/rotations/rates.json" "$D/deep" && mkdir "$D/deep/more" && echo x >"$D/mine/thesis.tex"
target "a folder that exists" "it exists; --force replaces an earlier export" "$D/rotations"
target "to replace what is no export" "it is not, or not only, an earlier export" "$D/mine" --force
target "to replace an export with folders in it" "it is not, or not only, an earlier export" "$D/deep" --force
cp "$D/s.h5" "$D/zack/in.h5"
$EXPORT $MODEL --spectrum "$D/zack/in.h5" --method zack,p=0.5 --force -o "$D/zack/" 2>"$D/err"
grep -qF "it holds the input '$D/zack/in.h5'" "$D/err" && ok "refuses a folder with an input" || bad "refuses a folder with an input" "$(cat "$D/err")"
$EXPORT $MODEL --spectrum "$D/s.h5" --method zack,p=0.5 -o "$MODEL/new/" 2>"$D/err"
grep -qF "it would be part of the input folder '$MODEL'" "$D/err" && [ ! -e "$MODEL/new" ] && ok "refuses a folder in its model" || bad "refuses a folder in its model" "$(cat "$D/err")"
rm -f "$D/zack/in.h5"
cp -r $MODEL "$D/copy"
$EXPORT "$D/copy" $bases --method zack,p=0.5 --force -o "$D/copy" 2>"$D/err"
grep -qF "it is the input '$D/copy'" "$D/err" && cmp -s $MODEL/model.safetensors "$D/copy/model.safetensors" && ok "refuses its own model" ||
  bad "refuses its own model" "$(cat "$D/err")"
$EXPORT "$D/zack" --spectrum "$D/s.h5" --method zack,p=0.5 -o "$D/other" 2>"$D/err"; grep -qF "are of different models" "$D/err" &&
  ok "a folded checkpoint is another model" || bad "a folded checkpoint is another model" "$(cat "$D/err")"
if $z --method zack,p=0.3 --force -q -o "$D/rotations" 2>"$D/err" && [ -e "$D/rotations/model.safetensors" ] && [ ! -e "$D/rotations/rotations.safetensors" ] &&
   [ -z "$(ls -d "$D"/rotations.* 2>/dev/null)" ]
then ok "--force replaces an export"; else bad "--force replaces an export" "$(cat "$D/err"; ls "$D")"; fi

# ---- a full disk ---------------------------------------------------------------------------------------
# full NAME WHY FOLDER COMMAND...: status 1, one line, nothing left
full() {
  name=$1 why=$2 folder=$3; shift 3
  timeout 60 "$@" >"$D/out" 2>"$D/err"; rc=$?
  if [ $rc -eq 1 ] && grep -q "$why" "$D/err" && [ "$(wc -l <"$D/err")" -eq 1 ] && [ -z "$(ls "$folder")" ]; then ok "$name"
  else bad "$name" "status $rc, left: $(ls "$folder")" "$(cat "$D/err")"; fi
}
mkdir "$D/limited" "$D/disk"
# The OpenMP library of clang makes a file of 1,024 bytes before main, and a smaller limit ends it.
for blocks in 4 40 20000; do
  full "file size limit of $blocks blocks" 'File too large' "$D/limited" \
    sh -c "ulimit -f $blocks; exec $z --method zack,p=0.5 -q -o '$D/limited/x'"
done
if mount -t tmpfs -o size=8m none "$D/disk" 2>/dev/null; then
  mounted=1
  full "disk full" 'No space left on device' "$D/disk" $z --method zack,p=0.5 -q -o "$D/disk/x"
else
  echo 'skip disk full: no right to mount a tmpfs'
fi
mkdir "$D/killed.partial" && echo half >"$D/killed.partial/model.safetensors"
$z --method zack,p=0.5 -q -o "$D/killed" 2>"$D/err" && [ ! -e "$D/killed.partial" ] && ok "what a killed run left is no obstacle" ||
  bad "what a killed run left is no obstacle" "$(cat "$D/err")"

# ---- a model with a scale and a cap of scores of its own ------------------------------------------
G=tests/data/families/gemma2-caps
awk 'BEGIN { s = 1; for (i = 0; i < 12; i++) { for (j = 0; j < 40; j++) { s = (s * 16807) % 2147483647
  printf "%s%d", j ? "," : "", s % 80 } print "" } }' >"$D/ids.csv"
if "$B/bin/kvdim-collect" $G --ids "$D/ids.csv" --seq-len 40 --moments -q -o "$D/gm.h5" 2>"$D/err" &&
   "$B/bin/kvdim-spectrum" "$D/gm.h5" --pair qk,vw -q -o "$D/gs.h5" 2>>"$D/err" &&
   "$EVAL" $G --ids "$D/ids.csv" --seq-len 40 --spectrum "$D/gs.h5" --method zack,p=0.4,cut=v -q --json -o "$D/g.h5" >"$D/g.json" 2>>"$D/err" &&
   $EXPORT $G --spectrum "$D/gs.h5" --method zack,p=0.4 --dtype f32 -q -o "$D/gemma" 2>>"$D/err" &&
   grep -q '"scale": 0.25' "$D/gemma/rates.json" && grep -q '"softcap": 5.0' "$D/gemma/rates.json"
then ok "scale and softcap are in rates.json"; else bad "scale and softcap are in rates.json" "$(cat "$D/err" "$D/gemma/rates.json")"; fi
near "gemma2 is as predicted" "$(perplexity "--ids $D/ids.csv --seq-len 40" "$D/gemma" --method none)" "$(values perplexity "$D/g.json" | tail -1)" 1e-5
