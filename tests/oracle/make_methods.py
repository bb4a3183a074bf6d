"""Writes tests/data/methods.safetensors: methods of the cache by PyTorch and SciPy from their definitions, for test_methods_oracle.c.

usage: make_methods.py tests/data/methods.safetensors

kivi_*     groups of 32 numbers to 2 bits, scale and minimum in float16 (KIVI, section 3)
h2o_*      attention of two query heads on one KV head, row by row, over what Algorithm 1 of H2O leaves
snapkv_*   the same after the choice of SnapKV, by softmax, sum and avg_pool1d as its authors have it
kvquant_*  percentiles, outliers and k-means levels (KVQuant, sections 3.1 to 3.4) and what numbers are read as
palu_*     W_K of two heads, whitened by the Cholesky factor of X^T X, by svd (Palu, section 3)
think_*    channels kept by ||Q_i|| ||K_i|| (ThinK, section 3)
fisher_*   squared gradients, here whole numbers, and the same levels where a number counts as often as that says (kmeans2 of repeated
           numbers); for weights=2 as often as its squared half range says, rounded
ranks_*    Palu's ranks from Fisher information, the loop of its rank_search.py without its rounding to 32
"""
import sys

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from scipy.cluster.vq import kmeans2

torch.manual_seed(11)
out = {}


def keep(name, x):
    out[name] = torch.as_tensor(np.asarray(x)).to(torch.float32).contiguous()


# ---- kivi ------------------------------------------------------------------------------------------
def kivi(x, axis, group=32, bits=2):
    """x [n][d] in groups of `group` along an axis."""
    y = x.movedim(axis, -1)
    shape = y.shape
    y = y.reshape(-1, group)
    low, high = y.min(-1, keepdim=True).values, y.max(-1, keepdim=True).values
    scale, zero = ((high - low) / (2**bits - 1)).half().float(), low.half().float()
    code = ((y - zero) / scale).round().clamp(0, 2**bits - 1)
    return (code * scale + zero).reshape(shape).movedim(-1, axis)


x = torch.randn(64, 32)
x[:, 3] *= 15
keep("kivi_x", x)
keep("kivi_keys", kivi(x, 0))
keep("kivi_values", kivi(x, 1))

# ---- h2o, snapkv: one KV head, two query heads -----------------------------------------------------
N, D, PROMPT = 96, 16, 40
q, k, v = torch.randn(N, 2, D) * 2, torch.randn(N, 1, D), torch.randn(N, 1, D)
for name, y in (("q", q), ("k", k), ("v", v)):
    keep("tokens_" + name, y)
Q, K, V = q.double(), k[:, 0].double(), v[:, 0].double()


def row(t, tokens):
    """Probabilities of both query heads of row t over tokens, and their outputs."""
    p = (Q[t] @ K[tokens].T / D**0.5).softmax(-1)
    return p, p @ V[tokens]


def prompt_rows():
    p = [row(t, list(range(t + 1))) for t in range(PROMPT)]
    mass = torch.zeros(PROMPT, dtype=torch.float64)
    for t in range(PROMPT):
        mass[: t + 1] += p[t][0].sum(0)
    return [o for _, o in p], mass


def h2o(heavy, recent):
    outputs, mass = prompt_rows()
    score = {t: float(mass[t]) for t in range(PROMPT)}
    old = sorted(range(PROMPT - recent), key=lambda t: -score[t])[:heavy]
    tokens = sorted(old) + list(range(PROMPT - recent, PROMPT))
    for t in range(PROMPT, N):
        tokens.append(t)
        score[t] = 0.0
        p, o = row(t, tokens)
        outputs.append(o)
        for i, token in enumerate(tokens):
            score[token] += float(p[:, i].sum())
        if len(tokens) > heavy + recent:
            tokens.remove(min(tokens[: len(tokens) - recent], key=lambda i: score[i]))
    return torch.stack(outputs)


