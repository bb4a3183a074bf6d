"""The start of method matryoshka against the authors' own code (github.com/The-kamisato/MatryoshkaKV-cache), run unmodified.

usage: public_matryoshka.py CLONE DUMP.h5 SPECTRUM.h5 -o FOLDER

CLONE     a clone of the repository (bare will do)
DUMP      kvdim-collect MODEL --dtype f32
SPECTRUM  kvdim-spectrum DUMP.h5 --pair k,v
FOLDER    matryoshka.csv comes there

Theirs: sum_kv_states_per_head and kv_states_per_head_convariance_decomposition of eigenvalues_decomposition.py, called
as cal_pcallama_init.py calls them, on K after RoPE and V of every sequence, in float32 (theirs: bfloat16). Twice: as it
is, which takes the mean off, and with means of 0, which is what ours does. Compared are the projections R_w R_w^T.
"""
import argparse, csv, os, subprocess, sys, tempfile
import h5py, numpy as np, torch


def load_theirs(clone, folder):
    for name in ("eigenvalues_decomposition.py", "concat_kv_cache.py"):
        with open(os.path.join(folder, name), "wb") as f:
            subprocess.run(["git", "-C", clone, "show", "HEAD:" + name], stdout=f, check=True)
    commit = subprocess.run(["git", "-C", clone, "rev-parse", "HEAD"], stdout=subprocess.PIPE, text=True, check=True)
    sys.path.insert(0, folder)
    import eigenvalues_decomposition

    return commit.stdout.strip(), eigenvalues_decomposition


def theirs_of(code, k, v, sequence):
    """Bases [2][with mean taken off, without][layer][kv_head][dim][dim] and means [2][layer][kv_head][dim]."""
    layers, heads = k.shape[:2]
    sums = [[[torch.tensor(0) for _ in range(heads)] for _ in range(layers)] for _ in range(4)]
    total = 0
    for s in np.unique(sequence):
        at = np.flatnonzero(sequence == s)
        cache = [(torch.tensor(k[l][None][:, :, at]), torch.tensor(v[l][None][:, :, at])) for l in range(layers)]
        sums = list(code.sum_kv_states_per_head(*sums, cache, total))
        total += len(at)
    zero = [[torch.zeros_like(m) for m in row] for row in sums[2]]
    off = code.kv_states_per_head_convariance_decomposition(*sums)
    on = code.kv_states_per_head_convariance_decomposition(sums[0], sums[1], zero, zero)
    return [[[x[2 + side]] for x in (off, on)] for side in (0, 1)], sums[2:]


def main():
    p = argparse.ArgumentParser()
    for name in ("clone", "dump", "spectrum"):
        p.add_argument(name)
    p.add_argument("-o", required=True)
    a = p.parse_args()
    with h5py.File(a.dump) as f:
        k, v, sequence = f["k"][:], f["v"][:], f["tokens/sequence"][:]
    with h5py.File(a.spectrum) as f:
        ours = [f["k/R"][:], f["v/R"][:]]
    with tempfile.TemporaryDirectory() as work:
        commit, code = load_theirs(os.path.abspath(a.clone), work)
        bases, means = theirs_of(code, k, v, sequence)
    d, table = k.shape[-1], []
    for side, x in enumerate((k, v)):
        for l, h in np.ndindex(*x.shape[:2]):
            rows = x[l, h].astype(np.float64)
            mean = means[side][l][h].double().numpy()
            energy = (rows**2).sum()
            for width in (d // 8, d // 4, d // 2, 3 * d // 4):
                off, on = (bases[side][i][0][l][h].double().numpy()[:, :width] for i in (0, 1))
                r = ours[side][l, h][:, :width].astype(np.float64)
                lost = lambda b, y: ((y - y @ b @ b.T) ** 2).sum() / energy
                table.append(dict(
                    layer=l, side="kv"[side], kv_head=h, width=width,
                    projection_max_difference=np.abs(on @ on.T - r @ r.T).max(),
                    projection_rms_difference=np.sqrt(np.mean((on @ on.T - r @ r.T) ** 2)),
                    error_ours=lost(r, rows), error_theirs_mean_zero=lost(on, rows),
                    mean_share=len(rows) * (mean**2).sum() / energy,
                    common_dims_mean_off=np.sum(np.linalg.svd(off.T @ r)[1] ** 2),
                    error_theirs_mean_off=lost(off, rows - mean)))
    with open(os.path.join(a.o, "matryoshka.csv"), "w", newline="", encoding="utf-8") as f:
        w = csv.writer(f, lineterminator="\n")
        w.writerow(list(table[0]) + ["commit"])
        for r in table:
            w.writerow([f"{x:.6g}" if isinstance(x, float) else x for x in r.values()] + [commit[:10]])
    for side in "kv":
        t = [r for r in table if r["side"] == side]
        top = lambda key: max(r[key] for r in t)
        print(side, f"projections, means 0: max {top('projection_max_difference'):.2e} rms {top('projection_rms_difference'):.2e};"
              f" errors differ {max(abs(r['error_ours'] - r['error_theirs_mean_zero']) for r in t):.1e};"
              f" mean's share of squares {min(r['mean_share'] for r in t):.3f} to {top('mean_share'):.3f};"
              f" error at half width ours {np.mean([r['error_ours'] for r in t if r['width'] == d // 2]):.5f},"
              f" mean off {np.mean([r['error_theirs_mean_off'] for r in t if r['width'] == d // 2]):.5f};"
              f" least common share of dims {min(r['common_dims_mean_off'] / r['width'] for r in t):.4f}")


if __name__ == "__main__":
    main()
