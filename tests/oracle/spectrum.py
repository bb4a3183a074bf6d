"""spectrum.py DUMP.h5 N_TOKENS shared|per-query after|before SPECTRUM.h5: every pair in SPECTRUM by numpy.linalg.svd."""
import sys

import h5py
import numpy as np

dump, n, pairing, rope, result = h5py.File(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5], h5py.File(sys.argv[5])
pre = "_pre" if rope == "before" else ""
q, k, v = (np.array(dump[name], dtype=float)[:, :, :n] for name in ("q" + pre, "k" + pre, "v"))
w_o, w_v = (np.array(dump[name], dtype=float) for name in ("w_o", "w_v"))
group = q.shape[1] // k.shape[1]


def stack(pair, layer, h):
    per_query = pairing == "per-query" and pair in ("qk", "q", "vw")
    kv, heads = (h // group, [h]) if per_query else (h, range(h * group, (h + 1) * group))
    queries = [q[layer, i] for i in heads]
    outputs = [w_o[layer, i].T for i in heads]
    rows = {"qk": queries + [k[layer, kv]], "q": queries, "k": [k[layer, kv]], "v": [v[layer, kv]],
            "vw": [v[layer, kv]] + outputs, "wv": [w_v[layer, kv].T]}
    return np.concatenate(rows[pair])


pairs = [p for p in ("qk", "vw", "q", "k", "v", "wv") if p in result]
assert pairs
for pair in pairs:
    sigma, R = np.array(result[pair]["sigma"]), np.array(result[pair]["R"])
    for layer in range(sigma.shape[0]):
        for h in range(sigma.shape[1]):
            x = stack(pair, layer, h)
            assert result[pair].attrs["n_rows"] == len(x)
            _, s, vt = np.linalg.svd(x, full_matrices=False)
            vt *= np.sign(vt[np.arange(len(vt)), np.abs(vt).argmax(axis=1)])[:, None]
            np.testing.assert_allclose(sigma[layer, h], s, rtol=1e-10)
            np.testing.assert_allclose(R[layer, h], vt.T, atol=1e-7)
print("equal:", *pairs)