def snapkv(budget, window, kernel):
    outputs, _ = prompt_rows()
    scores = torch.einsum("thd,sd->hts", Q[PROMPT - window : PROMPT], K[:PROMPT]) / D**0.5
    mask = torch.full((window, window), float("-inf"), dtype=torch.float64).triu(1)
    scores[:, :, PROMPT - window :] += mask
    p = scores.softmax(-1)[:, :, : PROMPT - window].sum(1)
    pooled = F.avg_pool1d(p[None], kernel_size=kernel, padding=kernel // 2, stride=1)[0].sum(0)
    tokens = sorted(pooled.topk(budget).indices.tolist()) + list(range(PROMPT - window, PROMPT))
    for t in range(PROMPT, N):
        tokens.append(t)
        outputs.append(row(t, tokens)[1])
    return torch.stack(outputs)


def think(share, window):
    outputs, _ = prompt_rows()
    norm = Q[PROMPT - window : PROMPT].norm(dim=0).sum(0) * K[:PROMPT].norm(dim=0)
    pruned = norm.topk(int(share * D), largest=False).indices
    thin = K.clone()
    thin[: PROMPT - window, pruned] = 0
    for t in range(PROMPT, N):
        p = (Q[t] @ thin[: t + 1].T / D**0.5).softmax(-1)
        outputs.append(p @ V[: t + 1])
    return torch.stack(outputs)


keep("h2o_out", h2o(10, 6))
keep("snapkv_out", snapkv(12, 8, 5))
keep("think_out", think(0.4, 8))

# ---- palu, kvquant: rows of two heads ---------------------------------------------------------------
ROWS, MODEL, HEAD, RANK = 256, 24, 8, 8
X = torch.randn(ROWS, MODEL, dtype=torch.float64) @ torch.randn(MODEL, MODEL, dtype=torch.float64)
W = torch.randn(2 * HEAD, MODEL, dtype=torch.float64) * torch.linspace(2, 0.1, 2 * HEAD)[:, None]
keys = X @ W.T
S = torch.linalg.cholesky(X.T @ X)
u, s, vt = torch.linalg.svd(W @ S, full_matrices=False)
approx = (u[:, :RANK] * s[:RANK]) @ vt[:RANK] @ torch.linalg.inv(S)
keep("rows_k", keys)
keep("palu_k", X @ approx.T)

values = torch.randn(ROWS, 2 * HEAD).double() * torch.linspace(0.5, 2, 2 * HEAD)
values[::17, 5] *= 6
keep("rows_v", values)


def levels_of(normalised, n):
    start = np.quantile(normalised, (np.arange(n) + 0.5) / n)
    return np.sort(kmeans2(normalised, start, iter=300, minit="matrix")[0])


def nearest(level, x):
    return level[np.abs(x[..., None] - level).argmin(-1)]


BITS, OUTLIERS = 3, 0.04
k32 = out["rows_k"].numpy().astype(np.float64)
low, high = np.percentile(k32, 100 * OUTLIERS / 2, axis=0), np.percentile(k32, 100 - 100 * OUTLIERS / 2, axis=0)
apart = (k32 < low) | (k32 > high)
normalised = (k32 - (low + high) / 2) / ((high - low) / 2)
level = levels_of(normalised[~apart], 2**BITS)
keep("kvquant_k_apart", apart)
keep("kvquant_k", np.where(apart, k32.astype(np.float16), nearest(level, normalised) * (high - low) / 2 + (low + high) / 2))

v32 = out["rows_v"].numpy().astype(np.float64).reshape(ROWS * 2, HEAD)  # a vector is one head's
order = np.argsort(v32, axis=1)
apart = np.zeros(v32.shape, bool)
count = int(np.ceil(OUTLIERS / 2 * HEAD))
np.put_along_axis(apart, order[:, :count], True, 1)
np.put_along_axis(apart, order[:, HEAD - count :], True, 1)
low = np.where(apart, np.inf, v32).min(1, keepdims=True)
high = np.where(apart, -np.inf, v32).max(1, keepdims=True)
normalised = (v32 - (low + high) / 2) / ((high - low) / 2)
level = levels_of(normalised[~apart], 2**BITS)
keep("kvquant_v_apart", apart.reshape(ROWS, 2 * HEAD))
keep("kvquant_v", np.where(apart, v32.astype(np.float16), nearest(level, normalised) * (high - low) / 2 + (low + high) / 2).reshape(ROWS, 2 * HEAD))

# ---- with squared gradients ------------------------------------------------------------------------
def weighted(x, low, high, apart, weight):
    """What the numbers x [n][d] are read as, levels from as many copies as weights say."""
    u = (x - (low + high) / 2) / ((high - low) / 2)
    many = np.repeat(u[~apart], weight[~apart])
    tries = [np.sort(kmeans2(many, 2**BITS, iter=300, minit="++", seed=i)[0]) for i in range(60)]  # it finds no more than a local end
    level = min(tries, key=lambda t: np.square(many - nearest(t, many)).sum())
    return np.where(apart, x.astype(np.float16), nearest(level, u) * (high - low) / 2 + (low + high) / 2)


draw = np.random.default_rng(5)
for name, x in (("k", k32), ("v", v32)):
    if name == "k":
        low, high = np.percentile(x, 100 * OUTLIERS / 2, axis=0), np.percentile(x, 100 - 100 * OUTLIERS / 2, axis=0)
        low, high = np.broadcast_to(low, x.shape), np.broadcast_to(high, x.shape)
        apart = (x < low) | (x > high)
    else:
        apart = np.zeros(x.shape, bool)
        order = np.argsort(x, axis=1)
        np.put_along_axis(apart, order[:, :count], True, 1)
        np.put_along_axis(apart, order[:, HEAD - count :], True, 1)
        low = np.broadcast_to(np.where(apart, np.inf, x).min(1, keepdims=True), x.shape)
        high = np.broadcast_to(np.where(apart, -np.inf, x).max(1, keepdims=True), x.shape)
    u = (x - (low + high) / 2) / ((high - low) / 2)
    weight = np.where(u > 0.3, 12, 1) * draw.integers(0, 4, x.shape)  # where levels should go
    keep("fisher_" + name, weight.reshape(ROWS, 2 * HEAD))
    keep("fisher_levels_" + name, weighted(x, low, high, apart, weight).reshape(ROWS, 2 * HEAD))
    scaled = weight * (high - low) ** 2
    scaled = np.rint(30 * scaled / scaled.mean()).astype(int)
    keep("fisher_scaled_" + name, weighted(x, low, high, apart, scaled).reshape(ROWS, 2 * HEAD))


def rank_search(information, wide, total):
    """https://github.com/shadowpa0327/Palu palu/rank_search.py, search_method "fisher"."""
    share = [total * f / sum(information) for f in information]
    rank = [min(wide, int(np.floor(r))) for r in share]
    order = sorted(range(len(rank)), key=lambda i: share[i] - rank[i])
    left = total - sum(rank)
    while left > 0:
        for i in order:
            if rank[i] == wide:
                continue
            rank[i] += 1
            left -= 1
            if left == 0:
                break
    return rank


cases = [draw.exponential(1, 4) ** power for power in (0.2, 0.5, 1, 1, 1.5, 2) for _ in range(5)]
cases = [c for c in cases if min(rank_search(c, HEAD, 4 * 4)) > 0]
keep("ranks_information", np.stack(cases))
keep("ranks", np.array([[rank_search(np.float32(c).astype(float), HEAD, 4 * r) for c in cases] for r in (4, 6)]))

save_file(out, sys.argv[1])
for name, y in out.items():
    print(name, list(y.shape))
