#!/usr/bin/env python3
"""Times attention kernels that others wrote, on random data, checked against float64. Writes one CSV row per rival and shape.

A rival that cannot be imported or does not take a shape gives one line on stderr that says why, and no row.
See README.md beside this file for what each rival is and how to bring it along.
"""
import argparse
import atexit
import csv
import importlib
import importlib.metadata
import os
import shutil
import statistics
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

COLUMNS = ["rival", "version", "op", "batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "d_qk", "d_v", "rank_k", "rank_v",
           "dtype", "median_us", "p10_us", "p90_us", "runs", "gb_per_s", "tflops", "rel_error", "timing", "device", "torch",
           "cuda", "cudnn", "driver", "date"]
DEV = "cuda"


def skip(what, why):
    print(f"skip {what}: {str(why).strip().splitlines()[0] if str(why).strip() else type(why).__name__}", file=sys.stderr)


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


# ---- timing ----------------------------------------------------------------------------------

def times_us(calls, runs, graph):
    """Times of single runs; calls are the same work on different buffers, taken in turn, so that a run finds none of its input in L2.

    With `graph`, each call is captured once and replayed, which leaves the launch gaps of a chain of small kernels out.
    """
    for c in calls:
        c()
    torch.cuda.synchronize()
    if graph:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for c in calls:
                c()
        torch.cuda.synchronize()
        graphs = []
        for c in calls:
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g):
                c()
            graphs.append(g)
        calls = [g.replay for g in graphs]
        for c in calls:
            c()
        torch.cuda.synchronize()
    out = []
    for i in range(runs):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        calls[i % len(calls)]()
        b.record()
        b.synchronize()
        out.append(1e3 * a.elapsed_time(b))
    return sorted(out)


class Report:
    def __init__(self, path, runs):
        self.runs = runs
        self.file = open(path, "w", newline="")
        self.rows = csv.DictWriter(self.file, COLUMNS)
        self.rows.writeheader()
        driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                                text=True).stdout.strip().splitlines()
        self.fixed = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
                      "cudnn": torch.backends.cudnn.version(), "driver": driver[0] if driver else "",
                      "date": subprocess.run(["date", "-u", "+%Y-%m-%d"], capture_output=True, text=True).stdout.strip()}

    def measure(self, rival, ver, op, shape, calls, error, bytes_, flop):
        for graph in (True, False):
            try:
                t = times_us(calls, self.runs, graph)
                break
            except Exception as e:  # capture is refused by some; time plain launches then
                if not graph:
                    raise
                skip(f"graph of {rival}", e)
                torch.cuda.synchronize()
        med = statistics.median(t)
        row = dict(shape, rival=rival, version=ver, op=op, median_us=f"{med:.1f}", p10_us=f"{t[len(t) // 10]:.1f}",
                   p90_us=f"{t[len(t) * 9 // 10]:.1f}", runs=len(t), gb_per_s=f"{bytes_ / med * 1e-3:.0f}",
                   tflops=f"{flop / med * 1e-6:.1f}", rel_error=f"{error:.2e}", timing="graph" if graph else "launch",
                   **self.fixed)
        self.rows.writerow(row)
        self.file.flush()
        s = " ".join(f"{k}={shape[k]}" for k in ("batch", "q_len", "kv_len", "n_kv_heads", "d_qk", "rank_k") if shape.get(k))
        print(f"{rival:28} {op:8} {s:60} {med:9.1f} us  p10 {t[len(t) // 10]:.1f} p90 {t[len(t) * 9 // 10]:.1f}  "
              f"{bytes_ / med * 1e-3:6.0f} GB/s  error {error:.1e}", flush=True)


def rel_error(got, want):
    got = got.double().reshape(want.shape)
    return ((got - want).norm() / want.norm()).item()


# ---- dense attention -------------------------------------------------------------------------

