#!/bin/sh
# Runs the commands of documents as they are written: docs/tutorial.md, whose outputs are compared, and the first workflow of README, from a checkpoint to
# the page, on a model and texts that are not those of the demo. Results open in Python: a spectrum in xarray with named
# dimensions, with both of its HDF5 engines, and the notebook of docs/python.md, whose printed table is what it computes now.
. tests/lib/cases.sh
B=$(cd "$B" && pwd)
mkdir "$D/tutorial" "$D/readme"
# run FOLDER: the commands of FOLDER/commands, in that folder
run() { (cd "$1" && PATH="$B/bin:$PATH" sh -e commands); }

T=$D/tutorial
ln -s "$PWD/data" "$T/data"
grep '^kvdim-' docs/tutorial.md >"$T/commands"
is "the tutorial has ten commands" 10 "$(wc -l <"$T/commands")"
check "they run in order" eval 'run "$T" >"$T/printed"'
check "they print what the tutorial shows" "$PYTHON" - docs/tutorial.md "$T/printed" <<'P'
import re, sys
shown, printed = (open(path).read() for path in sys.argv[1:])
shown = "".join(re.findall(r"^```text\n(.*?)^```", shown, re.M | re.S))
# Lines with times differ between machines.
timed = re.compile(r"^seconds:|tokens/s; time|^job |^on the CPU|^ *$")
shown, printed = ([line for line in text.splitlines() if not timed.search(line)] for text in (shown, printed))
same = lambda a, b: a == b or abs(float(a) - float(b)) <= 0.003 + 0.03 * abs(float(b))
for a, b in zip(shown, printed):
    number = r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?"
    assert re.sub(number, "N", a).split() == re.sub(number, "N", b).split(), (a, b)
    assert all(map(same, re.findall(number, a), re.findall(number, b))), (a, b)
assert len(shown) == len(printed), (len(shown), len(printed))
P
check "they leave a page" test -s "$T/report/index.html"

# The first code block that collects and reports.
T=$D/readme
awk '/^```/ { if (inside && block ~ /\nkvdim-collect / && block ~ /\nkvdim-report /) { printf "%s", block; exit }
    inside = !inside; block = "\n"; next }
  { block = block $0 "\n" }' README.md >"$T/commands"
check "README has a workflow" test "$(grep -c '^kvdim-' "$T/commands")" -ge 5
"$B/tests/tool_checkpoint" --layers 2 --d-model 32 --heads 2 --kv-heads 1 "$T/MODEL" || exit 1
cat docs/*.md >"$T/articles.txt"
grep -h '^[A-Za-z]' CONTRIBUTING.md experiments/*/README.md | sed 's/[\\"]/\\&/g; s/.*/{"text": "&"}/' >"$T/reviews.jsonl"
check "it runs to its end" run "$T"
check "it leaves a page" test -s "$T/report/index.html" -a -s "$T/report/tables/accuracy.csv"
if command -v gnuplot >/dev/null 2>&1; then
  grep -o 'Not drawn[^<]*' "$T/report/index.html" >"$D/undrawn"
  check "with every figure" test ! -s "$D/undrawn" -a -s "$T/report/figures/accuracy-1.svg"
else
  echo "skip figures: gnuplot is not installed"
fi

# has NAME MODULES: the Python has the modules; otherwise the test is skipped
has() { "$PYTHON" -c "import $2" 2>/dev/null || { echo "skip $1: $PYTHON lacks one of $2"; return 1; }; }

xarray() {
"$B/tests/tool_checkpoint" --layers 3 --d-model 32 --heads 4 --kv-heads 2 "$D/model" &&
  "$B/bin/kvdim-collect" "$D/model" --random 64 --seq-len 32 --moments -q -o "$D/m.h5" &&
  "$B/bin/kvdim-spectrum" "$D/m.h5" --pair qk -q -o "$D/s.h5" || { not_ok "a spectrum"; return; }
for engine in h5netcdf netcdf4; do
  if "$PYTHON" - "$D/s.h5" $engine <<'P'
import sys, h5py, xarray
path, engine = sys.argv[1:]
with xarray.open_datatree(path, engine=engine) as tree, h5py.File(path) as f:
    sigma = tree["qk"].sigma
    assert sigma.dims == ("layer", "kv_head", "dim"), sigma.dims
    assert (sigma.sel(layer=2, kv_head=1).values == f["qk/sigma"][2, 1]).all()
P
  then ok "xarray with $engine selects by layer and kv_head"
  else not_ok "xarray with $engine selects by layer and kv_head"; fi
done
}
has xarray "xarray, h5netcdf, netCDF4" && xarray

has notebook "h5py, matplotlib, numpy, pandas, xarray, h5netcdf" || exit 0
check "the notebook runs and prints its table" env MPLBACKEND=Agg "$PYTHON" - docs/examples/kvdim.ipynb "$B" <<'P'
import json, os, sys
notebook, build = sys.argv[1:]
space, tables = {}, 0
for cell in json.load(open(notebook))["cells"]:
    if cell["cell_type"] != "code":
        continue
    exec("".join(cell["source"]).replace("build/bin", os.path.abspath(build) + "/bin"), space)
    for output in cell["outputs"]:
        text = "".join(output.get("data", {}).get("text/plain", []))
        if "top1_share" not in text:
            continue
        tables += 1
        lines, rows = [line.split() for line in text.splitlines()], space["rows"]
        assert len(lines) == len(rows) + 1, text
        for printed, (_, row) in zip(lines[1:], rows.iterrows()):
            assert printed[1] == row.rotations, printed
            for name, number in zip(lines[0][1:], printed[2:]):
                assert abs(float(number) - row[name]) <= 0.003 + 0.005 * abs(row[name]), (name, number, row[name])
assert tables == 1, tables
P
