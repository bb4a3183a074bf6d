#!/bin/sh
# kvdim-spectrum on small synthetic files: methods agree, NumPy agrees, inputs add, and what cannot be is refused.
command -v h5diff >/dev/null || { echo "skip kvdim_spectrum: no h5diff (package hdf5-tools)"; exit 0; }
. tests/lib/cases.sh
make_file="$B/tests/tool_synthetic"
spectrum="$B/bin/kvdim-spectrum"

all=q,k,v,wv,qk,vw

"$make_file" activations "$D/a.h5" 300 1 label=wiki pre=1 && "$make_file" activations "$D/b.h5" 200 2 label=code pre=1 &&
  "$make_file" moments "$D/am.h5" 300 1 label=wiki pre=1 && "$make_file" moments "$D/bm.h5" 200 2 label=code pre=1 &&
  "$make_file" activations "$D/other.h5" 200 3 hash=xxh3:7 pre=1 || { echo "not ok cannot make inputs"; exit 1; }

for m in svd tsqr gram; do
  check "method $m" "$spectrum" "$D/a.h5" --pair $all,bqk,bvw --method $m -q -o "$D/$m.h5"
done
# Rounding to float16 leaves singular values of 1e-5 of the largest: more than a Gram matrix can tell.
"$make_file" activations "$D/ill.h5" 400 1 d=48 dtype=f16 || { echo "not ok cannot make inputs"; exit 1; }
for m in svd gram; do
  check "ill-conditioned float16, $m" "$spectrum" "$D/ill.h5" --pair k,v --method $m -o "$D/ill_$m.h5"
done
cp "$D/log" "$D/ill_log"
check "it says which heads tsqr did" grep -q "pair 'k': 4 heads .* by tsqr" "$D/ill_log"
for p in k v; do
  check "ill-conditioned float16: gram within 1e-9 of svd, $p" h5diff -p 1e-9 "$D/ill_svd.h5" "$D/ill_gram.h5" /$p/sigma
done
check "moments" "$spectrum" "$D/am.h5" --pair $all,bqk,bvw -q -o "$D/mom.h5"
for p in sigma R; do
  for pair in qk vw q k v wv; do
    check "svd equals tsqr: $pair $p" h5diff -d 1e-10 "$D/svd.h5" "$D/tsqr.h5" /$pair/$p
    check "svd equals gram: $pair $p" h5diff -d 1e-9 "$D/svd.h5" "$D/gram.h5" /$pair/$p
    check "dump equals moments: $pair $p" h5diff -d 1e-9 "$D/gram.h5" "$D/mom.h5" /$pair/$p
  done
done
check "balanced pairs come from moments whatever the method" h5diff "$D/svd.h5" "$D/gram.h5" /bqk/left
check "balanced right matrix" h5diff -d 1e-9 "$D/svd.h5" "$D/mom.h5" /bvw/right

# Two dumps count as one set of texts; weights enter once.
for m in svd tsqr gram; do
  check "two dumps by $m" "$spectrum" "$D/a.h5" "$D/b.h5" --pair $all --method $m -q -o "$D/two_$m.h5"
done
check "two moments" "$spectrum" "$D/am.h5" "$D/bm.h5" --pair $all -q -o "$D/two_mom.h5"
for pair in qk vw wv; do
  for m in tsqr gram mom; do
    check "two inputs, svd equals $m: $pair" h5diff -d 1e-9 "$D/two_svd.h5" "$D/two_$m.h5" /$pair/sigma
  done
done
check "weights alone do not change with texts" h5diff -d 1e-9 "$D/two_svd.h5" "$D/svd.h5" /wv/R

# --tokens: the first N; N of the first dump alone when it has as many.
check "tokens" "$spectrum" "$D/a.h5" --tokens 120 --method svd -q -o "$D/t120.h5"
check "tokens over two dumps" "$spectrum" "$D/a.h5" "$D/b.h5" --tokens 300 -q -o "$D/t300.h5"
check "tokens of the first dump alone" h5diff "$D/t300.h5" "$D/gram.h5" /qk/R
check "before RoPE, per query" "$spectrum" "$D/a.h5" --rope before --pairing per-query --pair qk,vw --method tsqr -q -o "$D/pre.h5"
check "before RoPE, per query, moments" "$spectrum" "$D/am.h5" --rope before --pairing per-query --pair qk,vw -q -o "$D/prem.h5"
check "they agree" h5diff -d 1e-9 "$D/pre.h5" "$D/prem.h5" /qk/R

if "$PYTHON" -c 'import h5py, numpy' 2>/dev/null; then
  for run in "svd a 300 shared after" "t120 a 120 shared after" "pre a 300 per-query before"; do
    set -- $run
    check "NumPy agrees: $1" "$PYTHON" tests/oracle/results.py spectrum "$D/$2.h5" "$3" "$4" "$5" "$D/$1.h5"
  done
