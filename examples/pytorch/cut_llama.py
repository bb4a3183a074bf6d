"""Runs a Transformers Llama on libkvdim-attention with heads cut by kvdim's rotations.

    python3 cut_llama.py MODEL SPECTRUM RATES [--point N] [--prompt TEXT] [--steps N] [--device cuda]

MODEL is a Llama folder, SPECTRUM a file of kvdim-spectrum (pairs qk and vw), RATES one of kvdim-fit.
The packages torch, transformers (4.56 or later) and h5py are needed, and libkvdim-attention.so.1:
installed by make install, or named by --library.
The script generates greedily with the uncut model of Transformers and with the library, at full
width and at the widths of point N, and prints how the logits differ, bytes per token and times.
"""
import argparse
import ctypes
import time
from ctypes import POINTER, Structure, byref, c_int32, c_int64, c_size_t, c_void_p

import h5py
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama.modeling_llama import LlamaAttention, apply_rotary_pos_emb

CPU, CUDA, BF16, PAGE = 0, 1, 1, 64


def struct(name, *fields):
    """Returns a ctypes structure of include/kvdim/attention.h whose struct_size is set."""
    cls = type(name, (Structure,), {"_fields_": [("struct_size", c_size_t), *fields]})
    return lambda *values: cls(ctypes.sizeof(cls), *values)


Heads = struct("kvdim_heads", *[(n, c_int32) for n in ("device", "dtype", "n_heads", "n_kv", "d_head")],
               ("d_qk", POINTER(c_int32)), ("d_v", POINTER(c_int32)))
Sizes = struct("kvdim_layer_sizes", ("page_bytes", c_size_t),
               *[(n, c_int32) for n in ("x_columns", "q_columns", "o_columns")])
Batch = struct("kvdim_batch", *[(n, c_int32) for n in ("n_requests", "max_pages", "pool_pages")],
               ("q_len", POINTER(c_int32)), ("kv_len", POINTER(c_int32)), ("page_table", c_void_p))
Append = struct("kvdim_append_args", *[(n, c_void_p) for n in ("x", "cos", "sin")],
                ("rope_dim", c_int32), ("rope_interleaved", c_int32),
                *[(n, c_void_p) for n in ("r_qk", "r_v", "q", "pool")])
Attend = struct("kvdim_attend_args", *[(n, c_void_p) for n in ("q", "pool", "o")],
                ("o_stride", c_int64), ("lse", c_void_p))


