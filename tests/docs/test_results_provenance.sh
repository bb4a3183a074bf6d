#!/bin/sh
# Every committed HDF5 result names a revision without local changes, and a command without a folder
# of one machine (/tmp, /work). `known` lists the exceptions, also as patterns: files that take another
# machine, texts that are not here, or more than 15 minutes to make again. An exception that a new
# file has made needless is an error too.
set -u
python=${PYTHON:-/usr/bin/python3}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
if ! "$python" -c 'import h5py' 2>/dev/null; then
  echo "skip provenance of results: $python lacks h5py"
  exit 0
fi
cat >"$tmp/check.py" <<'P'
import fnmatch, glob, os, re, sys, h5py
root, known = sys.argv[1], set(open(sys.argv[2]).read().split())
text = lambda v: v.decode() if isinstance(v, bytes) else str(v)
found, files = [], sorted(glob.glob(os.path.join(root, "**", "*.h5"), recursive=True))
for path in files:
    with h5py.File(path) as f:
        p = f["provenance"].attrs
        why = []
        if text(p["git_revision"]).endswith("-dirty"):
            why.append("was made by revision " + text(p["git_revision"]))
        folder = re.search(r"(?:^|[ =,])(/(?:tmp|work)/\S*)", text(p["command_line"]))
        if folder:
            why.append("has a command that names " + folder.group(1))
        if why:
            found.append((os.path.relpath(path, root), " and ".join(why)))
# Local changes are never excepted.
excepted = {k: [n for n, why in found if fnmatch.fnmatch(n, k) and "-dirty" not in why] for k in known}
bad = [f"{n} {why}: make it again in a clean clone" for n, why in found if not any(n in e for e in excepted.values())]
bad += [f"{k} is an exception without need: remove it from the list" for k, e in excepted.items() if not e]
print("\n".join(sorted(bad)), end="")
sys.exit(1 if bad or not files else 0)
P
check() {
  name=$1; shift
  if "$@" >"$tmp/log" 2>&1; then echo "ok $name"; else echo "not ok $name"; sed 's/^/# /' "$tmp/log"; fi
}
refused() {
  name=$1 text=$2; shift 2
  if "$@" >"$tmp/log" 2>&1 || ! grep -qF -- "$text" "$tmp/log"; then echo "not ok $name"; else echo "ok $name"; fi
}
cat >"$tmp/known" <<'F'
every-model/babyllama-tok105/accuracy.h5
every-model/babyllama-tok361/accuracy.h5
every-model/kvdim-6m/accuracy.h5
every-model/stories260K/accuracy.h5
every-model/tinystories656K/accuracy.h5
every-model/zhpoem750K/accuracy.h5
h100/decode.h5
h100/falcon-7b.h5
h100/gemma-3-12b-*.h5
h100/gpt-oss-20b-*.h5
h100/steps-of-every-token.h5
h200/ablations/fdc-keyformer/costs-arxiv.h5
h200/ablations/fdc-keyformer/costs-cocktail-fdc.h5
h200/ablations/fdc-keyformer/costs-humaneval.h5
h200/ablations/fdc-keyformer/costs-pg19.h5
h200/ablations/fdc-kvquant/costs-*.h5
h200/ablations/fdc-parts/costs-arxiv.h5
h200/ablations/fdc-parts/costs-cocktail-fdc.h5
h200/ablations/fdc-parts/costs-humaneval.h5
h200/ablations/fdc-parts/costs-stock-cocktail-fdc.h5
h200/ablations/zack-keyformer/costs-*.h5
h200/ablations/zack-parts/costs-arxiv.h5
h200/ablations/zack-parts/costs-cocktail.h5
h200/ablations/zack-parts/costs-humaneval.h5
h200/ablations/zack-parts/costs-imdb.h5
h200/serving/by-batch.h5
h200/serving/by-input.h5
h200/serving/input-100k.h5
kvdim-*/rates-at-equal-accuracy/on-*-cloze-i250.h5
kvdim-25m-recall/leaderboard-sweep/steps-*.h5
kvdim-25m-recall/rates-at-equal-accuracy/on-HumanEval-reference_edit_similarity-i48.h5
kvdim-25m-recall/rates-at-equal-accuracy/on-arxiv_abstracts-reference_rouge1-i64.h5
kvdim-25m-recall/rates-at-equal-accuracy/on-gutenberg_2701_moby_dick-reference_rouge1-i64.h5
kvdim-25m-recall/rates-at-equal-accuracy/on-imdb_sample-reference_rouge1-i64.h5
kvdim-25m/rates-at-equal-accuracy/on-HumanEval-reference_edit_similarity-i48.h5
kvdim-25m/rates-at-equal-accuracy/on-HumanEval-t4096.h5
kvdim-25m/rates-at-equal-accuracy/on-arxiv_abstracts-reference_rouge1-i64.h5
kvdim-25m/rates-at-equal-accuracy/on-arxiv_abstracts-t4096.h5
kvdim-25m/rates-at-equal-accuracy/on-gutenberg_2701_moby_dick-reference_rouge1-i64.h5
kvdim-25m/rates-at-equal-accuracy/on-gutenberg_2701_moby_dick-t4096.h5
kvdim-25m/rates-at-equal-accuracy/on-imdb_sample-reference_rouge1-i64.h5
kvdim-25m/rates-at-equal-accuracy/on-imdb_sample-t4096.h5
kvdim-25m/recall-tasks.h5
kvdim-6m-recall/rates-at-equal-accuracy/on-HumanEval-reference_edit_similarity-i48.h5
kvdim-6m-recall/rates-at-equal-accuracy/on-arxiv_abstracts-reference_rouge1-i64.h5
kvdim-6m-recall/rates-at-equal-accuracy/on-gutenberg_2701_moby_dick-reference_rouge1-i64.h5
kvdim-6m-recall/rates-at-equal-accuracy/on-imdb_sample-reference_rouge1-i64.h5
kvdim-6m/rates-at-equal-accuracy/on-gutenberg_2701_moby_dick-reference_rouge1-i64.h5
F
check "provenance of the committed results" "$python" "$tmp/check.py" results "$tmp/known"

