"""Compares the result files of the programs with NumPy.

usage: results.py spectrum DUMP.h5 N_TOKENS shared|per-query after|before SPECTRUM.h5
       results.py similarity SIMILARITY.h5 REFERENCE.h5 OTHER.h5...
       results.py rates SPECTRUM.h5 RATES.h5
       results.py jct JCT.h5...
       results.py kernels KERNELS.h5...
"""
import sys

import h5py
import numpy as np


def spectrum(args):
    """Every pair of SPECTRUM by numpy.linalg.svd."""
    dump, n, pairing, rope, result = h5py.File(args[0]), int(args[1]), *args[2:4], h5py.File(args[4])
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


def similarity(args):
    """The measures again in NumPy and by principal angles."""
    result, files = h5py.File(args[0]), [h5py.File(name) for name in args[1:]]
    for pair in ("qk", "vw"):
        R = [np.array(f[pair]["R"]).reshape(-1, *f[pair]["R"].shape[2:]) for f in files]
        energy = [np.array(f[pair]["sigma"]).reshape(len(R[0]), -1) ** 2 for f in files]
        heads, d = R[0].shape[:2]
        out = result[pair]
        for o in range(1, len(files)):
            flip = np.where(np.einsum("hij,hij->hj", R[0], R[o]) < 0, -1, 1)[:, None, :]
            np.testing.assert_allclose(out["epsilon"][o - 1], np.abs(R[o]).mean(), rtol=1e-12)
            np.testing.assert_allclose(out["delta"][o - 1], np.abs(R[0] - R[o]).mean(), rtol=1e-12)
            np.testing.assert_allclose(out["delta_aligned"][o - 1], np.abs(R[0] - flip * R[o]).mean(), rtol=1e-12)
            for m in range(1, d + 1):
                cosines = [np.linalg.svd(R[0][h, :, :m].T @ R[o][h, :, :m], compute_uv=False) for h in range(heads)]
                np.testing.assert_allclose(out["overlap"][o - 1, m - 1], np.mean(np.square(cosines)), rtol=1e-10)
                kept = [np.trace(R[0][h, :, :m].T @ (R[o][h] * energy[o][h]) @ R[o][h].T @ R[0][h, :, :m]) / energy[o][h].sum()
                        for h in range(heads)]
                np.testing.assert_allclose(out["energy_kept"][o - 1, m - 1], np.mean(kept), rtol=1e-10)
        mean = [np.abs(r).mean(axis=(1, 2)) for r in R]
        for a in range(len(files)):
            for b in range(len(files)):
                both = [abs(mean[a].mean() - mean[b].mean()), np.abs(mean[a] - mean[b]).mean()] / mean[b].mean()
                for name, value in zip(("means_over_epsilon", "head_means_over_epsilon"), both):
                    np.testing.assert_allclose(out["matrix"][name][a, b], value, rtol=1e-9, atol=1e-15)
        matrix = out["matrix/energy_kept_half"]
        for b in range(len(files)):
            own = np.mean(energy[b][:, : d // 2].sum(axis=1) / energy[b].sum(axis=1))
            np.testing.assert_allclose(matrix[b, b], own, rtol=1e-10)
            assert max(matrix[a, b] for a in range(len(files))) <= own + 1e-12
    print("equal")


def rates(args):
    """Eq. 6 in NumPy finds the same widths and the same F_p."""
    spectrum, rates = h5py.File(args[0]), h5py.File(args[1])
    r = np.array(rates["removal_rate"])
    kept = {}
    for side in ("qk", "vw"):
        sigma = np.array(spectrum[side]["sigma"])
        tail = np.cumsum(sigma[..., ::-1], axis=-1)[..., ::-1] / sigma.sum(axis=-1, keepdims=True)
        kept[side] = np.stack([np.maximum((tail > x).sum(axis=-1), 1) for x in r])
        np.testing.assert_array_equal(kept[side], rates[side]["kept"])
        np.testing.assert_array_equal(np.minimum(-(-kept[side] // 16) * 16, sigma.shape[-1]), rates[side]["kept16"])
    p = 1 - np.array([kept["qk"][i].mean() + kept["vw"][i].mean() for i in range(len(r))]) / (2 * sigma.shape[-1])
    np.testing.assert_allclose(p, rates["overall_p"], atol=1e-12)
    table_r, table_p = np.array(rates["f_p/removal_rate"]), np.array(rates["f_p/overall_p"])
    np.testing.assert_allclose(table_p[np.searchsorted(table_r, r, side="right") - 1], p, atol=1e-12)
    print("equal at", len(r), "rates")


def jct(args):
    """A file of kvdim-jct: parts and residues sum to the totals, summaries are those of the samples."""
    PARTS = "embed norm qkv rope rotate compress append schedule prefill decode restore o mlp head sample comm host".split()

    for path in args:
        with h5py.File(path) as f:
            rows = {k: v[()] for k, v in f["rows"].items()}
        job = np.char.decode(rows["kind"].astype("S")) == "job"
        assert job.any()
        get = lambda k: rows[k][job]
        for side in ("prefill", "decode"):
            parts = sum(get(f"{side}_{p}_s") for p in PARTS)
            np.testing.assert_allclose(parts + get(f"{side}_residue_s"), get(f"{side}_s"), rtol=1e-9, atol=1e-12)
            assert all((get(f"{side}_{p}_s") >= -1e-9).all() for p in PARTS)
            assert (get(f"{side}_residue_s") >= -0.03 * get("jct_s")).all()  # clocks of device and host differ
        np.testing.assert_allclose(get("prefill_s") + get("decode_s"), get("jct_s"), rtol=1e-6)
        assert (np.abs(get("residue_share")) < 0.03).all(), get("residue_share").max()
        samples = get("samples_s")
        n = (~np.isnan(samples)).sum(axis=1)
        middle = np.array([np.sort(s[:k])[(k - 1) // 2] for s, k in zip(samples, n)])
        np.testing.assert_allclose(get("jct_s"), middle)
        np.testing.assert_allclose(get("jct_min_s"), np.nanmin(samples, axis=1))
        np.testing.assert_allclose(get("jct_max_s"), np.nanmax(samples, axis=1))
        tokens = get("batch") * get("output")
        np.testing.assert_allclose(get("tokens_per_s"), tokens / get("jct_s"))
        assert (get("ttft_s") <= get("ttft_max_s") + 1e-12).all() and (get("ttft_max_s") <= get("jct_s") + 1e-12).all()
        one = get("output") == 1
        assert np.isnan(get("tbt_mean_s")[one]).all() and not np.isnan(get("tbt_mean_s")[~one]).any()
        np.testing.assert_array_equal(get("decode_s")[one], 0)
        names = np.char.decode(get("name").astype("S"))
        dense = get("dense_bytes_per_token")
        np.testing.assert_allclose(get("bytes_per_token")[names == "none"], dense[names == "none"])
        assert (get("bytes_per_token")[names != "none"] < 0.99 * dense[names != "none"]).all()
        # All requests of a job hold input + output - 1 tokens at most.
        most = get("batch") * (get("input") + get("output") - 1) * dense
        assert (get("held_bytes") <= most * (1 + 1e-12)).all()


def kernels(args):
    """Files of kvdim-attn: summaries from samples, floors and rates from the other columns."""
    for path in args:
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


if __name__ == "__main__":
    {f.__name__: f for f in (spectrum, similarity, rates, jct, kernels)}[sys.argv[1]](sys.argv[2:])
