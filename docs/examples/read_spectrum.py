"""Singular values of one head of a kvdim/spectrum file, with what can be checked about them.

usage: read_spectrum.py FILE PAIR LAYER HEAD        PAIR: one with an orthogonal basis, e.g. qk or vw
"""
import sys

import h5py
import numpy as np


def text(value):
    return value.decode() if isinstance(value, bytes) else str(value)


def main(path, pair, layer, head):
    with h5py.File(path, "r") as f:
        if text(f.attrs.get("schema", "")) != "kvdim/spectrum" or f.attrs.get("complete", 0) != 1:
            sys.exit(f"{path} is no complete kvdim/spectrum file")
        g = f[pair]
        sigma = g["sigma"][layer, head]  # [dim], falling
        R = g["R"][layer, head]  # [dim][component]
        label, rope = text(f.attrs["label"]), text(f.attrs["rope"])
        n_rows, pairing = g.attrs["n_rows"], text(g.attrs["pairing"])
    d = len(sigma)
    print(f"pair {pair}, layer {layer}, head {head} of '{label}' ({rope} RoPE, {pairing}): {n_rows} rows of {d}")
    print("sigma:" + "".join(" %.6g" % x for x in sigma))

    off = np.abs(R.T @ R - np.eye(d)).max()
    print("orthogonal: max |R^T R - I| is %s 1e-12" % ("below" if off < 1e-12 else "NOT below"))

    # The stack's second moment, rebuilt, and its energy in the leading m columns: sum of sigma^2 again.
    gram = (R * sigma**2) @ R.T
    for m in (d // 4, d // 2, 3 * d // 4, d):
        kept = np.trace(R[:, :m].T @ gram @ R[:, :m]) / np.trace(gram)
        print("energy kept at %d of %d dimensions: %.6f" % (m, d, kept))
    return 0 if off < 1e-12 else 1


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
