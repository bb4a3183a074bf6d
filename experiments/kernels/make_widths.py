"""Width lists for kvdim-attn, 8 KV heads of width 128, all widths multiples of 16.

    make_widths.py RATES.h5 SPECTRUM.h5 OUT_DIR

lists.csv has the lists below, one line "name,d_qk,d_v" per KV head (kvdim-attn --dims lists.csv:NAME).

kvdim25m-pXX: the KV heads of every second layer of kvdim-25m (layers 0, 2, 4, 6; two heads each), from the point of
RATES.h5 (a fine grid of removal rates) whose padded widths of these heads are nearest to p = 0.XX. Where they miss it by more than half a
step of 16, single widths move by 16, those first that the padding favoured (or hurt) most.

wide-pXX: the same p, widths spread from 16 to 128: width i of 16 is 16 + 112 (i/15)^g with g such that the mean fits, rounded to
multiples of 16 by largest remainder; two neighbours make a head. No model stands behind them.

kvdim25m-sigma.csv: the singular values of every head and pair of SPECTRUM.h5, to five digits. kvdim-jct deals them out over the heads of
a published shape (--spread), so that zack and fdc get widths that differ as much as those of a measured model.
"""
import math
import os
import sys

import h5py
import numpy as np

D, N, STEP = 128, 8, 16
TOTAL = 2 * N * D // STEP  # units of 16 in an uncut layer


def write(f, name, d_qk, d_v, p):
    kept = sum(d_qk) + sum(d_v)
    got = 1 - kept / (2 * N * D)
    assert abs(got - p) <= 0.005, (name, got)
    assert all(w % STEP == 0 and STEP <= w <= D for w in (*d_qk, *d_v)), name
    for a, b in zip(d_qk, d_v):
        f.write(f"{name},{a},{b}\n")
    print(f"{name}: p = {got:.4f}, d_qk {min(d_qk)}..{max(d_qk)}, d_v {min(d_v)}..{max(d_v)}")


def fitted(rates, p):
    pairs = [rates.attrs[k].decode() if isinstance(rates.attrs[k], bytes) else rates.attrs[k] for k in ("pair_qk", "pair_v")]
    kept = np.stack([rates[f"{x}/kept"][:, ::2, :].reshape(len(rates["overall_p"]), -1) for x in pairs], axis=1)
    assert kept.shape[1:] == (2, N), kept.shape
    padded = -(-kept // STEP) * STEP
    i = int(np.argmin(np.abs(1 - padded.sum(axis=(1, 2)) / (2 * N * D) - p)))
    width, exact = padded[i].copy(), kept[i]
    want = round((1 - p) * TOTAL) * STEP
    while width.sum() != want:
        grow = width.sum() < want
        slack = (exact - width) if grow else (width - exact)  # of a width that was rounded up little, or much
        slack = np.where((width >= D) if grow else (width <= STEP), -10**6, slack)
        width[np.unravel_index(np.argmax(slack), slack.shape)] += STEP if grow else -STEP
    return width[0].tolist(), width[1].tolist(), float(rates["removal_rate"][i]), int(np.abs(width - padded[i]).sum() // STEP)


def wide(p):
    want = round((1 - p) * TOTAL)
    lo, hi = 1e-3, 1e3
    x = [i / 15 for i in range(16)]
    for _ in range(200):  # the mean falls with g
        g = math.sqrt(lo * hi)
        mean = sum(1 + 7 * v**g for v in x)
        lo, hi = (g, hi) if mean > want else (lo, g)
    real = [1 + 7 * v**g for v in x]
    units = [math.floor(v) for v in real]
    order = sorted(range(16), key=lambda i: units[i] - real[i])
    for i in order[: want - sum(units)]:
        units[i] += 1
    assert units[0] == 1 and units[15] == 8 and sum(units) == want, units
    # Neighbours in size make a head, so heads run from 16 + 16 or so to 112 + 128: the hardest to balance. Every second one swaps.
    pair = [(STEP * units[2 * i + i % 2], STEP * units[2 * i + 1 - i % 2]) for i in range(N)]
    turn = [(3 * i) % N for i in range(N)]  # neighbours differ
    return [pair[i][0] for i in turn], [pair[i][1] for i in turn]


def spread(spectrum, path):
    with open(path, "w", newline="") as f:
        for pair in ("qk", "vw", "wv", "bqk", "bvw"):
            sigma = spectrum[f"{pair}/sigma"][...]  # [layer][head][dim]
            names = [f"layer{l}_head{h}" for l in range(sigma.shape[0]) for h in range(sigma.shape[1])]
            if pair == "qk":
                f.write("pair,dim," + ",".join(names) + "\n")
            for j, row in enumerate(sigma.reshape(len(names), -1).T):
                f.write(f"{pair},{j}," + ",".join(f"{x:.5g}" for x in row) + "\n")
    print(f"{os.path.basename(path)}: {len(names)} heads")


def main():
    rates, spectrum, out = h5py.File(sys.argv[1]), h5py.File(sys.argv[2]), sys.argv[3]
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "lists.csv"), "w", newline="") as f:
        for tenth in range(1, 9):
            d_qk, d_v, r, moved = fitted(rates, tenth / 10)
            write(f, f"kvdim25m-p{10 * tenth}", d_qk, d_v, tenth / 10)
            print(f"  removal rate {r:.4f}, {moved} widths moved by 16")
        for tenth in range(1, 9):
            write(f, f"wide-p{10 * tenth}", *wide(tenth / 10), tenth / 10)
        f.write(f"end,{16 * (N + 1)}\n")
    spread(spectrum, os.path.join(out, "kvdim25m-sigma.csv"))


if __name__ == "__main__":
    main()