class CutLayer:
    """The cache of one attention layer of one request, and W_O in the rotated basis."""

    def __init__(self, lib, attention, d_qk, d_v, r_qk, r_v, tokens, device):
        c, w = attention.config, attention.o_proj.weight
        self.lib, self.device, self.length, self.pages = lib, device, 0, -(-tokens // PAGE)
        n, group = c.num_attention_heads, c.num_attention_heads // c.num_key_value_heads
        ints = c_int32 * len(d_qk)
        heads = Heads(CUDA if device == "cuda" else CPU, BF16, n, c.num_key_value_heads,
                      attention.head_dim, ints(*d_qk), ints(*d_v))
        self.layer, self.sizes = c_void_p(), Sizes()
        self.check(lib.kvdim_layer_create(byref(heads), byref(self.layer)))
        self.check(lib.kvdim_layer_get_sizes(self.layer, byref(self.sizes)))
        r_v = [r[:, :d].to(w) for r, d in zip(r_v, d_v)]
        self.r_qk = torch.cat([r[:, :d].flatten() for r, d in zip(r_qk, d_qk)]).to(w)
        self.r_v = torch.cat([r.flatten() for r in r_v])
        parts = w.view(w.shape[0], n, attention.head_dim)
        self.w_o = torch.cat([parts[:, h] @ r_v[h // group] for h in range(n)], dim=1)
        self.pool = torch.empty(self.pages * self.sizes.page_bytes, dtype=torch.uint8, device=device)
        self.table = torch.arange(self.pages, dtype=torch.int32, device=device)

    def check(self, status):
        if status:
            raise RuntimeError(self.lib.kvdim_last_error().decode())

    def forward(self, q, k, v):
        """Appends the new tokens, Q and K after RoPE, [heads][tokens][d_head]; returns W_O O."""
        new, lib = q.shape[1], self.lib
        self.length += new
        stream = torch.cuda.current_stream().cuda_stream if self.device == "cuda" else None
        batch = Batch(1, self.pages, self.pages, (c_int32 * 1)(new), (c_int32 * 1)(self.length),
                      self.table.data_ptr())
        size, plan = c_size_t(), c_void_p()
        self.check(lib.kvdim_workspace_bytes(self.layer, byref(batch), byref(size)))
        work = torch.empty(max(size.value, 1), dtype=torch.uint8, device=self.device)
        self.check(lib.kvdim_plan_create(self.layer, byref(batch), c_void_p(work.data_ptr()), size,
                                         c_void_p(stream), byref(plan)))
        rows = lib.kvdim_plan_rows(plan)
        x = torch.cat([q, k, v]).transpose(0, 1).reshape(new, -1).contiguous()
        q_rows, o = x.new_empty(rows, self.sizes.q_columns), x.new_empty(rows, self.sizes.o_columns)
        self.check(lib.kvdim_append(
            plan, byref(Append(x.data_ptr(), None, None, 0, 0, self.r_qk.data_ptr(),
                               self.r_v.data_ptr(), q_rows.data_ptr(), self.pool.data_ptr())),
            c_void_p(stream)))
        self.check(lib.kvdim_attend(
            plan, byref(Attend(q_rows.data_ptr(), self.pool.data_ptr(), o.data_ptr(), 0, None)),
            c_void_p(stream)))
        lib.kvdim_plan_destroy(plan)
        return o[:new] @ self.w_o.T


def cut_forward(self, hidden_states, position_embeddings, attention_mask=None, **_):
    """Takes the place of LlamaAttention.forward for one request."""
    shape = (1, hidden_states.shape[1], -1, self.head_dim)
    q, k, v = (p(hidden_states).view(shape).transpose(1, 2) for p in
               (self.q_proj, self.k_proj, self.v_proj))
    q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
    return self.cut.forward(q[0], k[0], v[0])[None], None


@torch.no_grad()
def generate(model, ids, forced, steps, use_cache):
    """Returns the logits of the prompt and of every step, fed with `forced` if given, and seconds."""
    logits, past, new, position, begun = [], None, ids, 0, time.time()
    for step in range(steps + 1):
        if step == 1:
            if ids.is_cuda:
                torch.cuda.synchronize()
            begun = time.time()
        where = torch.arange(position, position + new.shape[1], device=ids.device)[None]
        out = model(new, position_ids=where, past_key_values=past, use_cache=use_cache)
        position, past = position + new.shape[1], out.past_key_values
        logits.append(out.logits[0].float().cpu())
        new = (logits[-1][-1] if forced is None else forced[step][-1]).argmax().view(1, 1).to(ids.device)
    return torch.cat(logits), logits, (time.time() - begun) / max(steps, 1)


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("model", "spectrum", "rates"):
        a.add_argument(name)
    a.add_argument("--point", type=int, default=-1)
    a.add_argument("--prompt", default="The old house at the end of the road had been empty for years.")
    a.add_argument("--steps", type=int, default=32)
    a.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    a.add_argument("--library", default="libkvdim-attention.so.1")
    a = a.parse_args()
    lib = ctypes.CDLL(a.library)
    lib.kvdim_last_error.restype = ctypes.c_char_p
    assert lib.kvdim_attention_abi() == 1, "this script is for version 1 of the binary interface"
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.bfloat16).to(a.device).eval()
    for block in model.model.layers:
        if type(block.self_attn) is not LlamaAttention:
            raise SystemExit(f"{a.model}: attention is {type(block.self_attn).__name__}, "
                             "expected LlamaAttention: only Llama models can be cut by this script")
    ids = AutoTokenizer.from_pretrained(a.model)(a.prompt, return_tensors="pt").input_ids.to(a.device)
    plain, steps, seconds = generate(model, ids, None, a.steps, True)
    print(f"Transformers: {seconds * 1e3:.1f} ms per step")
    with h5py.File(a.spectrum) as s, h5py.File(a.rates) as r:
        r_qk, r_v = (torch.tensor(s[p]["R"][:]).to(a.device) for p in ("qk", "vw"))
        kept = [r[p]["kept16"][a.point].tolist() for p in ("qk", "vw")]
    d = model.model.layers[0].self_attn.head_dim
    full = [[[d] * len(row) for row in side] for side in kept]
    LlamaAttention.forward = cut_forward
    for name, (d_qk, d_v) in (("full width", full), (f"point {a.point}", kept)):
        for i, block in enumerate(model.model.layers):
            block.self_attn.cut = CutLayer(lib, block.self_attn, d_qk[i], d_v[i], r_qk[i], r_v[i],
                                           ids.shape[1] + a.steps + 1, a.device)
        logits, _, seconds = generate(model, ids, steps, a.steps, False)
        p, q = plain.log_softmax(-1), logits.log_softmax(-1)
        kl, top1 = (p.exp() * (p - q)).sum(-1).mean(), (p.argmax(-1) == q.argmax(-1)).float().mean()
        size = sum(b.self_attn.cut.sizes.page_bytes for b in model.model.layers) // PAGE
        print(f"{name}: {size} bytes per token, KL {kl:.5f}, top-1 agrees {top1:.3f}, "
              f"{seconds * 1e3:.1f} ms per step")


if __name__ == "__main__":
    main()
