#!/bin/sh
# Files that tool_h5 writes are read back with h5py and h5dump, which know nothing of this project.
B=${BUILD:-build}
PYTHON=${PYTHON:-/usr/bin/python3}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
f=$dir/small.h5
if ! "$B/tests/tool_h5" write "$f" 200; then
  echo 'not ok tool_h5 write'
  exit 1
fi

if "$PYTHON" -c 'import h5py' 2>/dev/null; then
  "$PYTHON" - "$f" <<'END'
import sys
import h5py
import numpy as np

f = h5py.File(sys.argv[1], "r")


def check(name, condition):
    print(("ok " if condition else "not ok ") + "h5py: " + name)


def text(v):
    return v.decode() if isinstance(v, bytes) else str(v)


x = np.array([[0, 1, -2.5], [65504, 0.1, 1e-5]], dtype=np.float32)
a = {k: text(v) for k, v in f.attrs.items()}
check("root attributes", a["schema"] == "kvdim/test" and f.attrs["schema_version"] == 1
      and a["title"] == "A small file for tests." and f.attrs["complete"] == 1)
check("history is one line with the command", "tool_h5 write" in a["history"] and "\n" not in a["history"])
p = f["provenance"].attrs
names = ["program", "git_revision", "compiler", "cflags", "hdf5_version", "blas", "threads", "command_line",
         "seed", "started_utc", "elapsed_s", "hostname", "cpu", "gpu", "driver", "input_count"]
check("provenance is complete", all(n in p for n in names))
check("elapsed is a time", 0 <= p["elapsed_s"] < 60 and p["input_count"] == 1)
i = f["provenance/inputs/0"].attrs
check("input", text(i["hash"]).startswith("xxh3:") and len(text(i["hash"])) == 37 and i["bytes"] > 0
      and text(i["schema"]) == "" and text(i["git_revision"]) == "")
check("parameters", text(f["parameters"].attrs["side"]) == "8")
check("float16 is <f2", f["k/f16"].dtype == np.dtype("<f2"))
check("float16 values", np.array_equal(f["k/f16"][...], x.astype(np.float16)))
check("axis labels", [d.label for d in f["k/f16"].dims] == ["token", "dim"])
check("axes are dimension scales of indices",
      all(len(d) == 1 and h5py.h5ds.is_scale(d[0].id) and list(d[0][:4]) == list(range(min(4, len(d[0]))))
          for d in f["k/f16"].dims))
check("every dataset is described", all(
    text(f[d].attrs["long_name"]) and text(f[d].attrs["units"]) for d in ["k/f16", "k/bf16", "ids", "values"]))
# bfloat16: the upper half of a float32, rounded to nearest even
u = x.view(np.uint32)
want = (((u + 0x7FFF + ((u >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)
got = np.empty((2, 3), np.float32)
f["k/bf16"].id.read(h5py.h5s.ALL, h5py.h5s.ALL, got, h5py.h5t.NATIVE_FLOAT)
check("bfloat16 values", np.array_equal(got, want))
check("ids", f["ids"].dtype == np.int32 and list(f["ids"][...]) == [0, 1, 50000, -1])
check("scalar", f["n_tokens"].shape == () and f["n_tokens"][()] == 42)
check("texts", [text(t) for t in f["rows/name"][...]] == ["alpha", "beta, gamma"])
v = f["values"]
check("filters", v.compression == "gzip" and v.shuffle and v.fletcher32)
check("values", v.shape == (200, 200) and abs(v[...].std() - 1) < 0.02)
END
  [ $? -eq 0 ] || echo 'not ok h5py script'
  # The other way: a file made with h5py in the same shape is taken.
  "$PYTHON" - "$dir/theirs.h5" <<'END'
import sys
import h5py
import numpy as np

with h5py.File(sys.argv[1], "w") as f:
    f.attrs["schema"] = "kvdim/test"
    f.attrs["schema_version"] = 1
    f.attrs["complete"] = 1
    f["values"] = np.arange(16, dtype=np.float32).reshape(4, 4)
    f["values"].attrs["note"] = np.array([1, 2, 3], dtype=np.int16)
END
  if "$B/tests/tool_h5" read "$dir/theirs.h5" 4; then
    echo 'ok a file written by h5py is read'
  else
    echo 'not ok a file written by h5py is read'
  fi
else
  echo "skip h5py: $PYTHON has no h5py"
fi

if command -v h5dump >/dev/null; then
  # h5dump 1.14.5 reads every 16-bit float as float16, in which 65536 is infinity.
  if h5dump -d /k/bf16 "$f" | tr -d ' \n' | grep -qE '0,1,-2.5,\(1,0\):(65536|inf),0.100098,1.00136e-05'; then
    echo 'ok h5dump prints bfloat16 as numbers'
  else
    h5dump -d /k/bf16 "$f"
    echo 'not ok h5dump prints bfloat16 as numbers'
  fi
else
  echo 'skip h5dump: not installed'
fi
