#!/bin/sh
# kvdim-similarity: identical inputs, two texts, three texts, and what it refuses.
command -v h5diff >/dev/null || { echo "skip kvdim_similarity: no h5diff (package hdf5-tools)"; exit 0; }
. tests/lib/cases.sh
make_file="$B/tests/tool_synthetic"
similarity="$B/bin/kvdim-similarity"

for i in 1 2 3; do
  "$make_file" moments "$D/m$i.h5" 400 $i label=text$i && "$B/bin/kvdim-spectrum" "$D/m$i.h5" --pair qk,vw,bqk -q -o "$D/s$i.h5" || exit 1
done
"$make_file" moments "$D/o.h5" 400 4 hash=xxh3:5 && "$B/bin/kvdim-spectrum" "$D/o.h5" -q -o "$D/other.h5" || exit 1
"$B/bin/kvdim-spectrum" "$D/m2.h5" --pair k,bqk -q -o "$D/k.h5" || exit 1
"$B/bin/kvdim-spectrum" "$D/m2.h5" --pairing per-query -q -o "$D/pq.h5" || exit 1

"$B/bin/kvdim-spectrum" "$D/m1.h5" --pair qk,vw,bqk -q -o "$D/again.h5" || exit 1
check "a text against itself" "$similarity" "$D/s1.h5" "$D/again.h5" -o "$D/same.h5"
awk '$1 == "text1" { n++; if ($4 != 0 || $5 != "0.00%" || $7 != "1.0000" || $8 != $9) exit 1 } END { exit n != 2 }' "$D/log" &&
  ok "no difference, full overlap, its own energy" || not_ok "no difference, full overlap, its own energy"
check "three texts" "$similarity" "$D/s1.h5" "$D/s2.h5" "$D/s3.h5" -o "$D/three.h5"
grep -q "pair qk" "$D/log" && grep -q "pair vw" "$D/log" && ! grep -q "pair bqk" "$D/log" && ok "pairs with a basis" || not_ok "pairs with a basis"
for d in /qk/epsilon /qk/delta /qk/delta_aligned /qk/overlap /qk/energy_kept /qk/energy_own /qk/per_head/epsilon /qk/per_head/overlap \
         /qk/per_head/energy_kept /vw/matrix/energy_kept_half /vw/matrix/overlap_half /vw/matrix/delta_over_epsilon \
         /vw/random/energy_kept_half /qk/matrix/means_over_epsilon /qk/matrix/head_means_over_epsilon \
         /qk/random/means_over_epsilon /files/label /files/path /files/n_tokens /files/hash; do
  h5dump -H -d "$d" "$D/three.h5" >"$D/log" 2>&1 && ok "dataset $d" || not_ok "dataset $d"
done
check "one thread" "$similarity" "$D/s1.h5" "$D/s2.h5" "$D/s3.h5" --threads 1 -q -o "$D/one.h5"
check "threads do not change the result" h5diff "$D/one.h5" "$D/three.h5" /qk/matrix
"$similarity" "$D/s1.h5" "$D/s2.h5" --json -o "$D/j.h5" >"$D/j.json" 2>"$D/log" && "$PYTHON" -c '
import json, sys
x = json.load(open(sys.argv[1]))["pairs"]["qk"][0]
assert x["label"] == "text2" and x["n_tokens"] == 400
assert 0 < x["delta_aligned"] <= x["delta"] < 1.5 * x["epsilon"]
assert 0.9 < x["overlap_half"] <= 1 and x["energy_kept_half"] <= x["energy_own_half"] + 1e-12' "$D/j.json" 2>>"$D/log" && ok "json" || not_ok "json"

if "$PYTHON" -c 'import h5py, numpy' 2>/dev/null; then
  check "NumPy agrees" "$PYTHON" tests/oracle/results.py similarity "$D/three.h5" "$D/s1.h5" "$D/s2.h5" "$D/s3.h5"
else
  echo "skip NumPy agrees: no h5py for $PYTHON"
fi
refused "another model" 1 "different models" "$similarity" "$D/s1.h5" "$D/other.h5" -o "$D/y.h5"
refused "another pairing" 1 "has pairing shared" "$similarity" "$D/s1.h5" "$D/pq.h5" -o "$D/y.h5"
"$make_file" moments "$D/twin.h5" 400 7 label=text2 corpus=xxh3:7777 && "$B/bin/kvdim-spectrum" "$D/twin.h5" -q -o "$D/twin-spectrum.h5" || exit 1
refused "one label, two contents" 1 "label 'text2' names two contents of 400 tokens" "$similarity" "$D/s1.h5" "$D/s2.h5" "$D/twin-spectrum.h5" -o "$D/y.h5"
grep -q "xxh3:7777" "$D/log" && grep -q "twin-spectrum.h5" "$D/log" && ok "the error names hash and file" || not_ok "the error names hash and file"
# A spectrum of a part of a dump has the hash of the whole dump, which is no other text than the part itself.
"$make_file" activations "$D/whole.h5" 400 3 label=part corpus=xxh3:1111 && "$B/bin/kvdim-spectrum" "$D/whole.h5" --tokens 200 -q -o "$D/cut.h5" &&
  "$make_file" activations "$D/part.h5" 200 3 label=part corpus=xxh3:2222 && "$B/bin/kvdim-spectrum" "$D/part.h5" -q -o "$D/part-spectrum.h5" || exit 1
check "a part of a dump and its own dump" "$similarity" "$D/cut.h5" "$D/part-spectrum.h5" -q -o "$D/parts.h5"
check "they make a report" "$B/bin/kvdim-report" "$D/cut.h5" "$D/parts.h5" "$D/part-spectrum.h5" --no-plots -q -o "$D/page"
"$make_file" activations "$D/whole2.h5" 400 4 label=part corpus=xxh3:3333 && "$B/bin/kvdim-spectrum" "$D/whole2.h5" --tokens 200 -q -o "$D/cut2.h5" || exit 1
refused "parts of two texts" 1 "label 'part' names two contents of 400 tokens: xxh3:1111" "$similarity" "$D/cut.h5" "$D/cut2.h5" -o "$D/y.h5"
cp "$D/s2.h5" "$D/copy.h5"
refused "one file twice" 1 "are one file or copies of one: give spectra of two texts" "$similarity" "$D/s1.h5" "$D/s1.h5" -o "$D/y.h5"
refused "a copy of a file" 1 "'$D/s2.h5' and '$D/copy.h5' are one file or copies" "$similarity" "$D/s1.h5" "$D/s2.h5" "$D/copy.h5" -o "$D/y.h5"
refused "nothing in common" 1 "no pair with an orthogonal basis is in all 2 files" "$similarity" "$D/s1.h5" "$D/k.h5" -o "$D/y.h5"
[ ! -e "$D/y.h5" ] && [ ! -e "$D/y.h5.partial" ] && ok "failures leave nothing" || not_ok "failures leave nothing"
refused "one file" 2 "no second SPECTRUM.h5 given" "$similarity" "$D/s1.h5" -o "$D/y.h5"