def dense_reference(q, k, v, causal):
    """float64, on the last 64 query rows of at most 2 requests. q [B][H][Lq][d], k [B][Hkv][L][d]."""
    q, k, v = q[:2, :, -64:], k[:2], v[:2]
    group = q.shape[1] // k.shape[1]
    out = []
    for h in range(q.shape[1]):
        kk, vv = k[:, h // group].double(), v[:, h // group].double()
        s = q[:, h].double() @ kk.transpose(1, 2) * q.shape[-1] ** -0.5
        if causal:
            n, length = s.shape[-2:]
            s = s.masked_fill(torch.ones(n, length, dtype=torch.bool, device=DEV).tril(length - n).logical_not(), -torch.inf)
        out.append(s.softmax(-1) @ vv)
    return torch.stack(out, 1)


def dense_rivals():
    """name, version, f(q, k, v, causal) on [B][H][L][d]; a rival with its own layout gets views, never a copy."""
    def sdpa(backend):
        def f(q, k, v, causal):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal and q.shape[2] > 1,
                                                      enable_gqa=q.shape[1] != k.shape[1])
        return f
    out = [("torch-cudnn", f"cudnn {torch.backends.cudnn.version()}", sdpa(SDPBackend.CUDNN_ATTENTION)),
           ("torch-flash", f"torch {torch.__version__}", sdpa(SDPBackend.FLASH_ATTENTION))]
    try:
        fa = importlib.import_module("flash_attn")

        def fa2(q, k, v, causal):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            f = fa.flash_attn_with_kvcache if q.shape[1] == 1 else fa.flash_attn_func
            return f(q, k, v, causal=causal).transpose(1, 2)
        if hasattr(fa, "flash_attn_func"):
            out.append(("flash-attn-2", version("flash-attn"), fa2))
    except Exception as e:
        skip("flash-attn-2", e)
    try:
        fi = importlib.import_module("flash_attn_interface")

        def fa3(q, k, v, causal):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            f = fi.flash_attn_with_kvcache if q.shape[1] == 1 else fi.flash_attn_func
            o = f(q, k, v, causal=causal)
            return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)
        out.append(("flash-attn-3", version("flash-attn-3"), fa3))
    except Exception as e:
        skip("flash-attn-3", e)
    try:
        cute = importlib.import_module("flash_attn.cute")

        def fa4(q, k, v, causal):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            o = cute.flash_attn_func(q, k, v, causal=causal)
            return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)
        out.append(("flash-attn-4", version("flash-attn-4"), fa4))
    except Exception as e:
        skip("flash-attn-4", e)
    try:
        flashinfer = importlib.import_module("flashinfer")
        out.append(("flashinfer", version("flashinfer-python"), FlashInfer(flashinfer)))
    except Exception as e:
        skip("flashinfer", e)
    return out


