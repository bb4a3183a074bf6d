"""What kvdim-jct wrote against itself: parts and residues sum to the totals, summaries are those of the samples."""
import sys

import h5py
import numpy as np

PARTS = "embed norm qkv rope rotate compress append schedule prefill decode restore o mlp head sample comm host".split()

for path in sys.argv[1:]:
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