else
  echo "skip NumPy agrees: no h5py for $PYTHON"
fi

# fewer rows than dimensions works and is said
"$make_file" activations "$D/few.h5" 3 4
"$spectrum" "$D/few.h5" --pair k,qk --method svd -o "$D/few_s.h5" >"$D/log" 2>&1 &&
  grep -qF "pair 'k' has 3 rows for 8 dimensions: the last 5 singular values are 0" "$D/log" && ! grep -q "pair 'qk' has" "$D/log" &&
  ok "fewer rows than dimensions" || not_ok "fewer rows than dimensions"

# one thread and two give the same file, but for its provenance
check "one thread" "$spectrum" "$D/am.h5" --pair $all,bqk,bvw --threads 1 -q -o "$D/one.h5"
check "threads do not change the result" h5diff "$D/one.h5" "$D/mom.h5" /qk/R

# ---- fewer rows: ZDC's pruning and K-means -------------------------------------------------------------
# 400 tokens in 20 sequences; the rows of the second file are 60 rows, five times each.
"$make_file" activations "$D/seq.h5" 400 1 sequences=20 pre=1 && "$make_file" activations "$D/five.h5" 300 1 distinct=60 &&
  "$make_file" activations "$D/seq2.h5" 150 2 sequences=10 pre=1 || { echo "not ok cannot make inputs"; exit 1; }
check "as many centroids as tokens, weighted" "$spectrum" "$D/seq.h5" --pair $all --centroids 400 --weighted --method svd -q -o "$D/k400.h5"
check "all rows of the same file" "$spectrum" "$D/seq.h5" --pair $all --method svd -q -o "$D/k0.h5"
check "as many centroids as distinct rows, weighted" "$spectrum" "$D/five.h5" --pair $all,bqk --centroids 60 --weighted -q -o "$D/k60w.h5"
check "as many centroids as distinct rows, unweighted" "$spectrum" "$D/five.h5" --pair $all --centroids 60 -q -o "$D/k60.h5"
check "all rows of the repeated file" "$spectrum" "$D/five.h5" --pair $all,bqk -q -o "$D/five_s.h5"
for pair in qk vw q k v wv; do
  check "centroids that are the rows: $pair" h5diff -p 1e-5 "$D/k400.h5" "$D/k0.h5" /$pair/sigma
  check "weighted centroids of distinct rows: $pair" h5diff -p 1e-5 "$D/k60w.h5" "$D/five_s.h5" /$pair/sigma
done
check "balanced pairs of weighted centroids" h5diff -p 1e-5 "$D/k60w.h5" "$D/five_s.h5" /bqk/sigma
check "W_V is not clustered" h5diff "$D/k60.h5" "$D/five_s.h5" /wv/R
"$B/tests/tool_h5list" "$D/k60.h5" | grep -qx 'attribute|/calibration|centroids|int64' && ok "attributes of the centroids" || not_ok "attributes of the centroids"
if "$PYTHON" -c 'import h5py, numpy' 2>/dev/null; then
  check "unweighted centroids have a fifth of the energy" "$PYTHON" -c '
import h5py, numpy, sys
a, b = (h5py.File(p)["k/sigma"][:] for p in sys.argv[1:3])
assert numpy.allclose(a * 5 ** 0.5, b, rtol=1e-5)
c = h5py.File(sys.argv[1])["calibration"].attrs
assert c["centroids"] == 60 and c["weighted"] == 0 and c["kmeans_residual"] < 1e-12 and c["kmeans_iterations"] >= 1' "$D/k60.h5" "$D/five_s.h5"
else
  echo "skip unweighted centroids: no h5py for $PYTHON"
fi
for m in svd tsqr gram; do
  check "pruned and clustered, $m" "$spectrum" "$D/seq.h5" "$D/seq2.h5" --pair $all --prune 0.4 --centroids 50 --method $m -q -o "$D/z_$m.h5"
done
for pair in qk vw; do
  check "pruned and clustered: svd equals tsqr, $pair" h5diff -d 1e-9 "$D/z_svd.h5" "$D/z_tsqr.h5" /$pair/sigma
  check "pruned and clustered: svd equals gram, $pair" h5diff -d 1e-8 "$D/z_svd.h5" "$D/z_gram.h5" /$pair/sigma
