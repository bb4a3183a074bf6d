#!/bin/sh
# Results open in Python: a spectrum in xarray with named dimensions, with both of its HDF5 engines, and the notebook of
# docs/python.md, which runs from top to bottom and whose printed table is what it computes now.
. tests/lib/cases.sh
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
