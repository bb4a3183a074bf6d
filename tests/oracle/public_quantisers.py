"""Quantisers of KIVI, GEAR and KVQuant as their authors published them, on the keys and values of a dump, beside ours.

usage: public_quantisers.py kivi|gear|kvquant CLONE DUMP.h5 TOOL OUT.csv

CLONE  a checkout of jy-yuan/KIVI, opengear-project/GEAR or SqueezeAILab/KVQuant; its code is imported as it is
DUMP   kvdim-collect MODEL --text FILE --tokens 1024 --seq-len 512 --rope both --dtype f16 -o DUMP.h5: float16, which is what the
       authors' code is given, so that both sides start from the same numbers
TOOL   build/tests/tool_quantisers, which runs ours; its files go to a temporary folder

A line of the CSV is one KV head of one layer, side and setting. `largest` and `rms` are differences of what a read finds, ours
less theirs, over the rms of the numbers themselves, `rms_equal` of those alone whose codes are equal; `error_ours` and
`error_theirs` are rms(decoded - x) / rms(x). `equal_codes` and `same_apart` are shares; `off_tie` is how far a number with another
code is at most from the middle between two codes, in steps. What a setting is stands in results/public-code/quantisers.md.

Needs torch and h5py; kivi also triton, run by its interpreter, kvquant also scikit-learn. No GPU: what asks for one is stubbed here.
"""
import contextlib
import csv
import os
import subprocess
import sys
import tempfile
import warnings

os.environ["TRITON_INTERPRET"] = "1"
import h5py
import numpy as np
import torch

warnings.filterwarnings("ignore", message="Using a non-tuple sequence")
TOKENS = 512
SIDES = ("keys", "values")
COLUMNS = ("method,setting,side,layer,kv_head,numbers,equal_codes,off_tie,same_apart,largest,rms,rms_equal,error_ours,"
           "error_theirs").split(",")


def ours(tool, dump, method, folder):
    """What our method leaves: datasets of tool_quantisers as arrays."""
    path = os.path.join(folder, "ours.h5")
    subprocess.run([tool, dump, str(TOKENS), method, path], check=True)
    with h5py.File(path) as f:
        found = {k: f[k][()] for k in f if isinstance(f[k], h5py.Dataset)}
    os.remove(path)
    return found


def rms(x):
    return float(np.sqrt(np.mean(np.square(x.astype(np.float64)))))


def line(method, setting, side, layer, head, x, a, b, same=None, off_tie=None, apart=None):
    """a: ours, b: theirs, x, same (codes are equal): all [tokens][dim]. off_tie: a number, apart: a share."""
    unit = rms(x)
    difference = a.astype(np.float64) - b
    shares = (None if same is None else same.mean(), off_tie, apart)
    return dict(zip(COLUMNS, [method, setting, side, layer, head, x.size,
                              *("" if s is None else f"{s:.6f}" for s in shares),
                              f"{np.abs(difference).max() / unit:.3g}", f"{rms(difference) / unit:.3g}",
                              "" if same is None else f"{rms(difference[same]) / unit:.3g}",
                              f"{rms(a - x) / unit:.6g}", f"{rms(b - x) / unit:.6g}"]))


def table(rows):
    """Sums up lines per setting and side: the largest of `largest` and `off_tie`, means of the others."""
    shown = COLUMNS[6:]
    print(" | ".join(["setting", "side", *shown]))
    for key in dict.fromkeys((r["setting"], r["side"]) for r in rows):
        of = [r for r in rows if (r["setting"], r["side"]) == key]
        cells = []
        for c in shown:
            found = [float(r[c]) for r in of if r[c] != ""]
            whole = max if c in ("largest", "off_tie") else np.mean
            cells.append(f"{whole(found):.4g}" if c not in ("equal_codes", "same_apart") and found
                         else f"{whole(found):.5f}" if found else "-")
        print(" | ".join([*key, *cells]))