# A file of each kind, made here from a committed one.
mkdir "$tmp/made"
make_file() {
  "$python" - results/kvdim-25m/accuracy.h5 "$tmp/made/$1" "$2" "$3" <<'P'
import shutil, sys, h5py
source, to, name, value = sys.argv[1:]
shutil.copy(source, to)
with h5py.File(to, "r+") as f:
    f["provenance"].attrs[name] = value.encode()
P
}
: >"$tmp/none"
make_file good.h5 command_line "/kvdim/build/bin/kvdim-eval /kvdim/inputs/models/tmp -o out/src/work.h5"
check "a neutral command" "$python" "$tmp/check.py" "$tmp/made" "$tmp/none"
echo good.h5 >"$tmp/one"
refused "an exception without need" "good.h5 is an exception without need" "$python" "$tmp/check.py" "$tmp/made" "$tmp/one"
for folder in tmp work; do
  make_file bad.h5 command_line "kvdim-eval model --spectrum=/$folder/s.h5 -o out.h5"
  refused "a command that names /$folder" "has a command that names /$folder/s.h5" "$python" "$tmp/check.py" "$tmp/made" "$tmp/none"
done
make_file bad.h5 git_revision "0123456789ab-dirty"
refused "a revision with local changes" "bad.h5 was made by revision 0123456789ab-dirty" "$python" "$tmp/check.py" "$tmp/made" "$tmp/none"

# ---- archives --------------------------------------------------------------------------------
check "archives agree with their folders" sh scripts/archives.sh check

# A tree of its own: a file made here is never replaced, one from an archive is.
script=$PWD/scripts/archives.sh
mkdir -p "$tmp/tree/results/h200/a/deep" "$tmp/tree/tests" "$tmp/tree/data/models/m" && cd "$tmp/tree" || exit 1
echo one >results/h200/a/deep/one.h5
echo two >"results/h200/a/two words.log"
echo text >results/h200/a/README.md
check "pack" sh "$script" pack results/h200/a
tar -tf results/h200/a/files.tar.xz >"$tmp/list" 2>&1
printf 'deep/one.h5\ntwo words.log\n' >"$tmp/want"
check "an archive has the measured files alone" cmp "$tmp/list" "$tmp/want"
rm -r results/h200/a/deep
refused "a missing file" "results/h200/a/deep/one.h5 is missing: run" sh "$script" check
check "unpack" sh "$script" unpack
check "nothing differs after unpack" sh "$script" check
echo new >results/h200/a/new.h5
check "a file that the archive lacks is no error" sh "$script" check
sh "$script" check >"$tmp/note" 2>&1
check "its name is printed" grep -qF "note: results/h200/a/new.h5 is not in results/h200/a/files.tar.xz" "$tmp/note"
rm results/h200/a/new.h5
echo other >"results/h200/a/two words.log"
refused "a file that differs" "results/h200/a/two words.log differs from" sh "$script" check
refused "a file made here is kept" "kept results/h200/a/two words.log, which differs from" sh "$script" unpack
check "its content" grep -qx other "results/h200/a/two words.log"
cp results/h200/a/files.tar.xz "$tmp/old.tar.xz"
check "pack again" sh "$script" pack results/h200/a
cp "$tmp/old.tar.xz" results/h200/a/files.tar.xz
check "unpack another archive" sh "$script" unpack
check "a file of an archive is replaced" grep -qx two "results/h200/a/two words.log"
echo three >results/h200/a/three.h5
check "pack three" sh "$script" pack results/h200/a
cp "$tmp/old.tar.xz" results/h200/a/files.tar.xz
echo new >results/h200/a/new.h5
check "unpack an archive with fewer files" sh "$script" unpack
check "a file of an earlier archive is removed, a file made here is not" [ ! -e results/h200/a/three.h5 -a -e results/h200/a/new.h5 ]
rm results/h200/a/new.h5
echo weights >data/models/m/model.safetensors
check "pack a model" sh "$script" pack data/models/m
rm data/models/m/model.safetensors
check "unpack a model" sh "$script" unpack
check "its weights" grep -qx weights data/models/m/model.safetensors
echo "not xz" >results/h200/a/files.tar.xz
refused "a damaged archive" "cannot read results/h200/a/files.tar.xz" sh "$script" unpack
