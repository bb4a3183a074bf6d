"""rates.py SPECTRUM.h5 RATES.h5: Eq. 6 in NumPy finds the same widths and the same F_p."""
import sys

import h5py
import numpy as np

spectrum, rates = h5py.File(sys.argv[1]), h5py.File(sys.argv[2])
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
