"""Files of kvdim-attn: summaries from samples, floors and rates from the other columns, by NumPy."""
import sys

import h5py
import numpy as np

for path in sys.argv[1:]:
    f = h5py.File(path)
    r = {k: f["rows"][k][()] for k in f["rows"]}
    s = r["samples_us"]
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9)
    close(r["median_us"], np.median(s, axis=1))
    close(r["mad_us"], np.median(np.abs(s - np.median(s, axis=1, keepdims=True)), axis=1))
    close(r["min_us"], s.min(axis=1))
    close(r["p05_us"], np.quantile(s, 0.05, axis=1))
    close(r["p95_us"], np.quantile(s, 0.95, axis=1))
    close(r["tflops"], r["flop"] / r["median_us"] / 1e6)
    close(r["gb_per_s"], r["bytes"] / r["median_us"] / 1e3)
    close(r["floor_us"], np.maximum(np.maximum(r["floor_bytes_us"], r["floor_flop_us"]), r["floor_exp_us"]))
    close(r["fraction_of_floor"], r["floor_us"] / r["median_us"])
    c = f["ceilings/cpu"].attrs
    close(r["floor_flop_us"], r["flop"] / c["flop_per_s"] * 1e6)
    close(r["floor_exp_us"], r["exps"] / c["exps_per_s"] * 1e6)
    decode = r["phase"] == b"decode"
    close(r["floor_bytes_us"], r["bytes"] / np.where(decode, c["read_bytes_per_s"], c["copy_bytes_per_s"]) * 1e6)
    # Work by the definitions, for equal widths.
    mean = r["mean_d_qk"] + r["mean_d_v"]
    close(r["p"], 1 - mean / (2 * r["d_head"]))
    close(r["flop"], 2 * r["exps"] * mean)
    close(r["exps"][decode], (r["kv_tokens"] * r["n_heads"])[decode])
    queries = np.where(decode, r["batch"], r["kv_tokens"])
    close(r["bytes"], 4 * mean * (r["kv_tokens"] * r["n_kv_heads"] + queries * r["n_heads"]))
    assert (r["ok"] == 1).all() and (r["rel_err"] < 1e-5).all() and (r["check_rows"] > 0).all()
