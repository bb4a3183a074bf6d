#!/usr/bin/env python3
"""Quality of cut heads by Hugging Face Transformers, for tests/evaluate/test_kvdim_eval.sh.

usage: eval_oracle.py MODEL TEXT TOKENS SEQ_LEN SPECTRUM.h5 >tests/data/eval_expected.csv

The model, the tokenizer and the softmax are those of Transformers and PyTorch; heads are cut by a
replaced attention function, widths follow Eq. 6 of ZACK at overall p = 0.5 as the paper states it.
"""
import math
import sys

import h5py
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

MODEL, TEXT, TOKENS, SEQ_LEN, SPECTRUM = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
cut = None  # (A_q, A_k, A_v, B_v^T, widths of Q-K, widths of V), bases [layer][kv_head][dim][dim]


def attention(module, q, k, v, mask, scaling, dropout=0.0, **kw):
    if cut is None:
        return eager_attention_forward(module, q, k, v, mask, scaling, dropout=0.0, **kw)
    a_q, a_k, a_v, b_v, keep_qk, keep_v = cut
    layer, (batch, heads, n, d) = module.layer_idx, q.shape
    out = torch.zeros(batch, n, heads, d)
    future = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
    for h in range(heads):
        g = h // (heads // k.shape[1])
        m, w = keep_qk[layer, g], keep_v[layer, g]
        scores = (q[:, h] @ a_q[layer, g][:, :m]) @ (k[:, g] @ a_k[layer, g][:, :m]).transpose(1, 2)
        p = (scores * scaling).masked_fill(future, -math.inf).softmax(-1)
        out[:, :, h] = p @ (v[:, g] @ a_v[layer, g][:, :w]) @ b_v[layer, g][:, :w].T
    return out, None


ALL_ATTENTION_FUNCTIONS.register("cut", attention)
ALL_MASK_ATTENTION_FUNCTIONS.register("cut", eager_mask)
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="cut").eval()
ids = AutoTokenizer.from_pretrained(MODEL)(open(TEXT, encoding="utf-8").read())["input_ids"][:TOKENS]
ids = torch.tensor(ids).view(-1, SEQ_LEN)
target = ids[:, 1:]


def log_probabilities():
    with torch.no_grad():
        return model(ids).logits.double().log_softmax(-1)[:, :-1]


def kept(sigma, r):
    tail = np.cumsum(sigma[..., ::-1], -1)[..., ::-1] / sigma.sum(-1, keepdims=True)
    return np.maximum(1, (tail > r).sum(-1))


def widths(sigma_qk, sigma_v, p):
    """Eq. 6 at the smallest r that reaches overall p."""
    lo, hi = 0.0, 1.0
    for _ in range(60):
        mid = (lo + hi) / 2
        stored = kept(sigma_qk, mid).sum() + kept(sigma_v, mid).sum()
        lo, hi = (lo, mid) if 1 - stored / (2 * sigma_qk.size) >= p else (mid, hi)
    return kept(sigma_qk, hi), kept(sigma_v, hi)


def row(name, lp):
    nll = -lp.gather(-1, target[..., None]).mean().item()
    top1 = (lp.argmax(-1) == target).double().mean().item()
    kl = (reference.exp() * (reference - lp)).sum(-1).mean().item()
    agree = (lp.argmax(-1) == reference.argmax(-1)).double().mean().item()
    print(f"{name},{math.exp(nll):.6f},{top1:.6f},{kl:.6f},{agree:.6f}", flush=True)


with h5py.File(SPECTRUM) as f:
    s = {name: d[()] for name, d in ((n, f[n]) for n in
         ("qk/R", "vw/R", "wv/R", "bqk/left", "bqk/right", "bvw/left", "bvw/right",
          "qk/sigma", "vw/sigma", "wv/sigma", "bqk/sigma", "bvw/sigma"))}
basis = {name: torch.tensor(x).float() for name, x in s.items()}
print("method,perplexity,top1,kl,agree")
reference = log_probabilities()
row("none", reference)
half = np.full(s["qk/sigma"].shape[:2], s["qk/sigma"].shape[2] // 2)
for name, bases, keep in (
    ("zack", ("qk/R", "qk/R", "vw/R", "vw/R"), widths(s["qk/sigma"], s["vw/sigma"], 0.5)),
    ("fdc", ("qk/R", "qk/R", "wv/R", "wv/R"), widths(s["qk/sigma"], s["wv/sigma"], 0.5)),
    ("uniform", ("qk/R", "qk/R", "vw/R", "vw/R"), (half, half)),
    ("balanced", ("bqk/left", "bqk/right", "bvw/left", "bvw/right"), widths(s["bqk/sigma"], s["bvw/sigma"], 0.5)),
):
    cut = tuple(basis[b] for b in bases) + keep
    row(name, log_probabilities())
