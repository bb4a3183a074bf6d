"""Quantisers of KIVI, GEAR and KVQuant as their authors published them, on the keys and values of a dump, beside ours.

usage: public_quantisers.py kivi|gear|kvquant CLONE DUMP.h5 TOOL OUT.csv

CLONE  a checkout of jy-yuan/KIVI, opengear-project/GEAR or SqueezeAILab/KVQuant; its code is imported as it is
DUMP   kvdim-collect MODEL --text FILE --tokens 1024 --seq-len 512 --rope both --dtype f16 -o DUMP.h5: float16, which is what the
       authors' code is given, so that both sides start from the same numbers
TOOL   build/tests/tool_quantisers, which runs ours; its files go to a temporary folder

A line of the CSV is one KV head of one layer, side and setting. `largest` and `rms` are differences of what a read finds, ours
less theirs, over the rms of the numbers themselves, `rms_equal` of those alone whose codes are equal; `error_ours` and
`error_theirs` are rms(decoded - x) / rms(x). `equal_codes` and `same_apart` are shares; `off_tie` is how far a number with another
code is at most from the middle between two codes, in steps, of kvquant in half ranges. What a setting is stands in
results/public-code/README.md.

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

for said in ("Using a non-tuple sequence", "To copy construct"):
    warnings.filterwarnings("ignore", message=said)
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


# ---- GEAR -------------------------------------------------------------------------------------------
LOOP, RANK, SHARE, GEAR_GROUP = 3, 4, 0.02, 64  # of its scripts for 2 bits


def step_of(x, apart, side, bits):
    """Of every number the step of its group, whose outliers do not count."""
    y = grouped(np.where(apart, np.nan, x.astype(np.float64)), side, GEAR_GROUP)
    step = (np.nanmax(y, -1, keepdims=True) - np.nanmin(y, -1, keepdims=True)) / (2**bits - 1)
    return flat(np.broadcast_to(step, y.shape), side)


def share_for(wanted, d):
    """The `sparsity` with which GEAR takes `wanted` numbers at either end of a vector, of one head of d."""
    return (2 * wanted + 0.5) / d


def untied(x, side, wanted):
    """Index of the vectors where the number last taken at either end has no equal that stays: else either may be taken."""
    y = np.sort(x.T if side == "keys" else x, 1)
    free = (y[:, wanted - 1] < y[:, wanted]) & (y[:, -wanted] > y[:, -wanted - 1])
    return np.s_[:, free] if side == "keys" else np.s_[free]


def gear(clone, dump, tool, folder):
    sys.path.insert(0, os.path.join(clone, "GenerationBench/GenerationTest/GEARLM/Simulated"))
    import compress_function as public

    rows = []
    with h5py.File(dump) as f:
        x = {side: f[side[0]][:, :, :TOKENS] for side in SIDES}
    d = x["keys"].shape[-1]
    for bits in (2, 4):
        common = f"gear,bits={bits},group={GEAR_GROUP},iterations={LOOP}"
        mine = {parts: ours(tool, dump, f"{common},{keys}", folder) for parts, keys in
                (("D", "rank=0,outliers=0"), ("S+D", f"rank=0,outliers={SHARE}"), ("D+L", f"rank={RANK},outliers=0"),
                 ("S+D+L", f"rank={RANK},outliers={SHARE}"))}
        for side in SIDES:
            quantised, whole = ((public.gears_channelQ, public.gearslkivi_channelQ_new) if side == "keys" else
                                (public.gears_tokenQ, public.gearslkivi_tokenQ_new))
            length = TOKENS if side == "keys" else d
            wanted = int(SHARE * length / 2 + 0.5)
            share = share_for(wanted, d)
            for layer, head in np.ndindex(x[side].shape[:2]):
                one = torch.tensor(x[side][layer, head][None, None])
                xs = x[side][layer, head].astype(np.float32)
                got = {parts: m[side][layer, head] for parts, m in mine.items()}
                apart = got["S+D+L"] == xs  # only they have no low-rank part
                all_heads = torch.tensor(x[side][layer][None])
                theirs = {"D": quantised(one, bits, GEAR_GROUP, 0.0), "S+D": quantised(one, bits, GEAR_GROUP, share),
                          "D+L": whole(one, bits, GEAR_GROUP, 0.0, RANK, LOOP),
                          "S+D+L": whole(one, bits, GEAR_GROUP, share, RANK, LOOP),
                          "published": whole(all_heads, bits, GEAR_GROUP, SHARE, RANK, LOOP)[:, head:head + 1]}
                again = whole(one, bits, GEAR_GROUP, share, RANK, LOOP)[0, 0].float().numpy()
                theirs = {k: v[0, 0].float().numpy() for k, v in theirs.items()}

                def add(setting, a, b, same=None, of=np.s_[:]):
                    rows.append(line("gear", f"bits={bits},{setting}", side, layer, head, xs[of], a[of], b[of],
                                     None if same is None else same[of]))

                for parts in ("D", "S+D"):
                    step = step_of(xs, apart if parts == "S+D" else np.zeros_like(apart), side, bits)
                    same = np.abs(got[parts] - theirs[parts]) < step / 4
                    add(parts, got[parts], theirs[parts], same)
                add("S+D;untied", got["S+D"], theirs["S+D"], same, untied(xs, side, wanted))
                for parts in ("D+L", "S+D+L"):
                    add(parts, got[parts], theirs[parts])
                exact = np.where(apart, xs, theirs["S+D+L"])
                add("S+D+L;exact", got["S+D+L"], exact)
                add("S+D+L;twice", again, theirs["S+D+L"])
                add("S+D+L;best", best(got["S+D"], xs, apart), theirs["S+D+L"])
                add("published", got["S+D+L"], theirs["published"])
    return rows


def best(quantised, x, apart):
    """With the low-rank part that loses least, by svd."""
    u, s, v = np.linalg.svd(np.where(apart, 0, x.astype(np.float64) - quantised), full_matrices=False)
    return np.where(apart, x, quantised + (u[:, :RANK] * s[:RANK]) @ v[:RANK]).astype(np.float32)


# ---- KVQuant ----------------------------------------------------------------------------------------
OUTLIERS = 0.01


def nearest(levels, y):
    """Index of the nearest of rising levels."""
    return np.searchsorted((levels[1:] + levels[:-1]) / 2, y)


def calibrated(public, rows, bits, axis):
    """Thresholds and levels of KVQuant from rows [n][width]: axis 0 per channel, -1 per row."""
    one = public.SimQuant(torch.nn.Linear(rows.shape[1], rows.shape[1], bias=False), bits, perchannel=True, qchannel=axis)
    one.add_batch(None, torch.tensor(rows))
    upper, lower, levels = one.quantize(include_sparse=True, sparsity_threshold=1 - OUTLIERS, nuq=True, fisher=None)
    return upper, lower, levels


def layer_of(public, quantizer, rows, bits, keys):
    """KVQuant's layer in the place of k_proj or v_proj, with the identity as weights: what it makes of rows, what is apart."""
    width = rows.shape[1]
    layer = public.QuantLinearSim("", bits, quantizer, width, width, torch.eye(width, dtype=torch.float16), False,
                                  perchannel=keys, include_sparse=True, sparsity_threshold=1 - OUTLIERS,
                                  dynamicquantization=not keys, nuq=True, nf_nuq=False)
    x = torch.tensor(rows)
    apart = (public.get_outliers(x.float(), channel=0, outlier_threshold_upper=layer.outlier_threshold_upper,
                                 outlier_threshold_lower=layer.outlier_threshold_lower) if keys else
             public.get_outliers_dynamic(x.float(), channel=-1, thresh=1 - OUTLIERS))
    return layer(x).float().numpy(), apart.numpy()


