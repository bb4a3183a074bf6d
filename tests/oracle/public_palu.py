"""Method palu against the authors' own code (github.com/shadowpa0327/Palu), run unmodified.

usage: public_palu.py CLONE MODEL CALIBRATION.h5 FISHER.h5 HELD.h5 TOOL -o FOLDER [--part factors ranks information]

CLONE        a clone of the repository (bare will do); its HEAD is unpacked into a temporary folder
MODEL        checkpoint of the dumps, Llama
CALIBRATION  kvdim-collect MODEL --seq-len 2048 --rope both --dtype f32 --fisher=FISHER.h5, of whole sequences of 2048
HELD         the same of other text, any length of sequence
TOOL         build/tests/tool_palu
FOLDER       palu.csv, palu-ranks.csv and palu-information.csv come there

Theirs: palu/decomposition.py (get_whiten_scale_matrix over the ids of the calibration, compress_model_whiten),
palu/model/modules/svd_linear.py (the modules that they put in, run on held-out inputs) and palu/rank_search.py (fisher).
Stubs: packages that only CUDA, downloads or logging need; .cuda() and .half(), which do nothing; the loader of texts, which
hands out the ids of the dump; a Llama whose layers are those of Transformers behind the call that they expect.
In double precision, what both approximate: W' = U U^T W with the leading left singular vectors U of W X^T.
"""
import ast, argparse, csv, importlib.util, os, subprocess, sys, tempfile, types
import h5py, numpy as np, torch
from transformers import AutoModelForCausalLM

PARTS = ("factors", "ranks", "information")
SHARES = (0.75, 0.5, 0.25, 0.125)


def stub(name, **what):
    """A package that is not there, and of ours that they are to find in the place of theirs."""
    if not name.startswith("palu") and importlib.util.find_spec(name):
        return None
    m = types.ModuleType(name)
    m.__dict__.update(what)
    sys.modules[name] = m
    return m


class Quiet:
    def __getattr__(self, _):
        return lambda *a, **k: None


class Layer(torch.nn.Module):
    """A layer of today's Transformers, called as those of the version that they were written for."""

    def __init__(self, inner, rotary):
        super().__init__()
        self.inner = inner
        self.rotary = [rotary]  # not a child

    def forward(self, x, attention_mask=None, position_ids=None):
        n = x.shape[1]
        mask = torch.full((n, n), float("-inf")).triu(1)[None, None]
        y = self.inner(x, attention_mask=mask, position_ids=position_ids, use_cache=False,
                       position_embeddings=self.rotary[0](x, position_ids))
        return (y[0] if isinstance(y, tuple) else y,)


class Model(torch.nn.Module):
    """What their code touches of a LlamaForCausalLM."""

    def __init__(self, llama):
        super().__init__()
        self.config = llama.config
        self.config._name_or_path = "llama"
        self.device = torch.device("cpu")
        self.lm_head = llama.lm_head
        self.model = torch.nn.Module()
        self.model.embed_tokens, self.model.norm = llama.model.embed_tokens, llama.model.norm
        self.model.layers = torch.nn.ModuleList(Layer(x, llama.model.rotary_emb) for x in llama.model.layers)
        self.shift = True

    def half(self):
        return self

    def forward(self, input_ids, labels=None):
        x, at = self.model.embed_tokens(input_ids), torch.arange(input_ids.shape[1])[None]
        for layer in self.model.layers:
            x = layer(x, attention_mask=torch.zeros(1), position_ids=at)[0]
        x = self.lm_head(self.model.norm(x))
        if labels is None:
            return (x,)
        if self.shift:  # as LlamaForCausalLM does with labels, which have been shifted before
            x, labels = x[:, :-1], labels[:, 1:]
        return (torch.nn.functional.cross_entropy(x.flatten(0, 1), labels.flatten()), x)

    def projections(self):
        """(layer, side, full name, parent, name, Linear)"""
        for i, layer in enumerate(self.model.layers):
            a = layer.inner.self_attn
            yield i, 0, f"model.layers.{i}.inner.self_attn.k_proj", a, "k_proj", a.k_proj
            yield i, 1, f"model.layers.{i}.inner.self_attn.v_proj", a, "v_proj", a.v_proj


