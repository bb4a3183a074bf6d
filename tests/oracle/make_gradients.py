"""Writes tests/data/gradients.safetensors: gradients by PyTorch's autograd of the models of tests/data/families in float64.

usage: make_gradients.py tests/data/families tests/data/gradients.safetensors [NAME ...]

With names, the gradients of each are written to tests/data/families/NAME/gradients.safetensors instead.

The loss of a sequence is the sum over its rows but the last of -log p(next token). Two sequences of every model: the ids of its
expected.safetensors, and the first 20 of them in reverse. Tensors, float32, for a fixture NAME:

NAME/loss [2]               of both sequences
NAME/row [r]                rows of the first sequence that are kept
NAME/k, k_pre, v [l][r][n_kv_heads * d_head]   gradients of the first loss with respect to K after and before RoPE, and V
NAME/w_k, w_v [l][n_kv_heads]     sum over sequences and elements of W_K^h, W_V^h of the squared gradient
NAME/w_k_root, w_v_root [l][n_kv_heads]   mean over the elements of the root of the mean over sequences of the squared gradient
NAME/k2, k_pre2, v2 [l][n_kv_heads * d_head]   sum over all rows of both sequences of the squared gradient
"""
import importlib, json, os, sys

# Transformers asks for a package that has the name of a script next to this one.
sys.path[:] = [p for p in sys.path if os.path.abspath(p) != os.path.dirname(os.path.abspath(__file__))]
import torch, transformers
from safetensors.torch import load_file, save_file

torch.set_num_threads(2)
seen = {k: [] for k in ("k_pre", "k", "v")}


def keep(name, x, step=1):  # [1][heads][n][d]; Falcon repeats the keys of a group `step` times
    x.retain_grad()
    seen[name].append((x, step))