def share_of(a, b):
    """Of what is in one of two sets the share that is in both."""
    return (a & b).sum() / (a | b).sum()


def levels_line(bits, side, layer, normal, mine, theirs, apart):
    """Levels, ours less theirs, in units of half a range; errors are those of the calibration's normalised numbers."""
    def error(levels):
        return f"{rms(levels[nearest(levels, normal)] - normal):.6g}"

    empty = dict.fromkeys(COLUMNS, "")
    return empty | {"method": "kvquant", "setting": f"bits={bits},levels", "side": side, "layer": layer, "numbers": normal.size,
                    "same_apart": f"{apart:.6f}", "largest": f"{np.abs(mine - theirs).max():.3g}",
                    "rms": f"{rms(mine - theirs):.3g}",
                    "error_ours": error(mine), "error_theirs": error(theirs)}


def coded_line(setting, side, layer, head, x, a, b, theirs_apart, levels):
    """levels: ours and theirs. Codes are of the numbers that neither takes apart."""
    apart = a == x
    rest = ~(apart | theirs_apart)
    if side == "keys":
        middle, half = levels[2], levels[3]
    else:
        kept = np.where(apart, np.nan, x)
        low, high = np.nanmin(kept, 1, keepdims=True), np.nanmax(kept, 1, keepdims=True)
        middle, half = (low + high) / 2, (high - low) / 2
    code = [nearest(levels[i], (y - middle) / half) for i, y in ((0, a), (1, b))]
    same = (code[0] == code[1]) & rest
    middles = (levels[0][1:] + levels[0][:-1]) / 2
    other = rest & ~same
    if side == "values":  # of equal numbers at an end theirs takes all apart, ours one: then the range is another
        other &= np.isin(np.arange(len(x)), np.arange(len(x))[untied(x, side, 1)])[:, None]
    off = np.abs(((x - middle) / half)[..., None] - middles).min(-1)[other].max(initial=0)
    off = off if setting.endswith("ours") else None  # of levels of their own it means nothing
    out = line("kvquant", setting, side, layer, head, x, a, b, same, off, share_of(apart, theirs_apart))
    return out | {"equal_codes": f"{same.sum() / rest.sum():.6f}"}