class FlashInfer:
    """Its paged decode wrapper with tensor cores on pages of 64 tokens, its ragged prefill wrapper for the rest; planned once per
    shape, outside the timed part."""

    def __init__(self, module):
        self.module, self.plans = module, {}
        self.space = torch.empty(256 << 20, dtype=torch.uint8, device=DEV)

    def __call__(self, q, k, v, causal):
        b, h, n, d = q.shape
        g, length, d_v = k.shape[1], k.shape[2], v.shape[3]
        key = (b, h, n, d, g, length, d_v, causal)
        if key not in self.plans:
            starts = torch.arange(b + 1, dtype=torch.int32, device=DEV)
            if n == 1:
                if length % 64 or d != d_v:
                    raise ValueError("pages of 64 tokens and one width only")
                w = self.module.BatchDecodeWithPagedKVCacheWrapper(self.space, "NHD", use_tensor_cores=True)
                w.plan(starts * (length // 64), torch.arange(b * length // 64, dtype=torch.int32, device=DEV),
                       torch.full((b,), 64, dtype=torch.int32, device=DEV), h, g, d, 64, q_data_type=q.dtype,
                       kv_data_type=k.dtype)
            else:
                w = self.module.BatchPrefillWithRaggedKVCacheWrapper(self.space, "NHD")
                w.plan(starts * n, starts * length, h, g, d, head_dim_vo=d_v, causal=causal, q_data_type=q.dtype)
            self.plans[key] = w
        # [B][H][L][d] is a view of [B][L][H][d] here (see dense()), which is what the pages are
        qq = q.transpose(1, 2).reshape(b * n, h, d)
        kk, vv = (x.transpose(1, 2).reshape(-1, 64 if n == 1 else 1, g, x.shape[3]) for x in (k, v))
        if n == 1:
            return self.plans[key].run(qq, (kk, vv)).view(b, 1, h, d_v).transpose(1, 2)
        return self.plans[key].run(qq, kk.squeeze(1), vv.squeeze(1)).view(b, n, h, d_v).transpose(1, 2)


def dense(report, rivals, op, batch, length, heads, kv_heads, d_qk, d_v, dtype):
    n = 1 if op == "decode" else length
    causal = op == "prefill"
    one = batch * length * kv_heads * (d_qk + d_v) * 2
    sets = max(1, min(16, -(-(240 << 20) // one)))  # at least four times L2 goes by before a buffer comes again
    data = []
    for _ in range(sets):
        # memory order [B][L][H][d], the order of a cache that grows by tokens; handed over as [B][H][L][d]
        q, k, v = (torch.randn(batch, l, h, d, dtype=dtype, device=DEV).transpose(1, 2)
                   for l, h, d in ((n, heads, d_qk), (length, kv_heads, d_qk), (length, kv_heads, d_v)))
        data.append((q, k, v))
    want = dense_reference(*data[0], causal)
    pairs = batch * heads * (length * (length + 1) / 2 if causal else length)
    bytes_ = one + (batch * n * heads * (d_qk + d_v) * 2)
    shape = dict(batch=batch, q_len=n, kv_len=length, n_heads=heads, n_kv_heads=kv_heads, d_qk=d_qk, d_v=d_v, rank_k="", rank_v="",
                 dtype=str(dtype).split(".")[1])
    for name, ver, f in rivals:
        try:
            error = rel_error(f(*data[0], causal)[:2, :, -64:], want)
            report.measure(name, ver, op, shape, [lambda d=d: f(*d, causal) for d in data], error, bytes_,
                           2 * pairs * (d_qk + d_v))
        except Exception as e:
            skip(f"{name} {op} {batch} x {length} d {d_qk}/{d_v}", e)
    del data
    torch.cuda.empty_cache()


# ---- Palu ------------------------------------------------------------------------------------

SHIPPED = "    return [triton.Config({'BLOCK_SIZE_L': 64, 'BLOCK_SIZE_R': 32}, num_warps=4, num_stages=1)]"
TUNED = """    return [triton.Config({'BLOCK_SIZE_L': l, 'BLOCK_SIZE_R': r}, num_warps=w, num_stages=s) for l, r, w, s in
            [(64, 32, 4, 1), (64, 32, 4, 3), (128, 32, 4, 3), (128, 32, 8, 2), (128, 32, 8, 3), (64, 64, 4, 3), (128, 64, 8, 3)]]"""


def load_palu(checkout, tuned):
    """kernel/abx_rope.py of a checkout, loaded as it is (`shipped`), or with a list of tuning configurations in place of the
    single one that it returns. Its triton.language.extra.cuda is looked up under the name of newer Triton where that moved."""
    import tempfile
    import triton.language as tl
    texts = {}
    for name in ("abx_rope.py", "pytorch_reference.py"):
        with open(os.path.join(checkout, "kernel", name)) as f:
            texts[name] = f.read()
    if not hasattr(tl, "extra") or not hasattr(tl.extra, "cuda") or not hasattr(tl.extra.cuda, "libdevice"):
        tl.extra.cuda.libdevice = importlib.import_module("triton.language.extra.cuda.libdevice")
    if tuned:
        if SHIPPED not in texts["abx_rope.py"]:
            raise ValueError("the line with the single configuration is not there: another revision than bb22666e?")
        texts["abx_rope.py"] = texts["abx_rope.py"].replace(SHIPPED, TUNED)
    folder = tempfile.mkdtemp(prefix="rivals-")  # Triton reads its kernels' source from a file
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    package = "palu_tuned" if tuned else "palu_shipped"
    os.mkdir(os.path.join(folder, package))
    for name, text in {**texts, "__init__.py": ""}.items():
        with open(os.path.join(folder, package, name), "w") as f:
            f.write(text)
    sys.path.insert(0, folder)
    return importlib.import_module(package + ".abx_rope").abx


def palu_reference(q, up, k, v, theta=10000.0):
    """float64. q [H][128], up [H][R][128], k, v [groups][s][R] -> [H][R]."""
    heads, groups, s = q.shape[0], k.shape[0], k.shape[1]
    freq = theta ** (-torch.arange(0, 128, 2, dtype=torch.float64, device=DEV) / 128)
    angle = torch.arange(s, dtype=torch.float64, device=DEV)[:, None] * freq
    c, sn = angle.cos(), angle.sin()
    scores, out = [], []
    for h in range(heads):
        kk = k[h * groups // heads].double() @ up[h].double()
        low, high = kk[:, :64], kk[:, 64:]
        turned = torch.cat((low * c - high * sn, high * c + low * sn), 1)
        sc = turned @ q[h].double()
        scores.append(sc)
        out.append((sc * 128 ** -0.5).softmax(0) @ v[h * groups // heads].double())
    return torch.stack(scores), torch.stack(out)


def palu(report, name, abx, ver, length, kv_heads, rank, heads=32):
    """Palu's score kernel, and the decode attention that its module builds on it: scores, softmax in float32, latent values."""
    groups = kv_heads // 4
    one = groups * length * 2 * rank * 2
    sets = max(1, min(8, -(-(240 << 20) // one)))
    data = []
    for _ in range(sets):
        up = torch.randn(kv_heads, rank, 128, dtype=torch.float16, device=DEV) * rank ** -0.5
        up = up.repeat_interleave(heads // kv_heads, 0).contiguous()  # the kernel knows query heads only
        data.append((torch.randn(heads, 1, 128, dtype=torch.float16, device=DEV), up,
                     torch.randn(groups, length, rank, dtype=torch.float16, device=DEV),
                     torch.randn(groups, length, rank, dtype=torch.float16, device=DEV)))

    def attention(q, up, k, v):
        s = abx(q, up, k) * 128 ** -0.5
        p = s.softmax(-1, dtype=torch.float32).to(torch.float16)
        return p.view(groups, heads // groups, length) @ v

    shape = dict(batch=1, q_len=1, kv_len=length, n_heads=heads, n_kv_heads=kv_heads, d_qk=128, d_v="", rank_k=rank, rank_v=rank,
                 dtype="float16")
    flop = 2 * heads * length * rank * 128  # as coded: once per query head
    try:
        q, up, k, v = data[0]
        scores, out = palu_reference(q[:, 0], up, k, v)
        report.measure(f"{name}-scores", ver, "scores", shape, [lambda d=d: abx(*d[:3]) for d in data],
                       rel_error(abx(q, up, k), scores), one / 2, flop)
        report.measure(f"{name}-attention", ver, "decode", shape, [lambda d=d: attention(*d) for d in data],
                       rel_error(attention(*data[0]), out), one, flop)
    except Exception as e:
        skip(f"{name} {length} x {kv_heads} KV heads rank {rank}", e)
    del data
    torch.cuda.empty_cache()


# ---- what is run -----------------------------------------------------------------------------

def numbers(text):
    return [int(x) for x in text.split(":")]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("-o", "--output", default="rivals.csv")
    a.add_argument("--runs", type=int, default=40, help="timed runs of each, at least 30 for published numbers")
    a.add_argument("--palu", metavar="CHECKOUT", help="a checkout of shadowpa0327/Palu")
    a.add_argument("--palu-revision", default="", help="its revision, for the version column")
    a.add_argument("--palu-only-shipped", action="store_true", help="do not try other tuning configurations")
    a.add_argument("--palu-shape", metavar="S:KV_HEADS:RANK", type=numbers, action="append", help="tokens, KV heads, rank of a group")
    a.add_argument("--decode", metavar="B:S:H:HKV:DQK:DV", type=numbers, action="append")
    a.add_argument("--prefill", metavar="B:S:H:HKV:DQK:DV", type=numbers, action="append")
    a.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16", help="of dense attention")
    a.add_argument("--only", help="rivals whose name holds this")
    o = a.parse_args()
    if not torch.cuda.is_available():
        print("skip rivals: no CUDA device")
        return
    torch.manual_seed(1)
    report = Report(o.output, o.runs)
    dtype = getattr(torch, o.dtype)
    if o.palu:
        for tuned in (False,) if o.palu_only_shipped else (False, True):
            name = "palu-triton-tuned" if tuned else "palu-triton"
            try:
                abx = load_palu(o.palu, tuned)
            except Exception as e:
                skip(name, e)
                continue
            ver = f"palu {o.palu_revision[:8]} triton {version('triton')}"
            for s, g, r in o.palu_shape or [(4096, 32, 256), (16384, 32, 256), (65536, 32, 256), (131072, 32, 256)]:
                palu(report, name, abx, ver, s, g, r)
    else:
        skip("palu-triton", "no --palu CHECKOUT")
    rivals = [r for r in dense_rivals() if not o.only or o.only in r[0]]
    for op, shapes in (("decode", o.decode), ("prefill", o.prefill)):
        for s in shapes or []:
            dense(report, rivals, op, *s, dtype)


if __name__ == "__main__":
    main()