# ---- KIVI -------------------------------------------------------------------------------------------
def grouped(x, side, group):
    """[tokens][dim] as [...][group], the numbers that share a scale last."""
    y = x.T if side == "keys" else x
    return y.reshape(y.shape[0], -1, group)


def flat(y, side):
    """What grouped took apart."""
    y = y.reshape(y.shape[0], -1)
    return y.T if side == "keys" else y


def codes_of(decoded, x, side, group, bits):
    """Codes from decoded numbers, and how far x is from a middle between codes, in steps, both [tokens][dim]. The smallest and the
    largest number of a group have the first and the last code."""
    y = grouped(decoded.astype(np.float64), side, group)
    low = y.min(-1, keepdims=True)
    step = (y.max(-1, keepdims=True) - low) / (2**bits - 1)
    step[step == 0] = 1
    place = (grouped(x.astype(np.float64), side, group) - low) / step
    return flat(np.rint((y - low) / step), side).astype(int), flat(np.abs(place - np.floor(place) - 0.5), side)


def kivi(clone, dump, tool, folder):
    sys.path.insert(0, clone)
    from quant import new_pack

    torch.cuda.device = lambda device: contextlib.nullcontext()  # of a launch; there is none here
    rows, group = [], 32
    with h5py.File(dump) as f:
        x = {side: f[side[0]][:, :, :TOKENS] for side in SIDES}
    for bits in (2, 4):
        mine = ours(tool, dump, f"kivi,bits={bits},group={group},residual=0", folder)
        for setting, dtype in (("f16", torch.float16), ("f32", torch.float32)):
            for side in SIDES:
                pack, unpack = (getattr(new_pack, name % side[0]) for name in
                                ("quant_and_pack_%scache", "unpack_and_dequant_%scache"))
                for layer in range(x[side].shape[0]):
                    rows_of = torch.tensor(x[side][layer][None]).to(dtype)
                    code, scale, low = pack(rows_of, group, bits)
                    theirs = unpack(code, scale, low, group, bits)[0].float().numpy()
                    plain = new_pack.unpack_tensor(code, bits, 2 if side == "keys" else 3)[0].numpy()
                    if layer == 0 and dtype == torch.float16:
                        check_triton(new_pack, rows_of, side, group, bits, code, scale, low)
                    for head in range(x[side].shape[1]):
                        a, xs = mine[side][layer, head], x[side][layer, head].astype(np.float32)
                        codes, off = codes_of(a, xs, side, group, bits)
                        same = codes == plain[head]
                        rows.append(line("kivi", f"bits={bits},{setting}", side, layer, head, xs, a, theirs[head], same,
                                         off[~same].max(initial=0)))
    return rows


def check_triton(new_pack, x, side, group, bits, code, scale, low):
    """The kernels that the model calls make what the functions in torch make; keys lie the other way round there."""
    y = (x.transpose(2, 3) if side == "keys" else x).contiguous()
    packed, s, m = new_pack.triton_quantize_and_pack_along_last_dim(y, group, bits)
    want = code.transpose(2, 3) if side == "keys" else code
    agree = (torch.equal(packed, want),
             torch.equal(s.flatten(), (scale.squeeze(-2).transpose(2, 3) if side == "keys" else scale).flatten()),
             torch.equal(m.flatten(), (low.squeeze(-2).transpose(2, 3) if side == "keys" else low).flatten()))
    print(f"kivi {bits} bits {side}: Triton kernels and torch functions of KIVI agree in codes, scales, minima: {agree}")


METHODS = {"kivi": kivi}


def main():
    if len(sys.argv) != 6 or sys.argv[1] not in METHODS:
        sys.exit(__doc__)
    method, clone, dump, tool, out = sys.argv[1:]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        rows = METHODS[method](clone, dump, tool, folder)
    with open(out, "w", newline="") as f:
        w = csv.DictWriter(f, COLUMNS, lineterminator="\n")
        w.writeheader()
        w.writerows(rows)
    table(rows)


if __name__ == "__main__":
    main()