def load_theirs(clone, folder):
    with subprocess.Popen(["git", "-C", clone, "archive", "HEAD"], stdout=subprocess.PIPE) as p:
        subprocess.run(["tar", "x", "-C", folder], stdin=p.stdout, check=True)
    commit = subprocess.run(["git", "-C", clone, "rev-parse", "HEAD"], stdout=subprocess.PIPE, text=True, check=True)
    stub("loguru", logger=Quiet())
    stub("click")
    stub("tqdm", tqdm=lambda x, **k: x)
    stub("datasets", load_dataset=None)
    stub("fast_hadamard_transform")
    for package in ("palu", "palu.model", "palu.model.modules"):
        stub(package).__path__ = [os.path.join(folder, *package.split("."))]
    import palu.model.modules.svd_linear as svd_linear

    # get_kv_info of the file itself, whose imports want an older Transformers
    with open(os.path.join(folder, "palu/model/svd_llama/modeling_palu_llama.py"), encoding="utf-8") as f:
        tree = ast.parse(f.read())
    found = [x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef) and x.name == "get_kv_info"]
    scope = {"SimpleNamespace": types.SimpleNamespace, "LlamaForCausalLM": None}
    found[0].decorator_list = []
    exec(compile(ast.Module([found[0]], []), "get_kv_info", "exec"), scope)
    llama = types.SimpleNamespace(get_kv_info=scope["get_kv_info"])
    sys.modules["palu.model"].HeadwiseLowRankModule = svd_linear.HeadwiseLowRankModule
    sys.modules["palu.model"].AVAILABLE_MODELS = {"llama": {"ModelForCausalLM": llama}}
    import palu.decomposition as decomposition, palu.rank_search as rank_search

    torch.Tensor.cuda = lambda self, *a, **k: self
    return commit.stdout.strip(), decomposition, rank_search


def sequences(dump):
    ids, at = dump["tokens/id"][:].astype(np.int64), dump["tokens/sequence"][:]
    return [torch.tensor(ids[at == s])[None] for s in np.unique(at)]


@torch.no_grad()
def inputs(model, texts):
    """Rows that enter W_K and W_V of every layer."""
    rows = [[] for _ in model.model.layers]
    hooks = [p[5].register_forward_hook(lambda m, x, y, i=p[0]: rows[i].append(x[0][0].clone()))
             for p in model.projections() if p[1] == 0]
    for t in texts:
        model(t)
    for h in hooks:
        h.remove()
    return [torch.cat(r) for r in rows]


def weight_of(module):
    """W' [d_kv][d_model] of the module that they put in the place of a Linear."""
    parts, at = [], 0
    for u, r in zip(module.U, module.ranks):
        parts.append(u.weight.double() @ module.VT.weight.double()[at : at + r])
        at += r
    return torch.cat(parts)


def ours(a, method, out, fisher=None):
    subprocess.run([a.tool, a.calibration, method, out] + ([fisher] if fisher else []), check=True)
    with h5py.File(out) as f:
        return f["rank"][:], torch.tensor(f["product"][:])


def rms(x):
    return x.square().mean().sqrt().item()


