#!/usr/bin/env python3
"""kvdim/attention against plain double precision from a float32 dump of the same run.

tool_compare_attention.py oracle DUMP.h5 ATTENTION.h5   every field, from Q, K, V of the dump
tool_compare_attention.py same A.h5 B.h5                every dataset, bit for bit
tool_compare_attention.py close A.h5 B.h5               counts to one in a thousand, their sums exactly; the rest to 1e-5
tool_compare_attention.py tokens ATTENTION.h5 TOKENS.h5 kvdim/tokens from kvdim/attention
tool_compare_attention.py added A.h5 B.h5 SUM.h5        kvdim/tokens of two files, from kvdim/tokens of each
tool_compare_attention.py described FILE.h5             long_name, units, axis labels everywhere

Scores in the file come from float32 products: a value within `tol` of the edge of a bin may lie on either side of it.
"""
import sys

import h5py
import numpy as np

LEVELS = [0.9, 0.95, 0.99]
tol = 2e-5


def fail(text):
    print(text)
    sys.exit(1)


def near(name, got, want, rel=2e-5, at_least=0.0):
    got, want = np.asarray(got, float), np.asarray(want, float)
    scale = max(np.abs(want).max(), at_least)
    worst = np.abs(got - want).max()
    if not worst <= rel * scale:
        fail(f"{name}: off by {worst:g}, values up to {scale:g}")


def binned(name, h, edges, values, slack):
    """h: counts with a bin below and one above; at every edge as many values lie below as there are, but for slack."""
    below = np.cumsum(h[:-1].astype(np.int64))
    v = np.sort(values)
    least, most = np.searchsorted(v, edges - slack(edges)), np.searchsorted(v, edges + slack(edges))
    if h.sum() != len(values):
        fail(f"{name}: {h.sum()} values, should be {len(values)}")
    bad = np.nonzero((below < least) | (below > most))[0]
    if len(bad):
        i = bad[0]
        fail(f"{name}: {below[i]} values below {edges[i]:g}, should be {least[i]} to {most[i]}")


def critical(mass, level):
    """Counts that a rounding error of the level gives: (least, most)."""
    down = np.cumsum(np.sort(mass)[::-1])
    return [int(np.searchsorted(down, level * down[-1] * f) + 1) for f in (1 - 1e-5, 1 + 1e-5)]


class Counts:
    def __init__(self):
        self.lo, self.hi, self.share = [], [], []

    def add(self, mass):
        c = [critical(mass, x) for x in LEVELS]
        self.lo.append([a for a, _ in c])
        self.hi.append([min(b, len(mass)) for _, b in c])
        self.share.append(len(mass))

    def check(self, name, f, index):
        lo, hi, n = np.array(self.lo), np.array(self.hi), np.array(self.share)[:, None]
        for what, a, b in (("count_sum", lo.sum(0), hi.sum(0)),
                           ("count_sum_squares", (lo * lo).sum(0), (hi * hi).sum(0)),
                           ("count_min", lo.min(0), hi.min(0)), ("count_max", lo.max(0), hi.max(0)),
                           ("share_sum", (lo / n).sum(0) - 1e-12, (hi / n).sum(0) + 1e-12)):
            got = f[f"critical/{name}/{what}"][index]
            if np.any(got < a) or np.any(got > b):
                fail(f"critical/{name}/{what}{index}: {got}, should be {a} to {b}")