done
check "the same seed" "$spectrum" "$D/seq.h5" "$D/seq2.h5" --pair $all --prune 0.4 --centroids 50 --threads 1 -q -o "$D/z_again.h5"
check "the same seed gives the same, with one thread too" h5diff "$D/z_gram.h5" "$D/z_again.h5" /qk/R
check "another seed" "$spectrum" "$D/seq.h5" "$D/seq2.h5" --pair $all --prune 0.4 --centroids 50 --seed 2 -q -o "$D/z_other.h5"
h5diff "$D/z_gram.h5" "$D/z_other.h5" /qk/R >/dev/null 2>&1 && not_ok "another seed gives another" || ok "another seed gives another"
"$spectrum" "$D/seq.h5" "$D/seq2.h5" --prune 0.4 -o "$D/z_pruned.h5" >"$D/log" 2>&1 && grep -q "330 tokens of" "$D/log" &&
  grep -q "pruned: 12 sequences of 220 tokens left out" "$D/log" && ok "pruning is said" || not_ok "pruning is said"
check "before RoPE, per query, clustered" "$spectrum" "$D/seq.h5" --rope before --pairing per-query --centroids 400 --weighted -q -o "$D/z_pre.h5"
check "before RoPE, per query" "$spectrum" "$D/seq.h5" --rope before --pairing per-query -q -o "$D/z_pre0.h5"
check "they agree" h5diff -p 1e-5 "$D/z_pre.h5" "$D/z_pre0.h5" /qk/sigma
check "pruned tokens" "$spectrum" "$D/seq.h5" --tokens 130 --prune 0.5 --json -o "$D/z_cut.h5"
grep -q '"tokens_dropped": \(60\|70\)' "$D/log" && ok "a cut sequence counts as one" || not_ok "a cut sequence counts as one"
refused "more centroids than tokens" 1 "401 centroids are more than the 400 tokens" "$spectrum" "$D/seq.h5" --centroids 401 -o "$D/y.h5"
refused "more centroids than tokens that are left" 1 "201 centroids are more than the 200 tokens" "$spectrum" "$D/seq.h5" --centroids 201 --prune 0.5 -o "$D/y.h5"
refused "one sequence cannot be pruned" 1 "of 1 sequences none is left" "$spectrum" "$D/a.h5" --prune 0.5 -o "$D/y.h5"
refused "centroids of moments" 1 "--centroids needs rows" "$spectrum" "$D/am.h5" --centroids 5 -o "$D/y.h5"
refused "pruned moments" 1 "--prune needs rows" "$spectrum" "$D/am.h5" --prune 0.5 -o "$D/y.h5"
refused "weights of nothing" 2 "--weighted requires --centroids" "$spectrum" "$D/seq.h5" --weighted -o "$D/y.h5"
refused "nothing left" 2 "--prune: '1' is not below 1" "$spectrum" "$D/seq.h5" --prune 1 -o "$D/y.h5"
refused "no centroids" 2 "--centroids" "$spectrum" "$D/seq.h5" --centroids 0 -o "$D/y.h5"

# ---- GPU -----------------------------------------------------------------------------------------------
if "$spectrum" "$D/am.h5" --device cuda --pair $all,bqk,bvw -o "$D/gpu.h5" >"$D/log" 2>&1; then
  grep -q "eigenvalues on .*: qk,vw,q,k,v,wv; on the CPU: bqk,bvw" "$D/log" && ok "GPU: which pairs ran there" || not_ok "GPU: which pairs ran there"
  check "GPU: dumps" "$spectrum" "$D/a.h5" --device cuda --pair $all -q -o "$D/gpu_a.h5"
  check "GPU: ill-conditioned float16" "$spectrum" "$D/ill.h5" --device cuda --pair k,v -q -o "$D/gpu_ill.h5"
  check "GPU: clustered" "$spectrum" "$D/seq.h5" "$D/seq2.h5" --device cuda --pair $all --prune 0.4 --centroids 50 -q -o "$D/gpu_z.h5"
  for pair in qk vw q k v wv; do
    for p in sigma R; do
      check "GPU equals CPU: $pair $p" h5diff -d 1e-9 "$D/gpu.h5" "$D/mom.h5" /$pair/$p
      check "GPU equals CPU, dump: $pair $p" h5diff -d 1e-9 "$D/gpu_a.h5" "$D/gram.h5" /$pair/$p
    done
  done
  check "GPU equals CPU, clustered" h5diff -d 1e-9 "$D/gpu_z.h5" "$D/z_gram.h5" /qk/sigma
  for p in k v; do
    check "GPU equals svd, ill-conditioned: $p" h5diff -p 1e-9 "$D/ill_svd.h5" "$D/gpu_ill.h5" /$p/sigma
  done
else
  grep -qE "no CUDA|cuSOLVER" "$D/log" && echo "skip GPU: $(sed 's/^kvdim-spectrum: //' "$D/log")" || not_ok "GPU: refused"
fi

