"""Writes tests/data/attention.bin: attention on heads of unequal width by PyTorch in float64, for test_attention_ref.c.

usage: make_attention.py tests/data/attention.bin

Every head and request is one call of scaled_dot_product_attention on the CPU with an explicit mask. Little endian:
"KVDATTN1", int32 cases; a case: int32 n_heads n_kv_heads d_head batch, d_qk d_v [n_kv_heads], q_len kv_len [batch],
float32 q k v, float64 out lse [n_heads][n_q], in the PLAIN layout of src/kernels/layout.h.
"""
import sys

import numpy as np
import torch
import torch.nn.functional as F

torch.manual_seed(7)

# n_heads, d_head, d_qk, d_v, q_len, kv_len, factor on Q (large: sharp softmax)
CASES = [
    (4, 32, [16, 24], [8, 16], [1, 5, 7], [9, 5, 20], 1),
    (3, 128, [1], [3], [4], [4], 1),
    (6, 64, [64, 17, 33], [64, 40, 5], [11, 1], [30, 1], 1),
    (2, 128, [128, 16], [16, 128], [9], [33], 12),
    (4, 16, [16], [16], [1, 1], [40, 3], 30),
]


def case(out, n_heads, d_head, d_qk, d_v, q_len, kv_len, factor):
    n_kv_heads, group = len(d_qk), n_heads // len(d_qk)
    n_q, n_kv = sum(q_len), sum(kv_len)
    q = [factor * torch.randn(n_q, d_qk[h // group]) for h in range(n_heads)]
    k = [torch.randn(n_kv, d) for d in d_qk]
    v = [torch.randn(n_kv, d) for d in d_v]
    o, lse = [], torch.empty(n_heads, n_q, dtype=torch.float64)
    for h in range(n_heads):
        g, rows, at_q, at_kv = h // group, [], 0, 0
        for m, n in zip(q_len, kv_len):
            x, y, z = (t.double() for t in (q[h][at_q : at_q + m], k[g][at_kv : at_kv + n], v[g][at_kv : at_kv + n]))
            seen = torch.arange(n)[None, :] <= (n - m + torch.arange(m))[:, None]
            rows.append(F.scaled_dot_product_attention(x[None], y[None], z[None], attn_mask=seen[None], scale=d_head**-0.5)[0])
            scores = (x @ y.T * d_head**-0.5).masked_fill(~seen, -torch.inf)
            lse[h, at_q : at_q + m] = torch.logsumexp(scores, 1)
            at_q, at_kv = at_q + m, at_kv + n
        o.append(torch.cat(rows))
    ints = [n_heads, n_kv_heads, d_head, len(q_len), *d_qk, *d_v, *q_len, *kv_len]
    out.write(np.array(ints, "<i4").tobytes())
    for part in (q, k, v):
        for x in part:
            out.write(x.numpy().astype("<f4").tobytes())
    for x in [*o, lse]:
        out.write(x.numpy().astype("<f8").tobytes())


with open(sys.argv[1], "wb") as f:
    f.write(b"KVDATTN1" + np.array([len(CASES)], "<i4").tobytes())
    for c in CASES:
        case(f, *c)