def compare_factors(a, model, decomposition, work):
    dump, held = h5py.File(a.calibration), h5py.File(a.held)
    texts = sequences(dump)
    assert all(t.shape[1] == 2048 for t in texts), "their code wants sequences of 2048"
    decomposition.get_calib_data = lambda *x, **k: [{"input_ids": t} for t in texts]
    x, x_held = inputs(model, texts), inputs(model, sequences(held))
    second = [r.double().T @ r.double() for r in x]
    raw = list(model.projections())
    n_kv, d = model.config.num_key_value_heads, model.config.head_dim
    args = types.SimpleNamespace(calib_dataset="wikitext2", use_cache=True)
    table = []
    for heads in range(1, n_kv + 1):
        if n_kv % heads:
            continue
        for share in SHARES:
            wide, groups = heads * d, n_kv // heads
            rank = round(share * wide)
            select = {p[2]: [rank] * groups for p in raw}
            decomposition.compress_model_whiten(model, None, args, torch.device("cpu"), select)
            ranks, product = ours(a, f"palu,p={1 - share},heads={heads}", os.path.join(work, "ours.h5"))
            assert (ranks == rank).all()
            for layer, side, _, parent, name, linear in raw:
                module = getattr(parent, name)
                assert type(module).__name__ == "HeadwiseLowRankModule"
                w, theirs, c = linear.weight.double(), weight_of(module), second[layer]
                k_theirs = module(x_held[layer][None])[0].double()
                k = torch.tensor(held["v" if side else "k_pre"][layer]).double()  # [kv_head][token][dim]
                for g in range(groups):
                    at = slice(g * wide, (g + 1) * wide)
                    p = torch.cat([product[layer, g * heads + h, side] for h in range(heads)], 1)  # [wide][wide]
                    u, s, _ = torch.linalg.svd(w[at] @ torch.linalg.cholesky(c), full_matrices=False)
                    best = u[:, :rank] @ (u[:, :rank].T @ w[at])
                    mine, its = p.T @ w[at], theirs[at]
                    off = lambda y: (((y - w[at]) @ c) * (y - w[at])).sum().item() / s.square().sum().item()
                    kk = torch.cat(list(k[g * heads : (g + 1) * heads]), 1)
                    k_ours, k_its = kk @ p, k_theirs[:, at]
                    lost = lambda y: ((y - kk).square().sum() / kk.square().sum()).item()
                    table.append(dict(
                        layer=layer, side="kv"[side], heads=heads, group=g, rank=rank,
                        whitened_error_theirs=off(its), whitened_error_ours=off(mine),
                        whitened_error_least=(s[rank:].square().sum() / s.square().sum()).item(),
                        w_rms=rms(w[at]), w_max_difference=(its - mine).abs().max().item(),
                        w_rms_difference=rms(its - mine), w_rms_theirs_double=rms(its - best),
                        w_rms_ours_double=rms(mine - best),
                        held_rms=rms(kk), held_max_difference=(k_its - k_ours).abs().max().item(),
                        held_rms_difference=rms(k_its - k_ours),
                        held_error_theirs=lost(k_its), held_error_ours=lost(k_ours)))
                setattr(parent, name, linear)
    return table


def search(rank_search, model, share, heads, rounded):
    args = types.SimpleNamespace(search_method="fisher", calib_dataset="wikitext2", model_id="llama", calib_seqlen=2048,
                                 device="cpu", use_cache=True, head_group_size=heads, param_ratio_target=share)
    keep = rank_search.rounding_search_result
    if not rounded:
        rank_search.rounding_search_result = lambda x: x
    found = rank_search.rank_search(model, None, args)[0]
    rank_search.rounding_search_result = keep
    return found