def rows(x, step):
    g = x.grad[0]
    g = g.reshape(g.shape[0] // step, step, *g.shape[1:]).sum(1)
    return g.transpose(0, 1).flatten(1)  # [n][heads * d]


def record(model, family):
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    for name in ("apply_rotary_pos_emb", "eager_attention_forward"):
        if hasattr(module, name):
            setattr(module, name, getattr(getattr(module, name), "original", getattr(module, name)))
    c = model.config.get_text_config()
    new = family == "falcon" and c.new_decoder_architecture
    step = c.num_attention_heads // c.num_kv_heads if new else 1
    if family == "stablelm":  # It hands the rotated part of a head alone to apply_rotary_pos_emb.
        for name, m in model.named_modules():
            if name.endswith("self_attn.k_proj"):

                def recording_k(m, i, out, d=c.hidden_size // c.num_attention_heads):
                    k = out.unflatten(2, (-1, d)).transpose(1, 2).contiguous()
                    keep("k_pre", k)
                    return k.transpose(1, 2).flatten(2)

                m.register_forward_hook(recording_k)
    elif hasattr(module, "apply_rotary_pos_emb"):
        rotary = module.apply_rotary_pos_emb

        def recording_rotary(q, k, *args, **kw):
            keep("k_pre", k, step)
            q, k = rotary(q, k, *args, **kw)
            keep("k", k, step)
            return q, k

        recording_rotary.original = rotary
        module.apply_rotary_pos_emb = recording_rotary
    if hasattr(module, "eager_attention_forward"):
        attend = module.eager_attention_forward

        def recording_attend(at, q, k, v, *args, **kw):
            keep("v", v)
            for name in ("k", "k_pre"):  # layers without RoPE
                if len(seen[name]) < len(seen["v"]):
                    keep(name, k)
            return attend(at, q, k, v, *args, **kw)

        recording_attend.original = attend
        module.eager_attention_forward = recording_attend
    for name, m in model.named_modules():
        if name.endswith("self_attention"):

            def recording_split(fused, at=m, split=m._split_heads):
                q, k, v = split(fused)  # v [1][n][heads][d]
                v = v.transpose(1, 2).contiguous()
                keep("v", v, step)
                return q, k, v.transpose(1, 2)

            m._split_heads = recording_split


def weights(model, family):
    """Gradients of W_K and W_V of every layer, [n_kv_heads][d_head * d_model]."""
    c = model.config.get_text_config()
    heads = c.num_attention_heads
    if family == "falcon":
        kv = heads if not (c.new_decoder_architecture or c.multi_query) else c.num_kv_heads if c.new_decoder_architecture else 1
    else:
        kv = getattr(c, "num_key_value_heads", None) or heads
    out = []
    for name, m in model.named_modules():
        if "vision" in name:
            continue
        if name.endswith(("self_attn.k_proj", "self_attn.v_proj")):
            out.append(m.weight.grad.reshape(kv, -1))
        elif name.endswith("self_attn.qkv_proj"):
            d = m.weight.shape[0] // (heads + 2 * kv)
            out += [w.reshape(kv, -1) for w in m.weight.grad.split([heads * d, kv * d, kv * d])[1:]]
        elif name.endswith("attention.query_key_value"):
            g = m.weight.grad.reshape(kv, heads // kv + 2, -1, m.weight.shape[1])
            out += [g[:, -2].reshape(kv, -1), g[:, -1].reshape(kv, -1)]
    return torch.stack(out[0::2]), torch.stack(out[1::2])


def gradients(model, family, ids):
    for v in seen.values():
        v.clear()
    model.zero_grad()
    x = torch.tensor([ids])
    logits = model(x, use_cache=False).logits[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1], x[0, 1:], reduction="sum")
    loss.backward()
    acts = {k: torch.stack([rows(*x) for x in v]) for k, v in seen.items()}
    assert all(len(v) == model.config.get_text_config().num_hidden_layers for v in seen.values()), {k: len(v) for k, v in seen.items()}
    w_k, w_v = weights(model, family)
    return loss.item(), acts, {"w_k": w_k.clone(), "w_v": w_v.clone()}


def granite(folder):
    """Configuration with which Transformers' Granite computes as the MiniCPM in `folder`, which Transformers lacks."""
    c = json.load(open(os.path.join(folder, "config.json")))
    c.update(model_type="granite", embedding_multiplier=c["scale_emb"], residual_multiplier=c["scale_depth"] / c["num_hidden_layers"] ** 0.5,
             attention_multiplier=(c["hidden_size"] / c["num_attention_heads"]) ** -0.5, logits_scaling=c["hidden_size"] / c["dim_model_base"])
    return transformers.GraniteConfig(**c)


def llama_of_internlm2(folder):
    """Transformers' Llama with the weights of the InternLM2 in `folder`, which Transformers lacks."""
    c = json.load(open(os.path.join(folder, "config.json")))
    model = transformers.LlamaForCausalLM._from_config(
        transformers.LlamaConfig(**{**c, "model_type": "llama", "attention_bias": c["bias"]}), attn_implementation="eager").double()
    names = {"model.tok_embeddings": "model.embed_tokens", "output": "lm_head", "attention_norm": "input_layernorm",
             "ffn_norm": "post_attention_layernorm", "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj",
             "feed_forward.w3": "mlp.up_proj", "feed_forward.w2": "mlp.down_proj"}
    kv, d, state = c["num_key_value_heads"], c["hidden_size"] // c["num_attention_heads"], {}
    for key, w in load_file(os.path.join(folder, "model.safetensors")).items():
        if "attention.wqkv" in key:
            parts = w.view(kv, -1, *w.shape[1:])
            for x, p in zip("qkv", (parts[:, :-2 * d], parts[:, -2 * d:-d], parts[:, -d:])):
                state[key.replace("attention.wqkv", f"self_attn.{x}_proj")] = p.flatten(0, 1)
            continue
        for old, new in names.items():
            key = key.replace(old, new)
        state[key] = w
    model.load_state_dict(state)
    return model.eval()


out = {}
for name in sys.argv[3:] or sorted(os.listdir(sys.argv[1])):
    folder = os.path.join(sys.argv[1], name)
    if name == "internlm2":
        model = llama_of_internlm2(folder)
    else:
        config = granite(folder) if name == "minicpm" else transformers.AutoConfig.from_pretrained(folder)
        experts = hasattr(config, "num_experts_per_tok")
        auto = transformers.AutoModelForImageTextToText if name == "mistral3" else transformers.AutoModelForCausalLM
        model = auto.from_pretrained(
            folder, config=config, dtype=torch.float64, attn_implementation="eager",
            **(dict(experts_implementation="eager") if experts else {})).eval()
    family = "ministral3" if name == "mistral3" else type(model).__module__.split(".")[-2]
    record(model, family)
    ids = [int(i) for i in load_file(os.path.join(folder, "expected.safetensors"))["id"]]
    both = [gradients(model, family, x) for x in (ids, ids[:20][::-1])]
    kept = [0, len(ids) // 3, len(ids) - 2]
    o = {"loss": torch.tensor([b[0] for b in both]), "row": torch.tensor(kept, dtype=torch.float32)}
    for k in ("k", "k_pre", "v"):
        o[k] = both[0][1][k][:, kept]
        o[k + "2"] = sum(b[1][k].square().sum(1) for b in both)
    for k in ("w_k", "w_v"):
        square = sum(b[2][k].square() for b in both)
        o[k] = square.sum(-1)
        o[k + "_root"] = (square / 2).sqrt().mean(-1)
    for k, x in o.items():
        out[f"{name}/{k}"] = x.to(torch.float32).contiguous()
    print(name, both[0][0], {k: tuple(x.shape) for k, x in o.items()})
    if sys.argv[3:]:
        save_file(out, os.path.join(folder, "gradients.safetensors"))
        out = {}
if out:
    save_file(out, sys.argv[2])
    print(os.path.getsize(sys.argv[2]), "bytes")
