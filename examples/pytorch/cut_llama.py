"""Runs a Transformers Llama on libkvdim-attention with heads cut by kvdim's rotations.

usage: cut_llama.py MODEL SPECTRUM RATES LIBRARY [cpu|cuda], with files of kvdim-spectrum and
kvdim-fit (last point). Transformers (4.56 or later) generates; the library gets the same tokens."""
import struct
import sys
import time
from ctypes import CDLL, byref, c_char_p, c_size_t, c_void_p

import h5py
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb


def pack(layout, *values):
    """Returns a structure of include/kvdim/attention.h: its size, integers (i, q), pointers (P)."""
    return struct.pack(f"N{layout}0P", struct.calcsize(f"N{layout}0P"), *values)


def call(name, *arguments):
    getattr(lib, "kvdim_" + name)(*arguments) and sys.exit(lib.kvdim_last_error().decode())


class CutLayer:
    """The cache of one attention layer of one request, and W_O in the rotated basis."""
    def __init__(self, attention, kept, rotations, tokens):
        w, n, d_head, self.length = attention.o_proj.weight, len(kept[0]), attention.head_dim, 0
        group, widths = w.shape[1] // d_head // n, torch.tensor(kept, dtype=torch.int32)
        attention.forward, self.attention, self.layer = self.forward, attention, c_void_p()
        self.columns, self.page_bytes = (widths.sum(1) * group).tolist(), 128 * int(widths.sum())
        call("layer_create", pack("5iPP", w.is_cuda, 1, n * group, n, d_head, widths[0].data_ptr(),
                                  widths[1].data_ptr()), byref(self.layer))
        r_qk, r_v = ([r[:, :d].to(w) for r, d in zip(*side)] for side in zip(rotations, kept))
        self.r_qk, self.r_v = (torch.cat([r.flatten() for r in side]) for side in (r_qk, r_v))
        w_o = w.view(len(w), n, group, d_head)
        self.w_o = torch.cat([(w_o[:, g] @ r).flatten(1) for g, r in enumerate(r_v)], dim=1)
        self.table = torch.arange(-(-tokens // 64), dtype=torch.int32, device=w.device)
        self.pool = w.new_empty(len(self.table) * self.page_bytes // 2)

    def forward(self, hidden_states, position_embeddings, **_):
        """Takes the place of LlamaAttention.forward, with W_O applied to the rotated output."""
        a, new, pages = self.attention, hidden_states.shape[1], len(self.table)
        q, k, v = (p(hidden_states).view(1, new, -1, a.head_dim).transpose(1, 2)
                   for p in (a.q_proj, a.k_proj, a.v_proj))
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        x, at = torch.cat([q, k, v], 1).transpose(1, 2).contiguous(), torch.Tensor.data_ptr
        self.length, size, plan = self.length + new, c_size_t(), c_void_p()
        lengths = torch.tensor([new, self.length], dtype=torch.int32)
        stream = c_void_p(torch.cuda.current_stream().cuda_stream if x.is_cuda else None)
        batch = pack("3i3P", 1, pages, pages, at(lengths), at(lengths[1:]), at(self.table))
        call("workspace_bytes", self.layer, batch, byref(size))
        work = x.new_empty(size.value // 2 + 1)
        call("plan_create", self.layer, batch, c_void_p(at(work)), size, stream, byref(plan))
        rotated, o = (x.new_empty(lib.kvdim_plan_rows(plan), n) for n in self.columns)
        call("append", plan, pack("3Pii4P", at(x), 0, 0, 0, 0, at(self.r_qk), at(self.r_v),
                                  at(rotated), at(self.pool)), stream)
        call("attend", plan, pack("3PqP", at(rotated), at(self.pool), at(o), 0, 0), stream)
        lib.kvdim_plan_destroy(plan)
        return (o[:new] @ self.w_o.T)[None], None


@torch.no_grad()
def run(name, text, plain=None):
    """Generates after `text`, or feeds the tokens of the run `plain`. Returns log p and tokens."""
    p, cache, end, begun, text = [], None, 0, 0, plain[1] if plain else [text]
    for step in range(STEPS + 1):
        where = torch.arange(end, end + text[step].shape[1], device=device)[None]
        out = model(text[step], position_ids=where, past_key_values=cache, use_cache=not plain)
        cache, end = out.past_key_values, end + where.shape[1]
        p.append(out.logits[0].float().log_softmax(-1).cpu())
        text = [*text, p[-1][-1:].argmax(-1, keepdim=True).to(device)]
        begun = begun or time.time()
    seconds, p = (time.time() - begun) / STEPS, torch.cat(p)
    q = plain[0] if plain else p
    kl, top1 = (q.exp() * (q - p)).sum(-1).mean(), (p.argmax(-1) == q.argmax(-1)).float().mean()
    print(f"{name}: KL {kl:.5f}, top-1 agrees {top1:.3f}, {seconds * 1e3:.1f} ms per step")
    return p, text


STEPS, given = 32, sys.argv[1:] if len(sys.argv) in (5, 6) else sys.exit(__doc__)
folder, spectrum, rates, library, device = (given + ["cpu"])[:5]
try:
    lib = CDLL(library)
    lib.kvdim_last_error.restype = c_char_p
    with h5py.File(spectrum) as s, h5py.File(rates) as r:
        rotations = torch.stack([torch.tensor(s[p]["R"][:]) for p in ("qk", "vw")]).to(device)
        cut = torch.stack([torch.tensor(r[p]["kept16"][-1]) for p in ("qk", "vw")])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    encode = AutoTokenizer.from_pretrained(folder)
except (AttributeError, ImportError, KeyError, OSError, RuntimeError, ValueError) as e:
    sys.exit(f"cannot open one of {', '.join(given[:4])}: {(str(e) or repr(e)).split(chr(10))[0]}")
model.config.model_type == "llama" or sys.exit(f"{folder}: this script cuts Llama models only")
blocks = [b.self_attn for b in model.model.layers]
ids = encode("The old house at the end of the road", return_tensors="pt").input_ids.to(device)
plain = run("Transformers", ids)
for name, kept in (("full width", cut * 0 + blocks[0].head_dim), ("cut", cut)):
    cuts = [CutLayer(b, kept[:, i].tolist(), rotations[:, i], ids.shape[1] + STEPS)
            for i, b in enumerate(blocks)]
    run(f"{name}: {sum(c.page_bytes for c in cuts) // 64} bytes per token", ids, plain)