def cached_information(model, per_head):
    """The file in which they keep Fisher information, so that it is ours: every element of W_K^h, W_V^h the mean."""
    d = model.config.head_dim
    table = {n: torch.zeros_like(m.weight) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    for layer, side, name, _, _, linear in model.projections():
        table[name] = torch.tensor(per_head[side][layer]).repeat_interleave(d)[:, None].expand_as(linear.weight).clone()
    torch.save(table, "cache/llama_calib_fisher_info.pt")


def root_mean_squares(a):
    with h5py.File(a.fisher) as f:
        return [f["rms/w_k"][:], f["rms/w_v"][:]]


def compare_ranks(a, model, rank_search, work):
    per_head = root_mean_squares(a)
    os.makedirs("cache", exist_ok=True)
    rank_search.get_calib_data = lambda *x, **k: []
    cached_information(model, per_head)
    n_kv, table = model.config.num_key_value_heads, []
    for heads in range(1, n_kv + 1):
        if n_kv % heads:
            continue
        for share in (0.75, 0.7, 0.5, 0.3, 0.25):
            whole, rounded = (search(rank_search, model, share, heads, r) for r in (False, True))
            ranks, _ = ours(a, f"palu,p={1 - share},heads={heads},search=1", os.path.join(work, "ours.h5"), a.fisher)
            for layer, side, name, *_ in model.projections():
                for g in range(n_kv // heads):
                    mine = int(ranks[layer, g * heads, side])
                    table.append(dict(share=share, heads=heads, layer=layer, side="kv"[side], group=g, theirs=whole[name][g],
                                      ours=mine, theirs_rounded=rounded[name][g],
                                      ours_rounded=max(1, round(mine / 32)) * 32))
    return table


def compare_information(a, model, rank_search):
    """Their own backward pass over the same ids: with their labels, and with the next token."""
    with h5py.File(a.calibration) as f:
        batches = [{"input_ids": t} for t in sequences(f)]
    d, found, per_head = model.config.head_dim, {}, root_mean_squares(a)
    os.makedirs("cache", exist_ok=True)
    for shift in (True, False):
        model.shift = shift
        rank_search.calib_fisher_info(model, batches, torch.device("cpu"), use_cache=False)
        for layer, side, _, _, _, linear in model.projections():
            for h in range(model.config.num_key_value_heads):
                found[shift, side, layer, h] = linear.fisher_info[h * d : (h + 1) * d].double().mean().item()
    rows = 2047  # their loss is the mean over rows, ours the sum
    return [dict(layer=l, side="kv"[s], kv_head=h, theirs=(rows - 1) * found[True, s, l, h],
                 theirs_next_token=rows * found[False, s, l, h], ours=per_head[s][l, h])
            for (shift, s, l, h) in found if shift]


def write(folder, name, table, commit):
    with open(os.path.join(folder, name), "w", newline="", encoding="utf-8") as f:
        w = csv.writer(f, lineterminator="\n")
        w.writerow(list(table[0]) + ["commit"])
        for r in table:
            w.writerow([f"{v:.6g}" if isinstance(v, float) else v for v in r.values()] + [commit[:10]])


def report_factors(factors):
    print("heads share-of-width  largest over layers, sides and groups of: (theirs - ours) of whitened error, max and rms of W', "
          "rms of held-out rows;  rms of W' from double: theirs, ours")
    for heads, rank in sorted({(r["heads"], r["rank"]) for r in factors}):
        t = [r for r in factors if (r["heads"], r["rank"]) == (heads, rank)]
        top = lambda f: max(f(r) for r in t)
        print(f"{heads} {rank:4d}  {top(lambda r: abs(r['whitened_error_theirs'] - r['whitened_error_ours'])):.2e}"
              f"  {top(lambda r: r['w_max_difference'] / r['w_rms']):.2e}  {top(lambda r: r['w_rms_difference'] / r['w_rms']):.2e}"
              f"  {top(lambda r: r['held_rms_difference'] / r['held_rms']):.2e}"
              f"  {top(lambda r: r['w_rms_theirs_double'] / r['w_rms']):.2e}  {top(lambda r: r['w_rms_ours_double'] / r['w_rms']):.2e}")


def report_ranks(ranks):
    print("ranks: heads share  sums theirs, ours; equal of all; largest difference;  rounded to 32: equal; sums")
    for heads, share in sorted({(r["heads"], r["share"]) for r in ranks}):
        t = [r for r in ranks if (r["heads"], r["share"]) == (heads, share)]
        total = lambda k: sum(r[k] for r in t)
        print(heads, share, total("theirs"), total("ours"), f"{sum(r['theirs'] == r['ours'] for r in t)}/{len(t)}",
              max(abs(r["theirs"] - r["ours"]) for r in t), f"{sum(r['theirs_rounded'] == r['ours_rounded'] for r in t)}/{len(t)}",
              total("theirs_rounded"), total("ours_rounded"))


def main():
    p = argparse.ArgumentParser()
    for name in ("clone", "model", "calibration", "fisher", "held", "tool"):
        p.add_argument(name)
    p.add_argument("-o", required=True)
    p.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    a = p.parse_args()
    for k in ("clone", "model", "calibration", "fisher", "held", "tool", "o"):
        setattr(a, k, os.path.abspath(getattr(a, k)))
    with tempfile.TemporaryDirectory() as work:
        model = Model(AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32, attn_implementation="eager").eval())
        commit, decomposition, rank_search = load_theirs(a.clone, work)
        os.chdir(work)
        if "factors" in a.part:
            with torch.no_grad():
                factors = compare_factors(a, model, decomposition, work)
            write(a.o, "palu.csv", factors, commit)
            report_factors(factors)
        if "ranks" in a.part:
            with torch.no_grad():
                ranks = compare_ranks(a, model, rank_search, work)
            write(a.o, "palu-ranks.csv", ranks, commit)
            report_ranks(ranks)
        if "information" in a.part:
            information = compare_information(a, model, rank_search)
            write(a.o, "palu-information.csv", information, commit)
            for k in ("theirs_next_token", "theirs"):
                print("information,", k, "over ours:", *(f"{f(r[k] / r['ours'] for r in information):.6f}" for f in (min, max)))


if __name__ == "__main__":
    main()
