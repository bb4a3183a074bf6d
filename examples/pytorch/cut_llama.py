"""Runs a Transformers Llama on libkvdim-attention with heads cut by kvdim's rotations.

MODEL is a Llama folder, SPECTRUM a file of kvdim-spectrum, RATES one of kvdim-fit, whose last point
is taken. Transformers (4.56 or later) generates; then the library is fed with the same tokens.
"""
import argparse
import ctypes
import struct
import time
from ctypes import byref, c_void_p

import h5py
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama.modeling_llama import LlamaAttention, apply_rotary_pos_emb


def pack(layout, *values):
    """Returns a structure of include/kvdim/attention.h: its size, integers (i, q), pointers (P)."""
    return struct.pack(f"N{layout}0P", struct.calcsize(f"N{layout}0P"), *values)


class CutLayer:
    """The cache of one attention layer of one request, and W_O in the rotated basis."""

    def __init__(self, lib, attention, kept, rotations, tokens):
        w, heads, self.lib, self.length = attention.o_proj.weight, len(kept[0]), lib, 0
        widths = torch.tensor([list(d) for d in kept], dtype=torch.int32)
        spec = pack("5iPP", w.is_cuda, 1, attention.config.num_attention_heads, heads,
                    attention.head_dim, widths[0].data_ptr(), widths[1].data_ptr())
        self.layer, sizes = c_void_p(), ctypes.create_string_buffer(pack("N3i", 0, 0, 0, 0))
        self.call("layer_create", spec, byref(self.layer))
        self.call("layer_get_sizes", self.layer, sizes)
        _, self.page_bytes, _, self.q_columns, self.o_columns = struct.unpack_from("NN3i", sizes)
        r_qk, r_v = ([r[:, :d].to(w) for r, d in zip(*side)] for side in zip(rotations, kept))
        self.r_qk, self.r_v = (torch.cat([r.flatten() for r in side]) for side in (r_qk, r_v))
        parts = w.view(len(w), heads, -1, attention.head_dim)
        self.w_o = torch.cat([(parts[:, g] @ r).flatten(1) for g, r in enumerate(r_v)], dim=1)
        self.table = torch.arange(-(-tokens // 64), dtype=torch.int32, device=w.device)
        self.pool = w.new_empty(len(self.table) * self.page_bytes // 2)

    def call(self, name, *arguments):
        if getattr(self.lib, "kvdim_" + name)(*arguments):
            raise SystemExit(self.lib.kvdim_last_error().decode())

    def forward(self, q, k, v):
        """Appends the new tokens, Q and K after RoPE, [heads][tokens][d_head]; returns W_O O."""
        new, pages, at = q.shape[1], len(self.table), torch.Tensor.data_ptr
        self.length, size, plan = self.length + new, ctypes.c_size_t(), c_void_p()
        lengths = torch.tensor([new, self.length], dtype=torch.int32)
        stream = c_void_p(torch.cuda.current_stream().cuda_stream if q.is_cuda else None)
        batch = pack("3i3P", 1, pages, pages, at(lengths), at(lengths[1:]), at(self.table))
        self.call("workspace_bytes", self.layer, batch, byref(size))
        work = c_void_p(at(q.new_empty(size.value // 2 + 1)))
        self.call("plan_create", self.layer, batch, work, size, stream, byref(plan))
        x = torch.cat([q, k, v]).transpose(0, 1).reshape(new, -1).contiguous()
        rows = self.lib.kvdim_plan_rows(plan)
        rotated, o = x.new_empty(rows, self.q_columns), x.new_empty(rows, self.o_columns)
        self.call("append", plan, pack("3Pii4P", at(x), 0, 0, 0, 0, at(self.r_qk), at(self.r_v),
                                       at(rotated), at(self.pool)), stream)
        self.call("attend", plan, pack("3PqP", at(rotated), at(self.pool), at(o), 0, 0), stream)
        self.lib.kvdim_plan_destroy(plan)
        return o[:new] @ self.w_o.T


def cut_forward(self, hidden_states, position_embeddings, **_):
    """Takes the place of LlamaAttention.forward for one request."""
    q, k, v = (p(hidden_states).view(1, hidden_states.shape[1], -1, self.head_dim).transpose(1, 2)
               for p in (self.q_proj, self.k_proj, self.v_proj))
    q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
    return self.cut.forward(q[0], k[0], v[0])[None], None


@torch.no_grad()
def run(name, model, text, steps, plain=None):
    """Generates after `text`, or feeds the tokens of the run `plain`. Returns log p and tokens."""
    p, cache, end, begun, text = [], None, 0, 0, plain[1] if plain else [text]
    for step in range(steps + 1):
        where = torch.arange(end, end + text[step].shape[1], device=model.device)[None]
        out = model(text[step], position_ids=where, past_key_values=cache, use_cache=not plain)
        cache, end = out.past_key_values, end + where.shape[1]
        p.append(out.logits[0].float().log_softmax(-1).cpu())
        text = [*text, p[-1][-1:].argmax(-1, keepdim=True).to(model.device)]
        begun = begun or time.time()
    seconds, p = (time.time() - begun) / steps, torch.cat(p)
    q = plain[0] if plain else p
    kl, top1 = (q.exp() * (q - p)).sum(-1).mean(), (p.argmax(-1) == q.argmax(-1)).float().mean()
    print(f"{name}: KL {kl:.5f}, top-1 agrees {top1:.3f}, {seconds * 1e3:.1f} ms per step")
    return p, text


parser = argparse.ArgumentParser(description=__doc__)
for name in ("model", "spectrum", "rates", "library"):
    parser.add_argument(name)
parser.add_argument("--steps", type=int, default=32)
parser.add_argument("--device", default="cpu", help="cpu or cuda")
a = parser.parse_args()
lib = ctypes.CDLL(a.library)
lib.kvdim_last_error.restype = ctypes.c_char_p
model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.bfloat16).to(a.device).eval()
blocks, prompt = [b.self_attn for b in model.model.layers], "The old house at the end of the road"
ids = AutoTokenizer.from_pretrained(a.model)(prompt, return_tensors="pt").input_ids.to(a.device)
with h5py.File(a.spectrum) as s, h5py.File(a.rates) as r:
    rotations = [torch.tensor(s[pair]["R"][:]).to(a.device) for pair in ("qk", "vw")]
    cut = [r[pair]["kept16"][-1] for pair in ("qk", "vw")]
plain = run("Transformers", model, ids, a.steps)
LlamaAttention.forward = cut_forward
for name, kept in (("full width", [k * 0 + blocks[0].head_dim for k in cut]), ("cut", cut)):
    for i, block in enumerate(blocks):
        block.cut = CutLayer(lib, block, [k[i] for k in kept], [r[i] for r in rotations],
                             ids.shape[1] + a.steps)
    size = sum(b.cut.page_bytes for b in blocks) // 64
    run(f"{name}: {size} bytes per token", model, ids, a.steps, plain)
