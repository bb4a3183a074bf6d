#!/bin/sh
# kvdim-spectrum on small synthetic files: methods agree, NumPy agrees, inputs add, and what cannot be is refused.
command -v h5diff >/dev/null || { echo "skip kvdim_spectrum: no h5diff (package hdf5-tools)"; exit 0; }
set -u
B=${BUILD:-build}
PYTHON=${PYTHON:-/usr/bin/python3}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
make_file="$B/tests/tool_synthetic"
spectrum="$B/bin/kvdim-spectrum"

ok() { echo "ok $1"; }
not_ok() { echo "not ok $1"; sed 's/^/# /' "$tmp/log"; }
check() { # name command...
  name=$1; shift
  if "$@" >"$tmp/log" 2>&1; then ok "$name"; else not_ok "$name"; fi
}
# name wanted-status wanted-text command...
refused() {
  name=$1 status=$2 text=$3; shift 3
  "$@" >"$tmp/log" 2>&1; got=$?
  if [ $got -eq "$status" ] && grep -qF -- "$text" "$tmp/log"; then ok "$name"; else echo "status $got" >>"$tmp/log"; not_ok "$name"; fi
}
all=q,k,v,wv,qk,vw

"$make_file" activations "$tmp/a.h5" 300 1 label=wiki pre=1 && "$make_file" activations "$tmp/b.h5" 200 2 label=code pre=1 &&
  "$make_file" moments "$tmp/am.h5" 300 1 label=wiki pre=1 && "$make_file" moments "$tmp/bm.h5" 200 2 label=code pre=1 &&
  "$make_file" activations "$tmp/other.h5" 200 3 hash=xxh3:7 pre=1 || { echo "not ok cannot make inputs"; exit 1; }

for m in svd tsqr gram; do
  check "method $m" "$spectrum" "$tmp/a.h5" --pair $all,bqk,bvw --method $m -q -o "$tmp/$m.h5"
done
# Rounding to float16 leaves singular values of 1e-5 of the largest: more than a Gram matrix can tell.
"$make_file" activations "$tmp/ill.h5" 400 1 d=48 dtype=f16 || { echo "not ok cannot make inputs"; exit 1; }
for m in svd gram; do
  check "ill-conditioned float16, $m" "$spectrum" "$tmp/ill.h5" --pair k,v --method $m -o "$tmp/ill_$m.h5"
done
cp "$tmp/log" "$tmp/ill_log"
check "it says which heads tsqr did" grep -q "pair 'k': 4 heads .* by tsqr" "$tmp/ill_log"
for p in k v; do
  check "ill-conditioned float16: gram within 1e-9 of svd, $p" h5diff -p 1e-9 "$tmp/ill_svd.h5" "$tmp/ill_gram.h5" /$p/sigma
done
check "moments" "$spectrum" "$tmp/am.h5" --pair $all,bqk,bvw -q -o "$tmp/mom.h5"
for p in sigma R; do
  for pair in qk vw q k v wv; do
    check "svd equals tsqr: $pair $p" h5diff -d 1e-10 "$tmp/svd.h5" "$tmp/tsqr.h5" /$pair/$p
    check "svd equals gram: $pair $p" h5diff -d 1e-9 "$tmp/svd.h5" "$tmp/gram.h5" /$pair/$p
    check "dump equals moments: $pair $p" h5diff -d 1e-9 "$tmp/gram.h5" "$tmp/mom.h5" /$pair/$p
  done
done
check "balanced pairs come from moments whatever the method" h5diff "$tmp/svd.h5" "$tmp/gram.h5" /bqk/left
check "balanced right matrix" h5diff -d 1e-9 "$tmp/svd.h5" "$tmp/mom.h5" /bvw/right

# Two dumps count as one set of texts; weights enter once.
for m in svd tsqr gram; do
  check "two dumps by $m" "$spectrum" "$tmp/a.h5" "$tmp/b.h5" --pair $all --method $m -q -o "$tmp/two_$m.h5"
done
check "two moments" "$spectrum" "$tmp/am.h5" "$tmp/bm.h5" --pair $all -q -o "$tmp/two_mom.h5"
for pair in qk vw wv; do
  for m in tsqr gram mom; do
    check "two inputs, svd equals $m: $pair" h5diff -d 1e-9 "$tmp/two_svd.h5" "$tmp/two_$m.h5" /$pair/sigma
  done
done
check "weights alone do not change with texts" h5diff -d 1e-9 "$tmp/two_svd.h5" "$tmp/svd.h5" /wv/R

# --tokens: the first N; N of the first dump alone when it has as many.
check "tokens" "$spectrum" "$tmp/a.h5" --tokens 120 --method svd -q -o "$tmp/t120.h5"
check "tokens over two dumps" "$spectrum" "$tmp/a.h5" "$tmp/b.h5" --tokens 300 -q -o "$tmp/t300.h5"
check "tokens of the first dump alone" h5diff "$tmp/t300.h5" "$tmp/gram.h5" /qk/R
check "before RoPE, per query" "$spectrum" "$tmp/a.h5" --rope before --pairing per-query --pair qk,vw --method tsqr -q -o "$tmp/pre.h5"
check "before RoPE, per query, moments" "$spectrum" "$tmp/am.h5" --rope before --pairing per-query --pair qk,vw -q -o "$tmp/prem.h5"
check "they agree" h5diff -d 1e-9 "$tmp/pre.h5" "$tmp/prem.h5" /qk/R