"$spectrum" "$D/am.h5" --json -o "$D/j.h5" >"$D/j.json" 2>"$D/log" && "$PYTHON" -c '
import json, sys
x = json.load(open(sys.argv[1]))
assert x["pairs"]["qk"]["heads"] == 4 and x["pairs"]["qk"]["rows"] == 900 and x["label"] == "wiki"
assert 1 <= x["pairs"]["vw"]["effective_rank"] <= 8' "$D/j.json" 2>>"$D/log" && ok "json" || not_ok "json"

"$make_file" activations "$D/zero.h5" 40 1 zero=1
check "a dump of zeros" "$spectrum" "$D/zero.h5" --pair q,k,bqk -o "$D/x.h5"
grep -q "^k .* 0  *-  *0.00 .*" "$D/log" && ! grep -q nan "$D/log" && ok "and no CV of it" || not_ok "and no CV of it"
"$make_file" activations "$D/nan.h5" 20 1 nan=1
for m in svd tsqr gram; do
  refused "NaN is named, $m" 1 "nan.h5'" "$spectrum" "$D/nan.h5" --method $m -o "$D/x.h5"
done
for word in "layer 1" "head 1" "token 3" "dim 2"; do
  refused "NaN: $word" 1 "$word" "$spectrum" "$D/nan.h5" -o "$D/x.h5"
done
refused "another model" 1 "different models" "$spectrum" "$D/a.h5" "$D/other.h5" -o "$D/x.h5"
refused "the same texts twice" 1 "hold the same texts" "$spectrum" "$D/a.h5" "$D/a.h5" -o "$D/x.h5"
cp "$D/a.h5" "$D/copy.h5"
refused "the same texts under another name" 1 "hold the same texts (corpus hash" "$spectrum" "$D/a.h5" "$D/copy.h5" -o "$D/x.h5"
refused "the same texts twice, moments" 1 "hold the same texts" "$spectrum" "$D/am.h5" "$D/bm.h5" "$D/am.h5" -o "$D/x.h5"
refused "two kinds" 1 "give one kind" "$spectrum" "$D/a.h5" "$D/bm.h5" -o "$D/x.h5"
refused "a spectrum is no input" 1 "activations or kvdim/moments is wanted" "$spectrum" "$D/svd.h5" -o "$D/x.h5"
refused "svd of moments" 1 "--method svd needs rows" "$spectrum" "$D/am.h5" --method svd -o "$D/x.h5"
refused "moments cannot be cut" 1 "cannot be cut" "$spectrum" "$D/am.h5" --tokens 299 -o "$D/x.h5"
check "moments of as many tokens" "$spectrum" "$D/am.h5" --tokens 300 -q -o "$D/x.h5"
refused "too many tokens" 1 "--tokens 301: the dump has 300 tokens" "$spectrum" "$D/a.h5" --tokens 301 -o "$D/y.h5"
"$make_file" activations "$D/after.h5" 20 9
refused "no Q and K before RoPE" 1 "no Q and K before RoPE" "$spectrum" "$D/after.h5" --rope before -o "$D/y.h5"
refused "missing input" 1 "nowhere.h5" "$spectrum" "$D/nowhere.h5" -o "$D/y.h5"
refused "missing folder" 1 "$D/no/such" "$spectrum" "$D/am.h5" -o "$D/no/such/y.h5"
[ ! -e "$D/y.h5" ] && [ -z "$(ls "$D" | grep -E 'partial|lock')" ] && ok "failures leave nothing" || { ls "$D" >"$D/log"; not_ok "failures leave nothing"; }
refused "unknown pair" 2 "--pair: 'qv' is none of qk, vw, q, k, v, wv" "$spectrum" "$D/a.h5" --pair qk,qv -o "$D/y.h5"
refused "balanced per query" 2 "'bqk' is defined per KV head" "$spectrum" "$D/a.h5" --pair bqk --pairing per-query -o "$D/y.h5"
refused "balanced before RoPE" 2 "'bqk' is defined after RoPE" "$spectrum" "$D/a.h5" --pair bqk --rope before -o "$D/y.h5"
refused "no input" 2 "no IN.h5 given" "$spectrum" -o "$D/y.h5"
refused "no output" 2 "no -o OUT.h5 given" "$spectrum" "$D/a.h5"

# Without bases: the same singular values in a file that kvdim-report alone reads.
check "no bases" "$spectrum" "$D/a.h5" --pair $all,bqk,bvw --no-bases -q -o "$D/values.h5"
check "the same singular values" h5diff "$D/values.h5" "$D/gram.h5" /qk/sigma
! h5dump -H "$D/values.h5" | grep -qE 'DATASET "(R|left|right)"' && ok "no dataset of bases" || not_ok "no dataset of bases"
refused "another program wants bases" 1 "holds no bases of" "$B/bin/kvdim-similarity" "$D/values.h5" "$D/gram.h5" -o "$D/y.h5"
check "the report takes singular values alone" "$B/bin/kvdim-report" "$D/values.h5" --no-plots -o "$D/report"
