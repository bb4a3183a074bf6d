"""public_selections.py CLONES TOOL DUMP.h5 OUT.csv: tokens that H2O's and SnapKV's own code keeps, against ours.

CLONES  folder with clones of the public repositories: CLONES/H2O (FMInference/H2O), CLONES/SnapKV (FasterDecoding/SnapKV)
TOOL    build/tests/tool_selection
DUMP    kvdim-collect MODEL --text FILE --seq-len 1024 --tokens 1024 --dtype f32 -o DUMP.h5

The public functions run as they are, on Q and K after RoPE of the first sequence. What surrounds them (projections, RoPE, the loop over steps) stands here.
They choose for every query head; heads = each compares that with ours on K and V repeated as they do. heads = group is what the model has:
H2O's class is then given probabilities summed over the query heads of a group; SnapKV's function makes them itself, so its sets of single
query heads are compared with ours of their group, which shows how much that departure changes.

One row per layer, head and case: `choices` sets compared (after the prompt and after every step), `equal` of them equal; overlap
(intersection over union) of the tokens older than those that stay anyhow, mean and least; the first step whose sets differ.
"""
import contextlib
import csv
import importlib.util
import math
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import h5py
import numpy as np
import torch

CLONES, TOOL, DUMP, OUT = sys.argv[1:5]
H2O, SNAPKV = CLONES + "/H2O/", CLONES + "/SnapKV/"
STEPS = 256  # of H2O behind each prompt
torch.set_num_threads(1)


