#!/bin/sh
# A spectrum opens in xarray with named dimensions, with both of its HDF5 engines.
. tests/lib/cases.sh
if ! "$PYTHON" -c 'import xarray, h5netcdf, netCDF4' 2>/dev/null; then
  echo "skip xarray: $PYTHON lacks xarray, h5netcdf or netCDF4"
  exit 0
fi
"$B/tests/tool_checkpoint" --layers 3 --d-model 32 --heads 4 --kv-heads 2 "$D/model" &&
  "$B/bin/kvdim-collect" "$D/model" --random 64 --seq-len 32 --moments -q -o "$D/m.h5" &&
  "$B/bin/kvdim-spectrum" "$D/m.h5" --pair qk -q -o "$D/s.h5" || { not_ok "a spectrum"; exit 1; }
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
