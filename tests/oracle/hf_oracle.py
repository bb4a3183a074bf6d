"""Numbers from Hugging Face Transformers against which kvdim's are held.

usage: hf_oracle.py MODEL TEXT [--seq-len N] [--tokens N] [--device cuda|cpu]
                    [--spectrum S.h5 --rates R.h5 [--method zack|balanced]] -o OUT.json

Tokenises TEXT with the checkpoint's tokenizer (special tokens as the tokenizer adds them), cuts it
into windows of --seq-len (a shorter last window is kept when it has at least 2 tokens), and computes
in float32 (TF32 off) the mean negative log-likelihood, perplexity and top-1 accuracy of next tokens.

With --spectrum and --rates the attention of every layer is replaced by one that rotates and cuts
Q, K (after RoPE) and V per KV head, written here in torch from DESIGN's formulas and sharing no code
with kvdim; perplexity, top-1 and KL divergence to the uncompressed model are given for every point.
"""
import argparse, json, platform, sys, time
import h5py, numpy as np, torch, transformers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ap = argparse.ArgumentParser()
ap.add_argument("model"); ap.add_argument("text")
ap.add_argument("--seq-len", type=int, default=1024)
ap.add_argument("--tokens", type=int, default=0)
ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
ap.add_argument("--spectrum"); ap.add_argument("--rates"); ap.add_argument("--method", default="zack")
ap.add_argument("-o", required=True)
a = ap.parse_args()
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.set_float32_matmul_precision("highest")

tok = PreTrainedTokenizerFast(tokenizer_file=a.model + "/tokenizer.json")
ids = tok.encode(open(a.text, encoding="utf-8").read())
if a.tokens:
    ids = ids[: a.tokens]
windows = [ids[i : i + a.seq_len] for i in range(0, len(ids), a.seq_len)]
windows = [w for w in windows if len(w) >= 2]

plan = None  # per layer: list over kv heads of (Aq, Ak, Av, Bv)

def cut_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kw):
    b, nh, n, d = query.shape
    nkv = key.shape[1]
    g = nh // nkv
    mask = torch.ones(n, n, dtype=torch.bool, device=query.device).tril()
    out = torch.empty_like(query)
    for h in range(nkv):
        k, v = key[:, h], value[:, h]
        if plan is not None:
            aq, ak, av, bv = plan[module.layer_idx][h]
            k, v = k @ ak, v @ av
        for j in range(h * g, (h + 1) * g):
            q = query[:, j]
            if plan is not None:
                q = q @ aq
            s = (q @ k.transpose(-1, -2)) * d**-0.5
            p = torch.softmax(s.masked_fill(~mask, float("-inf")), -1)
            o = p @ v
            out[:, j] = o @ bv if plan is not None else o
    return out.transpose(1, 2).contiguous(), None

ALL_ATTENTION_FUNCTIONS["kvdim_oracle"] = cut_attention
model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32, attn_implementation="eager")
model.to(a.device).eval()

@torch.no_grad()
def evaluate(reference):
    """Sums over all windows; reference False: only nll and top-1."""
    global plan
    keep = plan
    s = dict(n=0, nll=0.0, top1=0, kl=0.0)
    for w in windows:
        x = torch.tensor([w], device=a.device)
        lp = torch.log_softmax(model(x, use_cache=False).logits[0, :-1].double(), -1)
        t = x[0, 1:]
        s["n"] += len(t)
        s["nll"] += -lp.gather(1, t[:, None]).sum().item()
        s["top1"] += (lp.argmax(-1) == t).sum().item()
        if reference:
            plan = None
            lr = torch.log_softmax(model(x, use_cache=False).logits[0, :-1].double(), -1)
            plan = keep
            s["kl"] += (lr.exp() * (lr - lp)).sum().item()
    r = dict(n_predictions=s["n"], nll=s["nll"] / s["n"], perplexity=float(np.exp(s["nll"] / s["n"])),
             top1=s["top1"] / s["n"])
    if reference:
        r["kl"] = s["kl"] / s["n"]
    return r

start = time.time()
out = dict(command=["hf_oracle.py"] + [x.split("/")[-1] for x in sys.argv[1:]],
           transformers=transformers.__version__, torch=torch.__version__,
           device=torch.cuda.get_device_name() if a.device == "cuda" else platform.processor() or "cpu",
           seq_len=a.seq_len, n_tokens=sum(map(len, windows)), dense=evaluate(False))
if a.spectrum:
    model.set_attn_implementation("kvdim_oracle")
    out["dense_own_attention"] = evaluate(False)
    S, Rt = h5py.File(a.spectrum), h5py.File(a.rates)
    pq, pv = [p for p in Rt if p in ("qk", "bqk")][0], [p for p in Rt if p in ("vw", "wv", "bvw")][0]
    T = lambda m: torch.tensor(np.ascontiguousarray(m), dtype=torch.float32, device=a.device)
    out["points"] = []
    for i, p in enumerate(Rt["overall_p"][:]):
        kq, kv = Rt[pq + "/kept"][i], Rt[pv + "/kept"][i]
        plan = []
        for l in range(kq.shape[0]):
            row = []
            for h in range(kq.shape[1]):
                m, w = int(kq[l, h]), int(kv[l, h])
                L = S[pq + ("/left" if pq == "bqk" else "/R")][l, h]
                V = S[pv + ("/left" if pv == "bvw" else "/R")][l, h]
                if pq == "bqk":
                    Lr, Vr = S[pq + "/right"][l, h], S[pv + "/right"][l, h]
                    row.append((T(L[:, :m]), T(Lr[:, :m]), T(V[:, :w]), T(Vr[:, :w].T)))
                else:
                    row.append((T(L[:, :m]), T(L[:, :m]), T(V[:, :w]), T(V[:, :w].T)))
            plan.append(row)
        out["points"].append(dict(overall_p=float(p), **evaluate(True)))
out["seconds"] = time.time() - start
json.dump(out, open(a.o, "w"), indent=1)
print(json.dumps(out["dense"]))