def load(path):
    spec = importlib.util.spec_from_file_location("public", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commit(folder):
    return subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()[:12]


def ours(method, prompt, heads):
    """[layer][head][1 + steps][token], true where our cache stores the token."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([TOOL, DUMP, method, str(prompt), heads, folder + "/kept.h5"], check=True)
        with h5py.File(folder + "/kept.h5") as f:
            return f["kept"][:] > 0


def rows(layer, end, dtype):
    """q, k [1][query head][end][d], k repeated for the query heads that read it, and the size of the groups."""
    with h5py.File(DUMP) as f:
        assert np.all(f["tokens/sequence"][:end] == f["tokens/sequence"][0])
        q, k = (torch.tensor(f[name][layer, :, :end], dtype=dtype)[None] for name in ("q", "k"))
    group = q.shape[1] // k.shape[1]
    return q, k.repeat_interleave(group, dim=1), group


# ---- H2O ---------------------------------------------------------------------------------------------------------


def h2o_cache(layer, prompt, heavy, recent, heads, dtype):
    """utils_real_drop: the class that drops K and V. Returns [head][1 + steps][token]."""
    q, k, group = rows(layer, prompt + STEPS, dtype)
    by = group if heads == "group" else 1
    cache = h2o_drop.H2OKVCache_LayerWise(hh_size=heavy, recent_size=recent)
    n, d = q.shape[2:]
    k = k[:, ::by]
    position = torch.arange(n, dtype=dtype)[None, None, :, None].expand(1, k.shape[1], n, d)
    past = k[:, :, :0], position[:, :, :0]
    kept = np.zeros((k.shape[1], 1 + n - prompt, n), dtype=bool)
    for step, end in enumerate(range(prompt, n + 1)):
        start = end - 1 if step else 0
        past = tuple(torch.cat((old, new[:, :, start:end]), dim=2) for old, new in zip(past, (k, position)))
        score = q[:, :, start:end] @ past[0].repeat_interleave(by, dim=1).transpose(2, 3) / math.sqrt(d)
        if not step:
            score = score + torch.full((end, end), torch.finfo(dtype).min, dtype=dtype).triu(1)
        probability = torch.softmax(score, dim=-1).unflatten(1, (k.shape[1], by)).sum(2)
        past = cache(past, probability)
        for head in range(k.shape[1]):
            kept[head, step, past[1][0, head, :, 0].long()] = True
    return kept


class Given(torch.nn.Module):
    """Stands for a projection: gives the rows of the dump."""

    def forward(self, x):
        return self.rows


def h2o_mask(layer, prompt, heavy, recent, heads, dtype, boundary):
    """utils_hh: the attention module that masks. boundary: what its masks leave out by one token is put back."""
    assert heads == "each"
    q, k, _ = rows(layer, prompt + STEPS, dtype)
    n_heads, n, d = q.shape[1:]
    config = SimpleNamespace(hidden_size=n_heads * d, num_attention_heads=n_heads, max_position_embeddings=n,
                             heavy_ratio=heavy / prompt, recent_ratio=recent / prompt)
    module = h2o_hh.LlamaAttention_heavy_hitter(config)
    module.q_proj, module.k_proj, module.v_proj, module.o_proj = Given(), Given(), Given(), torch.nn.Identity()
    kept, past = np.zeros((n_heads, 1 + n - prompt, n), dtype=bool), None
    for step, end in enumerate(range(prompt, n + 1)):
        start = end - 1 if step else 0
        for to, x in ((module.q_proj, q), (module.k_proj, k), (module.v_proj, k)):
            to.rows = x[:, :, start:end].transpose(1, 2).reshape(1, end - start, n_heads * d)
        mask = None if step else torch.full((1, 1, end, end), torch.finfo(dtype).min, dtype=dtype).triu(1)
        past = module(module.q_proj.rows, attention_mask=mask, past_key_value=past, use_cache=True)[2]
        if boundary:
            module.attention_masks_next[..., end - recent] = 1
        kept[:, step, :end] = (module.previous_scores != 0).numpy()
    assert module.heavy_budget == heavy and module.recent_budget == recent
    return kept


class NoRope(torch.nn.Module):
    """Rows are turned already."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, x, seq_len):
        return None, None


# ---- SnapKV --------------------------------------------------------------------------------------------------------


def snapkv(layer, prompt, budget, window, kernel, dtype):
    """update_kv of one prompt [query head][1][token]. Values are positions, so that what comes back says what was kept."""
    q, k, _ = rows(layer, prompt, dtype)
    position = torch.arange(prompt, dtype=dtype)[None, None, :, None].expand(1, q.shape[1], prompt, q.shape[3])
    cluster = snapkv_utils.SnapKVCluster(window_size=window, max_capacity_prompt=budget + window, kernel_size=kernel)
    value = cluster.update_kv(k, q, position, None, 1)[1]
    kept = np.zeros((q.shape[1], 1, prompt), dtype=bool)
    for head in range(q.shape[1]):
        kept[head, 0, value[0, head, :, 0].long()] = True
    return kept


# ---- comparison ----------------------------------------------------------------------------------------------------


def compare(a, b, prompt, recent):
    """a, b [steps][token] of one head; the `recent` newest of a step stay in both and do not count."""
    overlap = []
    for step in range(len(a)):
        old = prompt + step - recent
        assert a[step, old:prompt + step].all() and b[step, old:prompt + step].all()
        overlap.append((a[step, :old] & b[step, :old]).sum() / max(1, (a[step, :old] | b[step, :old]).sum()))
    differ = [step for step, x in enumerate(overlap) if x < 1]
    return len(overlap), len(overlap) - len(differ), np.mean(overlap), min(overlap), differ[0] if differ else ""


def report(write, case, mine, public, prompt, recent):
    counts = []
    for layer in range(len(mine)):
        for head in range(len(public[layer])):
            one = mine[layer][head * len(mine[layer]) // len(public[layer])]
            row = compare(one[:len(public[layer][head]), :public[layer].shape[2]], public[layer][head], prompt, recent)
            counts.append(row)
            write.writerow([*case, layer, head, row[0], row[1], f"{row[2]:.6f}", f"{row[3]:.6f}", row[4]])
    choices, equal = sum(c[0] for c in counts), sum(c[1] for c in counts)
    print(f"{' '.join(map(str, case[2:])):100s} {equal:6d} of {choices} equal, overlap {np.mean([c[2] for c in counts]):.5f}, "
          f"least {min(c[3] for c in counts):.4f}", flush=True)


h2o_drop = load(H2O + "h2o_hf/utils_real_drop/modify_llama.py")
h2o_hh = load(H2O + "h2o_hf/utils_hh/modify_llama.py")
h2o_hh.LlamaRotaryEmbedding, h2o_hh.apply_rotary_pos_emb = NoRope, lambda q, k, *rest: (q, k)
snapkv_utils = load(SNAPKV + "snapkv/monkeypatch/snapkv_utils.py")
names = {torch.float32: "float32", torch.float64: "float64"}

with open(OUT, "w", newline="") as file, h5py.File(DUMP) as dump, torch.no_grad():
    write = csv.writer(file, lineterminator="\n")
    write.writerow(["repository", "commit", "function", "ours", "prompt", "heads", "arithmetic", "layer", "head", "choices", "equal",
                    "overlap_mean", "overlap_least", "first_difference"])
    layers = range(dump["q"].shape[0])
    version = commit(SNAPKV)
    for prompt, budget, window, kernel in ((512, 96, 32, 7), (1023, 192, 32, 7), (1023, 256, 64, 5)):
        text = f"snapkv,budget={budget},window={window},kernel={kernel}"
        for dtype in (torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            public = [snapkv(layer, prompt, budget, window, kernel, dtype) for layer in layers]
            for heads in ("each", "group"):
                report(write, ["FasterDecoding/SnapKV", version, "update_kv", text, prompt, heads, names[dtype]],
                       ours(text, prompt, heads)[:, :, :1], public, prompt, window)
    version = commit(H2O)
    for prompt, heavy, recent in ((512, 64, 64), (128, 16, 48)):
        text = f"h2o,heavy={heavy},recent={recent}"
        mine = {heads: ours(text, prompt, heads) for heads in ("each", "group")}

        def h2o(function, name, heads, dtype, *more):
            torch.set_default_dtype(dtype)
            with contextlib.redirect_stdout(None):  # the class prints its sizes
                public = [function(layer, prompt, heavy, recent, heads, dtype, *more) for layer in layers]
            report(write, ["FMInference/H2O", version, name, text, prompt, heads, names[dtype]], mine[heads], public, prompt, recent)

        h2o(h2o_cache, "utils_real_drop", "each", torch.float32)
        h2o(h2o_cache, "utils_real_drop", "group", torch.float32)
        h2o(h2o_mask, "utils_hh", "each", torch.float32, False)
        h2o(h2o_mask, "utils_hh, boundary token put back", "each", torch.float32, True)