def kvquant(clone, dump, tool, folder):
    torch.Tensor.cuda = lambda self: self
    sys.path.insert(0, os.path.join(clone, "quant"))
    from kvquant import simquant_module_quantizer as public

    rows = []
    with h5py.File(dump) as f:
        data = {"keys": f["k_pre"][()], "values": f["v"][()]}  # [layer][kv_head][token][dim]
    for bits in (3, 4):
        mine = ours(tool, dump, f"kvquant,bits={bits},outliers={OUTLIERS},sink=0", folder)
        for side in SIDES:
            for layer, x in enumerate(data[side]):
                heads, n, d = x.shape
                keys = side == "keys"
                # Keys: all heads side by side; values: one head after the other: a vector is one head's, as ours is.
                calibration = x.transpose(1, 0, 2).reshape(n, heads * d) if keys else x.reshape(heads * n, d)
                part = x[:, :TOKENS]
                given = part.transpose(1, 0, 2).reshape(TOKENS, -1) if keys else part.reshape(-1, d)
                upper, lower, found = calibrated(public, calibration, bits, 0 if keys else -1)
                levels = np.sort(np.asarray(found[0], np.float64).ravel())
                own = mine["levels"][layer, SIDES.index(side), 0].astype(np.float64)
                middle, half = (upper + lower).numpy() / 2, (upper - lower).numpy() / 2
                normal = (calibration.astype(np.float64) - middle) / half
                normal = normal[np.abs(normal) <= 1]
                read = mine[side][layer]
                read = read.transpose(1, 0, 2).reshape(given.shape) if keys else read.reshape(given.shape)
                rows.append(levels_line(bits, side, layer, normal, own, levels,
                                        apart_alike(public, read == given, given, keys, lower.numpy(), upper.numpy())))
                for name, lut in (("own", found), ("ours", [own[:, None]])):
                    used = np.sort(np.asarray(lut[0], np.float64).ravel())
                    theirs, apart = layer_of(public, (upper, lower, lut), given, bits, keys)
                    for head in range(heads):
                        cut = np.s_[:, head * d:(head + 1) * d] if keys else np.s_[head * TOKENS:(head + 1) * TOKENS]
                        ranges = (middle[cut], half[cut]) if keys else (None, None)
                        rows.append(coded_line(f"bits={bits},levels={name}", side, layer, head,
                                               part[head].astype(np.float32), mine[side][layer, head], theirs[cut],
                                               apart[cut], (own, used, *ranges)))
                if not keys:
                    rows += published(public, x, mine[side][layer], bits, layer)
    return rows


def apart_alike(public, mine, x, keys, lower, upper):
    """The share of outliers in both without what rounding and equal numbers decide: thresholds of keys before their layer rounds
    them to float16, and values whose smallest and largest number have no equal."""
    if keys:
        return share_of(mine, (x < lower) | (x > upper))
    free = untied(x.astype(np.float32), "values", 1)
    theirs = public.get_outliers_dynamic(torch.tensor(x).float(), channel=-1, thresh=1 - OUTLIERS).numpy()
    return share_of(mine[free], theirs[free])


def published(public, x, mine, bits, layer):
    """Values as KVQuant has them: a vector is all heads of a token."""
    heads, n, d = x.shape
    wide = x.transpose(1, 0, 2).reshape(n, heads * d)
    quantizer = calibrated(public, wide, bits, -1)
    theirs, _ = layer_of(public, quantizer, wide[:TOKENS], bits, False)
    out = []
    for head in range(heads):
        cut = np.s_[:, head * d:(head + 1) * d]
        out.append(line("kvquant", f"bits={bits},published", "values", layer, head, x[head, :TOKENS].astype(np.float32),
                        mine[head], theirs[cut]))
    return out


METHODS = {"kivi": kivi, "gear": gear, "kvquant": kvquant}


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