if "$PYTHON" -c 'import h5py, numpy' 2>/dev/null; then
  for run in "svd a 300 shared after" "t120 a 120 shared after" "pre a 300 per-query before"; do
    set -- $run
    check "NumPy agrees: $1" "$PYTHON" tests/oracle/spectrum.py "$tmp/$2.h5" "$3" "$4" "$5" "$tmp/$1.h5"
  done
else
  echo "skip NumPy agrees: no h5py for $PYTHON"
fi

# fewer rows than dimensions works and is said
"$make_file" activations "$tmp/few.h5" 3 4
"$spectrum" "$tmp/few.h5" --pair k,qk --method svd -o "$tmp/few_s.h5" >"$tmp/log" 2>&1 &&
  grep -qF "pair 'k' has 3 rows for 8 dimensions: the last 5 singular values are 0" "$tmp/log" && ! grep -q "pair 'qk' has" "$tmp/log" &&
  ok "fewer rows than dimensions" || not_ok "fewer rows than dimensions"

# one thread and two give the same file, but for its provenance
check "one thread" "$spectrum" "$tmp/am.h5" --pair $all,bqk,bvw --threads 1 -q -o "$tmp/one.h5"
check "threads do not change the result" h5diff "$tmp/one.h5" "$tmp/mom.h5" /qk/R

"$spectrum" "$tmp/am.h5" --json -o "$tmp/j.h5" >"$tmp/j.json" 2>"$tmp/log" && "$PYTHON" -c '
import json, sys
x = json.load(open(sys.argv[1]))
assert x["pairs"]["qk"]["heads"] == 4 and x["pairs"]["qk"]["rows"] == 900 and x["label"] == "wiki"
assert 1 <= x["pairs"]["vw"]["effective_rank"] <= 8' "$tmp/j.json" 2>>"$tmp/log" && ok "json" || not_ok "json"

"$make_file" activations "$tmp/nan.h5" 20 1 nan=1
for m in svd tsqr gram; do
  refused "NaN is named, $m" 1 "nan.h5'" "$spectrum" "$tmp/nan.h5" --method $m -o "$tmp/x.h5"
done
for word in "layer 1" "head 1" "token 3" "dim 2"; do
  refused "NaN: $word" 1 "$word" "$spectrum" "$tmp/nan.h5" -o "$tmp/x.h5"
done
refused "another model" 1 "different models" "$spectrum" "$tmp/a.h5" "$tmp/other.h5" -o "$tmp/x.h5"
refused "the same texts twice" 1 "hold the same texts" "$spectrum" "$tmp/a.h5" "$tmp/a.h5" -o "$tmp/x.h5"
cp "$tmp/a.h5" "$tmp/copy.h5"
refused "the same texts under another name" 1 "hold the same texts (corpus hash" "$spectrum" "$tmp/a.h5" "$tmp/copy.h5" -o "$tmp/x.h5"
refused "the same texts twice, moments" 1 "hold the same texts" "$spectrum" "$tmp/am.h5" "$tmp/bm.h5" "$tmp/am.h5" -o "$tmp/x.h5"
refused "two kinds" 1 "give one kind" "$spectrum" "$tmp/a.h5" "$tmp/bm.h5" -o "$tmp/x.h5"
refused "a spectrum is no input" 1 "activations or kvdim/moments is wanted" "$spectrum" "$tmp/svd.h5" -o "$tmp/x.h5"
refused "svd of moments" 1 "--method svd needs rows" "$spectrum" "$tmp/am.h5" --method svd -o "$tmp/x.h5"
refused "moments cannot be cut" 1 "cannot be cut" "$spectrum" "$tmp/am.h5" --tokens 299 -o "$tmp/x.h5"
check "moments of as many tokens" "$spectrum" "$tmp/am.h5" --tokens 300 -q -o "$tmp/x.h5"
refused "too many tokens" 1 "--tokens 301: the dump has 300 tokens" "$spectrum" "$tmp/a.h5" --tokens 301 -o "$tmp/y.h5"
"$make_file" activations "$tmp/after.h5" 20 9
refused "no Q and K before RoPE" 1 "no Q and K before RoPE" "$spectrum" "$tmp/after.h5" --rope before -o "$tmp/y.h5"
refused "missing input" 1 "nowhere.h5" "$spectrum" "$tmp/nowhere.h5" -o "$tmp/y.h5"
refused "missing folder" 1 "$tmp/no/such" "$spectrum" "$tmp/am.h5" -o "$tmp/no/such/y.h5"
[ ! -e "$tmp/y.h5" ] && [ -z "$(ls "$tmp" | grep -E 'partial|lock')" ] && ok "failures leave nothing" || { ls "$tmp" >"$tmp/log"; not_ok "failures leave nothing"; }
refused "unknown pair" 2 "'qv' is no pair" "$spectrum" "$tmp/a.h5" --pair qk,qv -o "$tmp/y.h5"
refused "balanced per query" 2 "'bqk' is defined per KV head" "$spectrum" "$tmp/a.h5" --pair bqk --pairing per-query -o "$tmp/y.h5"
refused "balanced before RoPE" 2 "'bqk' is defined after RoPE" "$spectrum" "$tmp/a.h5" --pair bqk --rope before -o "$tmp/y.h5"
refused "no input" 2 "no IN.h5 given" "$spectrum" -o "$tmp/y.h5"
refused "no output" 2 "no -o OUT.h5 given" "$spectrum" "$tmp/a.h5"
