"""Writes a file of projections for kvdim-eval --method projected,file=OUT, from the bases of a spectrum.

usage: write_projections.py SPECTRUM K_PAIR V_PAIR RANK OUT

The bases take the place of matrices that were trained elsewhere: replace down_k, up_k, down_v and up_v by yours.
"""
import sys

import h5py
import numpy as np


def write(path, model, rope, k, v, origin, heads=1):
    """k, v: (down, up) with down [layer][kv_head][row][component] and up [layer][kv_head][component][dim]."""
    with h5py.File(path, "w") as f:
        f.attrs["schema"] = "kvdim/projections"
        f.attrs["schema_version"] = 1
        f.attrs["title"] = "Matrices that shorten K and V and rebuild them"
        f.attrs["origin"] = origin
        f.attrs["rope"] = rope
        f.attrs["heads"] = heads
        for name, value in model.items():
            f.require_group("model").attrs[name] = value
        for side, (down, up) in (("k", k), ("v", v)):
            rank = np.full(down.shape[:2], down.shape[3], dtype="int32")
            f.create_dataset(f"{side}/rank", data=rank)
            f.create_dataset(f"{side}/down", data=down)
            f.create_dataset(f"{side}/up", data=up)
        f.attrs["complete"] = 1


def main(spectrum, k_pair, v_pair, rank, out):
    with h5py.File(spectrum) as f:
        model = dict(f["model"].attrs)
        rope = f.attrs["rope"]
        widest = min(f[pair]["R"].shape[3] for pair in (k_pair, v_pair))
        if not 1 <= rank <= widest:
            sys.exit(f"RANK {rank}: the bases of '{spectrum}' have 1 .. {widest} components")
        down_k = f[k_pair]["R"][..., :rank]
        down_v = f[v_pair]["R"][..., :rank]
    up_k, up_v = down_k.swapaxes(2, 3), down_v.swapaxes(2, 3)
    write(out, model, rope, (down_k, up_k), (down_v, up_v), "leading singular vectors, written with h5py")


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