def oracle(dump_path, path):
    d, f = h5py.File(dump_path), h5py.File(path)
    seq = d["tokens/sequence"][:]
    starts = np.concatenate([[0], np.nonzero(np.diff(seq))[0] + 1, [len(seq)]]).astype(int)
    layers, heads, _, width = d["q"].shape
    kv_heads, group = d["k"].shape[1], heads // d["k"].shape[1]
    kept, longest = f["requests/length"].shape[0], int(f.attrs["seq_len"])
    lengths = np.diff(starts)
    if list(f["requests/length"][:]) != list(lengths[:kept]) or f["n_tokens"][()] != len(seq):
        fail("lengths of requests")
    if f.attrs["n_requests"] != len(lengths):
        fail("n_requests")
    if list(f["requests/at_position"][:]) != [(lengths > i).sum() for i in range(longest)]:
        fail("requests/at_position")
    edges = {k: f[f"bins/{k}"][:] for k in ("score", "probability", "norm")}
    for l in range(layers):
        window = int(f["window"][l])
        scores = [[] for _ in range(heads)]
        probs = [[] for _ in range(heads)]
        dens = [[] for _ in range(heads)]
        received = [[] for _ in range(heads)]
        at = np.zeros((heads, longest))
        per_head, per_kv = [Counts() for _ in range(heads)], [Counts() for _ in range(kv_heads)]
        per_layer = Counts()
        for r, (a, b) in enumerate(zip(starts[:-1], starts[1:])):
            n = b - a
            i, j = np.arange(n)[:, None], np.arange(n)[None, :]
            mask = j <= i
            if window:
                mask &= j > i - window
            mass = np.zeros((heads, n))
            den = np.zeros((heads, n))
            total = np.zeros((n, n))
            for h in range(heads):
                q = d["q"][l, h, a:b].astype(float)
                k = d["k"][l, h // group, a:b].astype(float)
                s = q @ k.T / np.sqrt(width)
                e = np.where(mask, np.exp(s - np.where(mask, s, -np.inf).max(1, keepdims=True)), 0)
                den[h] = np.log(np.where(mask, np.exp(s), 0).sum(1))
                p = e / e.sum(1, keepdims=True)
                mass[h] = p.sum(0)
                total += np.where(mask, s, 0)
                later = mass[h] - np.diag(p)
                seen = mask.sum(0) - 1
                received[h].append(np.where(seen > 0, later / np.maximum(seen, 1), 0)[:-1])
                scores[h].append(s[mask])
                probs[h].append(p[mask])
                dens[h].append(den[h])
                at[h, :n] += mass[h]
                per_head[h].add(mass[h])
            for g in range(kv_heads):
                per_kv[g].add(mass[g * group:(g + 1) * group].sum(0))
            per_layer.add(mass.sum(0))
            if r < kept:
                near(f"requests/mass[{r}][{l}]", f["requests/mass"][r, l, :n], mass.sum(0))
                near(f"requests/log_denominator[{r}][{l}]", f["requests/log_denominator"][r, l, :n],
                     np.log(np.exp(den).sum(0)), at_least=1)
                # float32 products: scores of several tens are off by 1e-5, and cancel in a mean
                near(f"requests/score_as_query[{r}][{l}]", f["requests/score_as_query"][r, l, :n],
                     total.sum(1) / mask.sum(1) / heads, at_least=1)
                near(f"requests/score_as_key[{r}][{l}]", f["requests/score_as_key"][r, l, :n],
                     total.sum(0) / mask.sum(0) / heads, at_least=1)
                kept_of = ("mass", "log_denominator", "score_as_query", "score_as_key")
                if any(np.any(f["requests/" + x][r, l, n:]) for x in kept_of):
                    fail("a request is not 0 behind its end")
        for h in range(heads):
            where = f"[{l}][{h}]"
            s, p, dn, rc = (np.concatenate(x[h]) for x in (scores, probs, dens, received))
            binned("scores/histogram" + where, f["scores/histogram"][l, h], edges["score"], s,
                   lambda e: tol * (1 + np.abs(e)))
            binned("probabilities/histogram" + where, f["probabilities/histogram"][l, h], edges["probability"], p,
                   lambda e: 2 * tol * e)
            binned("received/histogram" + where, f["received/histogram"][l, h], edges["probability"], rc,
                   lambda e: 2 * tol * e)
            for name, got, want in (("scores/sum", s.sum(), np.abs(s).sum()),
                                    ("scores/sum_squares", (s * s).sum(), (s * s).sum()),
                                    ("scores/min", s.min(), 1), ("scores/max", s.max(), 1),
                                    ("log_denominators/sum", dn.sum(), np.abs(dn).sum()),
                                    ("log_denominators/sum_squares", (dn * dn).sum(), (dn * dn).sum()),
                                    ("log_denominators/min", dn.min(), 1), ("log_denominators/max", dn.max(), 1),
                                    ("received/min", rc.min(), 0), ("received/max", rc.max(), 0)):
                near(name + where, f[name][l, h], got, at_least=want)
            near("received/mass_at_position" + where, f["received/mass_at_position"][l, h], at[h])
            q = f["quantile_levels"][:]
            exact = np.quantile(s, q, method="inverted_cdf")
            if np.abs(f["scores/quantiles"][l, h] - exact).max() > 1 / 8 + tol:
                fail(f"scores/quantiles{where}: {f['scores/quantiles'][l, h]}, should be {exact}")
            exact = np.quantile(p, q, method="inverted_cdf")
            if np.abs(np.log10(f["probabilities/quantiles"][l, h] / exact)).max() > 1 / 20 + tol:
                fail(f"probabilities/quantiles{where}: {f['probabilities/quantiles'][l, h]}, should be {exact}")
            per_head[h].check("head", f, (l, h))
        for g in range(kv_heads):
            norm = np.linalg.norm(d["v"][l, g].astype(float), axis=1)
            binned(f"values/histogram[{l}][{g}]", f["values/histogram"][l, g], edges["norm"], norm,
                   lambda e: 1e-12 * e)
            near("values/sum", f["values/sum"][l, g], norm.sum(), 1e-12)
            near("values/sum_squares", f["values/sum_squares"][l, g], (norm * norm).sum(), 1e-12)
            near("values/min", f["values/min"][l, g], norm.min(), 1e-12)
            near("values/max", f["values/max"][l, g], norm.max(), 1e-12)
            per_kv[g].check("kv_head", f, (l, g))
        per_layer.check("layer", f, (l,))
        # All tokens together receive the sum of what every row gives.
        near("mass", f["received/mass_at_position"][l].sum(), heads * len(seq), 1e-9)


def datasets(path):
    out = {}
    with h5py.File(path) as f:
        f.visititems(lambda name, o: out.__setitem__(name, (o[()], dict(o.attrs))) if isinstance(o, h5py.Dataset) else None)
    return out


def compare(a_path, b_path, exactly):
    a, b = datasets(a_path), datasets(b_path)
    if a.keys() != b.keys():
        fail(f"datasets differ: {sorted(a.keys() ^ b.keys())}")
    for name in a:
        x, y = np.asarray(a[name][0]), np.asarray(b[name][0])
        if exactly and not np.array_equal(x, y):
            fail(f"{name} differs")
        if exactly:
            continue
        if name.endswith("histogram"):
            if not np.array_equal(x.sum(-1), y.sum(-1)):
                fail(f"{name}: totals differ")
            moved = np.abs(x.astype(float) - y.astype(float)).sum(-1) / 2
            if (moved > 2 + x.sum(-1) / 1000).any():
                fail(f"{name}: {moved.max():g} values are in other bins")
        elif "critical" in name:
            near(name, x, y, 2e-3)
        elif "quantiles" not in name:
            near(name, x, y, 1e-5)


def quantile(h, edges, q, logarithmic):
    e = np.log10(edges) if logarithmic else edges
    below, total = 0.0, float(h.sum())
    for i, n in enumerate(h.astype(float)):
        if n > 0 and below + n >= q * total:
            part = max(0.0, (q * total - below) / n)
            x = e[0] if i == 0 else e[-1] if i == len(e) else e[i - 1] + part * (e[i] - e[i - 1])
            return 10**x if logarithmic else x
        below += n
    return 0.0


def tokens(attention_path, path):
    a, t = h5py.File(attention_path), h5py.File(path)
    layers, heads = a["scores/min"].shape
    share, limit = t.attrs["share"], t.attrs["group_overlap"]
    length, windows = a["requests/length"][:].astype(int), a["window"][:].astype(int)
    for name, of, bins in (("scores", "scores", "score"), ("received", "received", "probability"),
                           ("values", "values", "norm")):
        near(name + "/min", t[name + "/min"], a[of + "/min"][:].min(1), 1e-15)
        near(name + "/max", t[name + "/max"], a[of + "/max"][:].max(1), 1e-15)
        for l in range(layers):
            h = a[of + "/histogram"][l].sum(0)
            want = [quantile(h, a["bins/" + bins][:], q, bins != "score") for q in t["quantile_levels"]]
            near(f"{name}/quantiles[{l}]", t[name + "/quantiles"][l], want, 1e-12)
            if name != "scores":
                near(f"{name}/decades[{l}]", t[name + "/decades"][l], np.log10(want[-2] / want[1]), 1e-9)
    n = a["scores/histogram"][:].sum((1, 2)).astype(float)
    mean = a["scores/sum"][:].sum(1) / n
    near("scores/mean", t["scores/mean"], mean, 1e-12)
    near("scores/sd", t["scores/sd"], np.sqrt(a["scores/sum_squares"][:].sum(1) / n - mean**2), 1e-9)
    for m, rank in enumerate(t.attrs["measures"].decode().split(",") if isinstance(t.attrs["measures"], bytes)
                             else t.attrs["measures"].split(",")):
        low, high = [], []
        for r, size in enumerate(length):
            j = np.arange(size)
            k = max(1, int(np.floor(share * size + 0.5)))
            sets = [], []
            for l in range(layers):
                w = windows[l] or size
                mass, den = a["requests/mass"][r, l, :size], a["requests/log_denominator"][r, l, :size]
                value = {"score": a["requests/score_as_query"][r, l, :size],
                         "score-as-key": a["requests/score_as_key"][r, l, :size], "denominator": den, "denominator-per-key": den - np.log(np.minimum(j + 1, w)), "mass": mass,
                         "mass-per-query": mass / np.minimum(size - j, w)}[rank]
                order = np.lexsort((j, value))
                sets[0].append(set(order[:k]))
                sets[1].append(set(order[size - k:]))
            for s, to in zip(sets, (low, high)):
                to.append([[len(x & y) / k for y in s] for x in s])
        for name, x in (("unimportant", low), ("important", high)):
            x = np.array(x)
            near(f"overlap/{name}[{rank}]", t[f"overlap/{name}"][m], x.mean(0), 1e-12)
            sd = x.std(0, ddof=1) if len(x) > 1 else 0 * x[0]
            near(f"overlap/{name}_sd[{rank}]", t[f"overlap/{name}_sd"][m], sd, 1e-6, at_least=1e-2)
        both = np.minimum(np.array(low).mean(0), np.array(high).mean(0))
        first, number, want = 0, 0, [0]
        for l in range(1, layers):
            if not both[first][l] > limit:
                first, number = l, number + 1
            want.append(number)
        if list(t["overlap/group"][m]) != want:
            fail(f"overlap/group[{rank}]: {list(t['overlap/group'][m])}, should be {want}")
    requests = float(a.attrs["n_requests"])
    for g in ("layer", "kv_head", "head"):
        c, d = a[f"critical/{g}"], t[f"critical/{g}"]
        total, squares = (np.moveaxis(c[x][:].astype(float), -1, 0) for x in ("count_sum", "count_sum_squares"))
        near(g + " mean", d["mean"], total / requests, 1e-12)
        near(g + " share", d["share"], np.moveaxis(c["share_sum"][:], -1, 0) / requests, 1e-12)
        near(g + " sd", d["sd"], np.sqrt(np.maximum(0, squares - total**2 / requests) / max(1, requests - 1)), 1e-6,
             at_least=1e-2)
        near(g + " min", d["min"], np.moveaxis(c["count_min"][:], -1, 0), 0)
        near(g + " max", d["max"], np.moveaxis(c["count_max"][:], -1, 0), 0)


def added(a_path, b_path, sum_path):
    a, b, both = (h5py.File(p) for p in (a_path, b_path, sum_path))
    for name in ("n_requests", "n_kept"):
        if both.attrs[name] != a.attrs[name] + b.attrs[name]:
            fail(name)
    if both["n_tokens"][()] != a["n_tokens"][()] + b["n_tokens"][()]:
        fail("n_tokens")
    for name, by in (("overlap/unimportant", "n_kept"), ("overlap/important", "n_kept"),
                     ("critical/layer/mean", "n_requests"), ("critical/kv_head/mean", "n_requests"),
                     ("critical/head/share", "n_requests")):
        x, y = float(a.attrs[by]), float(b.attrs[by])
        near(name, both[name], (x * a[name][:] + y * b[name][:]) / (x + y), 1e-12)
    for name in ("scores/min", "received/min", "values/min", "critical/head/min"):
        near(name, both[name], np.minimum(a[name], b[name]), 0)
    for name in ("scores/max", "received/max", "values/max", "critical/layer/max"):
        near(name, both[name], np.maximum(a[name], b[name]), 0)


def described(path):
    with h5py.File(path) as f:
        def one(name, o):
            if not isinstance(o, h5py.Dataset) or h5py.h5ds.is_scale(o.id):
                return
            if not o.attrs["long_name"] or not o.attrs["units"] or any(not x.label for x in o.dims):
                fail(f"{name} lacks a description")
        f.visititems(one)


if sys.argv[1] == "oracle":
    oracle(*sys.argv[2:4])
elif sys.argv[1] in ("same", "close"):
    compare(sys.argv[2], sys.argv[3], sys.argv[1] == "same")
elif sys.argv[1] == "tokens":
    tokens(*sys.argv[2:4])
elif sys.argv[1] == "added":
    added(*sys.argv[2:5])
else:
    described(sys.argv[2])
