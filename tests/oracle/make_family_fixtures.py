"""Makes tests/data/families/: small checkpoints of every family and what Hugging Face Transformers computes from them.

usage: make_family_fixtures.py OUTDIR [NAME ...]
       make_family_fixtures.py --count BUILD   prints NAME and the number of elements of every shape of kvdim-collect --shape
                                               list, which tests/model/test_shapes.c holds; makes models without weights

Each OUTDIR/NAME is a random model as save_pretrained writes it, in float32, bfloat16 or float16, and expected.safetensors
with what the float32 model computes on the CPU with eager attention. Tensors of an expected file, all float32:
id [n]; row [r] and layer [l], the rows and layers that are kept; q_pre, q, k_pre, k, v, o [l][r][heads * d_head];
logits [r][vocab]. q_pre and k_pre are before RoPE (and behind the norms of Q and K where the family has them; the
same as q and k in a model without RoPE), o is the attention output before W_O.
"""
import importlib, json, os, shutil, subprocess, sys, tempfile

# Transformers asks for a package that has the name of a script next to this one.
sys.path[:] = [p for p in sys.path if os.path.abspath(p) != os.path.dirname(os.path.abspath(__file__))]
import torch, transformers
from safetensors.torch import load_file, save_file

torch.set_num_threads(2)
seen = {k: [] for k in ("q_pre", "q", "k_pre", "k", "v", "o")}

def rows(x, step=1):  # [1][heads][n][d] -> [n][heads * d]
    return x[0, ::step].transpose(0, 1).flatten(1).clone()

def record_latents(model, module):
    """Puts hooks on latent attention (DeepSeek). Transformers attends to expanded keys and values; the arrays of a file are
    those of the absorbed form, whose one KV head [rotated key | latent] is the cache: queries are multiplied by the rows of
    kv_b_proj that make keys, and the output is the probabilities times the latents. Two assertions check that the scores
    and the input of o_proj are Transformers' own. Pairs of rotated dimensions are put back next to each other, where the
    library stores them in two halves."""
    for name in ("apply_rotary_emb", "apply_rotary_pos_emb_interleave", "apply_rotary_pos_emb", "eager_attention_forward"):
        if hasattr(module, name):
            setattr(module, name, getattr(getattr(module, name), "original", getattr(module, name)))
    c, now = model.config, {}
    rope, nope, wide, rank = c.qk_rope_head_dim, c.qk_nope_head_dim, c.v_head_dim, c.kv_lora_rank
    neighbours = [i // 2 + (i % 2) * (rope // 2) for i in range(rope)]

    def parts(at):  # W_UK [heads][nope][rank], W_UV [heads][wide][rank]
        up = at.kv_b_proj.weight.view(-1, nope + wide, rank)
        return up[:, :nope], up[:, nope:]

    def absorbed(at, q, q_rope):  # [1][heads][n][...]
        return torch.cat((q_rope, torch.einsum("bhnd,hdr->bhnr", q[..., :nope], parts(at)[0])), -1)

    for name in ("apply_rotary_emb", "apply_rotary_pos_emb_interleave", "apply_rotary_pos_emb"):
        if not hasattr(module, name):
            continue
        rotary = getattr(module, name)

        def recording(q, k, *args, rotary=rotary, halves=name.endswith("interleave"), **kw):
            now["q_pre"], now["k_pre"] = q, k
            out = rotary(q.contiguous(), k.contiguous(), *args, **kw)
            now["q"], now["k"] = (x[..., neighbours] if halves else x for x in out)
            return out

        recording.original = rotary
        setattr(module, name, recording)
    attend = module.eager_attention_forward

    def recording_attend(at, q, k, v, mask, scaling, **kw):
        out, probabilities = attend(at, q, k, v, mask, scaling, **kw)
        latent = now["latent"][None, None]
        cat = lambda r: torch.cat((r, latent), -1)
        mine = {"q_pre": absorbed(at, q, now["q_pre"]), "q": absorbed(at, q, now["q"]), "k_pre": cat(now["k_pre"]),
                "k": cat(now["k"]), "v": cat(torch.zeros_like(now["k"]))}
        mine["o"] = torch.matmul(probabilities, mine["v"])
        scores = torch.matmul(mine["q"], mine["k"].transpose(2, 3))
        torch.testing.assert_close(scores, torch.matmul(q, k.transpose(2, 3)), rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(torch.einsum("bhnr,hdr->bnhd", mine["o"][..., rope:], parts(at)[1]), out, rtol=1e-4, atol=1e-4)
        for key, x in mine.items():
            seen[key].append(rows(x))
        return out, probabilities

    recording_attend.original = attend
    module.eager_attention_forward = recording_attend
    for name, m in model.named_modules():
        if name.endswith("kv_a_layernorm"):
            m.register_forward_hook(lambda m, i, out: now.update(latent=out[0].clone()))

def record(model, family):
    """Puts hooks on what every layer hands to its attention. Falcon repeats the keys of a group for all of its queries."""
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    for name in ("apply_rotary_pos_emb", "eager_attention_forward"):
        if hasattr(module, name):
            setattr(module, name, getattr(getattr(module, name), "original", getattr(module, name)))
    if family.startswith("deepseek") or family in ("glm4_moe_lite", "youtu"):
        return record_latents(model, module)
    c = model.config.get_text_config()
    new = family == "falcon" and c.new_decoder_architecture
    step = c.num_attention_heads // c.num_kv_heads if new else 1

    if family == "stablelm":  # It hands the rotated part of a head alone to apply_rotary_pos_emb.
        for name, m in model.named_modules():
            if name.endswith(("self_attn.q_proj", "self_attn.k_proj")):
                m.register_forward_hook(lambda m, i, out, key=name[-6] + "_pre": seen[key].append(out[0].clone()))
    elif hasattr(module, "apply_rotary_pos_emb"):
        rotary = module.apply_rotary_pos_emb

        def recording_rotary(q, k, *args, **kw):
            seen["q_pre"].append(rows(q))
            seen["k_pre"].append(rows(k, step))
            q, k = rotary(q, k, *args, **kw)
            seen["q"].append(rows(q))
            seen["k"].append(rows(k, step))
            return q, k

        recording_rotary.original = rotary
        module.apply_rotary_pos_emb = recording_rotary
    if hasattr(module, "eager_attention_forward"):
        attend = module.eager_attention_forward

        def recording_attend(at, q, k, v, *args, **kw):
            seen["v"].append(rows(v))
            # Layers without RoPE. OPT scales its queries before.
            for name in ("q", "q_pre"):
                if len(seen[name]) < len(seen["v"]):
                    seen[name].append(rows(q / at.scaling if family == "opt" else q))
            for name in ("k", "k_pre"):
                if len(seen[name]) < len(seen["v"]):
                    seen[name].append(rows(k))
            return attend(at, q, k, v, *args, **kw)

        recording_attend.original = attend
        module.eager_attention_forward = recording_attend
    for name, m in model.named_modules():
        if "vision" not in name and name.endswith(("self_attn.o_proj", "self_attn.out_proj", "attention.dense")):
            m.register_forward_pre_hook(lambda m, i: seen["o"].append(i[0][0].clone()))
        if name.endswith("self_attention"):
            def keep_v(m, i, out, at=m):
                v = at._split_heads(out)[2]  # [1][n][heads][d]
                seen["v"].append(v[0, :, ::step].flatten(1).clone())
            m.query_key_value.register_forward_hook(keep_v)

@torch.no_grad()
def make(outdir, name, seed, family, config, n, dtype):
    torch.manual_seed(seed)
    auto = transformers.AutoModelForImageTextToText if config.model_type == "mistral3" else transformers.AutoModelForCausalLM
    model = auto.from_config(config)
    for key, w in model.named_parameters():
        if w.ndim > 1:
            w.normal_(0, 0.2)
        elif key.endswith("bias"):
            w.normal_(0, 0.3)
        else:
            w.uniform_(0.5, 1.5)
    for key, w in model.named_buffers():
        if key.endswith("e_score_correction_bias"):
            w.normal_(0, 0.3)
    folder = os.path.join(outdir, name)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder)
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))
    model = auto.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager",
        **(dict(experts_implementation="eager") if hasattr(config, "num_experts_per_tok") else {})).eval()
    if name.endswith("mxfp4"):
        for key, w in pack_mxfp4(folder).items():
            model.get_parameter(key).copy_(w)
    record(model, family)
    for v in seen.values():
        v.clear()
    config = config.get_text_config()
    ids = torch.randint(0, config.vocab_size, (n,)).tolist()
    keep = sorted({0, 1, 5, n // 2, n - 1})
    logits = model(torch.tensor([ids]), use_cache=False).logits[0]
    layers = config.num_hidden_layers
    assert all(len(v) == layers for v in seen.values()), {k: len(v) for k, v in seen.items()}
    out = {k: torch.stack([v[l][keep] for l in range(layers)]).contiguous() for k, v in seen.items()}
    out["logits"] = logits[keep].contiguous()
    for key, x in (("id", ids), ("row", keep), ("layer", range(layers))):
        out[key] = torch.tensor(list(x), dtype=torch.float32)
    save_file(out, os.path.join(folder, "expected.safetensors"))
    if name == "minicpm":
        name_minicpm(folder)
    if name == "internlm2":
        name_internlm2(folder)
    print(folder, sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)), "bytes")

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

def llama_like(cls, **kw):
    base = dict(vocab_size=80, hidden_size=40, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=False,
                bos_token_id=0, eos_token_id=1, pad_token_id=None)
    base.update(kw)
    return getattr(transformers, cls)(**base)

def phi3(partial_rotary_factor=1.0, **kw):
    kw = {**dict(hidden_size=96, num_attention_heads=4, max_position_embeddings=64, num_hidden_layers=1), **kw}
    pairs = range(int(kw["hidden_size"] // kw["num_attention_heads"] * partial_rotary_factor) // 2)
    if partial_rotary_factor != 1:
        kw["partial_rotary_factor"] = partial_rotary_factor
    factors = dict(short_factor=[1 + 0.05 * i for i in pairs], long_factor=[1 + 0.7 * i for i in pairs])
    return llama_like("Phi3Config", rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, **factors), **kw)

def gpt_oss(**kw):
    kw = {**dict(hidden_size=18, intermediate_size=14, head_dim=8, num_local_experts=5, num_experts_per_tok=2, sliding_window=9,
                 rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0,
                                      truncate=False, original_max_position_embeddings=32)), **kw}
    return llama_like("GptOssConfig", **kw)

def pack_mxfp4(folder):
    """Replaces the experts of a folder by random blocks of MXFP4 and their numbers, as gpt-oss is published. Returns the
    matrices that Transformers makes of the blocks, [experts][in][out]."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    path = os.path.join(folder, "model.safetensors")
    tensors, found = load_file(path), {}
    for key in [k for k in tensors if k.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        n, width, out = tensors.pop(key).shape
        tensors[key + "_blocks"] = torch.randint(0, 256, (n, out, width // 32, 16), dtype=torch.uint8)
        tensors[key + "_scales"] = torch.randint(123, 126, (n, out, width // 32), dtype=torch.uint8)
        found[key] = convert_moe_packed_tensors(tensors[key + "_blocks"], tensors[key + "_scales"], dtype=torch.float32)
        assert found[key].shape == (n, width, out)
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.load(open(os.path.join(folder, "config.json")))
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    json.dump(config, open(os.path.join(folder, "config.json"), "w"), indent=2)
    return found

def small(cls, **kw):
    return llama_like(cls, **{**dict(hidden_size=16, intermediate_size=12, num_hidden_layers=2), **kw})

def name_minicpm(folder):
    """Transformers does not contain MiniCPM, which computes as Granite does with these factors."""
    path = os.path.join(folder, "config.json")
    c = json.load(open(path))
    depth = c.pop("residual_multiplier") * c["num_hidden_layers"] ** 0.5
    base = c["hidden_size"] / c.pop("logits_scaling")
    assert abs(c.pop("attention_multiplier") - (c["hidden_size"] / c["num_attention_heads"]) ** -0.5) < 1e-12
    c.update(model_type="minicpm", architectures=["MiniCPMForCausalLM"], scale_emb=c.pop("embedding_multiplier"), scale_depth=depth,
             dim_model_base=int(base))
    json.dump(c, open(path, "w"), indent=2)

def name_internlm2(folder):
    """Transformers does not contain InternLM2, which computes as Llama does and stores Q, K and V by KV head."""
    path = os.path.join(folder, "config.json")
    c = json.load(open(path))
    c.update(model_type="internlm2", architectures=["InternLM2ForCausalLM"], bias=c.pop("attention_bias"))
    json.dump(c, open(path, "w"), indent=2)
    names = {"model.embed_tokens": "model.tok_embeddings", "lm_head": "output", "input_layernorm": "attention_norm",
             "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1",
             "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2"}
    path, kv, out = os.path.join(folder, "model.safetensors"), c["num_key_value_heads"], {}
    tensors = load_file(path)
    for key, w in tensors.items():
        if "self_attn.q_proj" in key:
            parts = [tensors[key.replace("q_proj", f"{x}_proj")].view(kv, -1, *w.shape[1:]) for x in "qkv"]
            out[key.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat(parts, 1).flatten(0, 1).contiguous()
        elif "k_proj" not in key and "v_proj" not in key:
            for old, new in names.items():
                key = key.replace(old, new)
            out[key] = w
    save_file(out, path, metadata={"format": "pt"})

def opt(**kw):
    return transformers.OPTConfig(**{**dict(
        vocab_size=80, hidden_size=48, ffn_dim=56, num_hidden_layers=2, num_attention_heads=3,
        max_position_embeddings=60, bos_token_id=0, eos_token_id=1, pad_token_id=1), **kw})

def falcon(**kw):
    return transformers.FalconConfig(**{**dict(
        vocab_size=80, num_hidden_layers=2, ffn_hidden_size=100, bos_token_id=0, eos_token_id=1,
        max_position_embeddings=64), **kw})

def gemma(cls, **kw):
    return llama_like(cls, **{**dict(hidden_size=24, intermediate_size=28, head_dim=16, tie_word_embeddings=True, sliding_window=7), **kw})

def gemma3_with_vision(**kw):
    vision = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=28,
                  patch_size=14)
    return transformers.Gemma3Config(text_config=gemma("Gemma3TextConfig", **kw).to_dict(), vision_config=vision,
                                     mm_tokens_per_image=4, image_token_index=79, boi_token_index=77, eoi_token_index=78)

def mistral3(**kw):
    vision = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=28, patch_size=14, head_dim=8,
                  model_type="pixtral")
    text = small("Ministral3Config", **kw)
    return transformers.Mistral3Config(text_config=text.to_dict(), vision_config=vision, image_token_index=79, tie_word_embeddings=False)

GEMMA3_ROPE = dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                   sliding_attention=dict(rope_type="default", rope_theta=1e4))

def olmo(cls, **kw):
    return llama_like(cls, **{**dict(hidden_size=24, intermediate_size=28, num_hidden_layers=2), **kw})

def glm(cls, **kw):
    return llama_like(cls, **{**dict(hidden_size=24, intermediate_size=20, num_hidden_layers=2, head_dim=12), **kw})

def starcoder2(**kw):
    return transformers.Starcoder2Config(**{**dict(
        vocab_size=80, hidden_size=24, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=0, eos_token_id=1), **kw})

def deepseek(cls, **kw):
    return llama_like(cls, **{**dict(
        hidden_size=20, num_key_value_heads=None, q_lora_rank=9, kv_lora_rank=11, qk_nope_head_dim=5, qk_rope_head_dim=6, v_head_dim=7,
        intermediate_size=26, moe_intermediate_size=9, num_hidden_layers=2, first_k_dense_replace=1, n_shared_experts=2), **kw})

YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)

def neox(**kw):
    return transformers.GPTNeoXConfig(**{**dict(
        vocab_size=80, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=64,
        bos_token_id=0, eos_token_id=1), **kw})

def stablelm(**kw):
    return llama_like("StableLmConfig", **{**dict(hidden_size=64, intermediate_size=20, num_hidden_layers=2), **kw})

def without(key, config):
    if hasattr(config, key):
        delattr(config, key)
    return config

MODELS = {
    # Llama with every bias that its configuration can ask for
    "llama-biases": ("llama", 60, F32, lambda: llama_like(
        "LlamaConfig", head_dim=16, attention_bias=True, mlp_bias=True, num_hidden_layers=2)),
    # Mistral 0.1: a window in every layer; 0.3: none
    "mistral-window": ("mistral", 40, BF16, lambda: llama_like("MistralConfig", head_dim=64, sliding_window=7)),
    "mistral-full": ("mistral", 40, F16, lambda: llama_like(
        "MistralConfig", head_dim=128, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1,
        sliding_window=None, rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    # Qwen2: biases on Q, K, V; the window from layer 1 on
    "qwen2-gqa": ("qwen2", 60, BF16, lambda: llama_like(
        "Qwen2Config", hidden_size=128, num_hidden_layers=2, tie_word_embeddings=True)),
    "qwen2-window": ("qwen2", 50, BF16, lambda: llama_like(
        "Qwen2Config", num_attention_heads=1, num_key_value_heads=1, hidden_size=80, num_hidden_layers=2, use_sliding_window=True, sliding_window=16, max_window_layers=1)),
    # Qwen3: norms of Q and K; a bias and layers by name in the second
    "qwen3-gqa": ("qwen3", 60, BF16, lambda: llama_like("Qwen3Config", head_dim=128, num_hidden_layers=2)),
    "qwen3-mqa": ("qwen3", 50, BF16, lambda: llama_like(
        "Qwen3Config", head_dim=80, num_attention_heads=3, num_key_value_heads=1, attention_bias=True,
        use_sliding_window=True, sliding_window=9, tie_word_embeddings=True,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    # Phi-3: fused tensors; longrope within and beyond its original length; a window
    "phi3-short": ("phi3", 40, BF16, lambda: phi3(
        hidden_size=192, num_attention_heads=2, original_max_position_embeddings=48)),
    "phi3-long": ("phi3", 60, F32, lambda: phi3(original_max_position_embeddings=32)),
    "phi3-window": ("phi3", 40, F16, lambda: llama_like(
        "Phi3Config", hidden_size=160, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=1,
        sliding_window=11)),
    # OPT: norms before (as most sizes) and after with a narrow embedding (350m); gelu without biases
    "opt-before": ("opt", 40, BF16, lambda: opt(hidden_size=128, num_attention_heads=2)),
    "opt-after": ("opt", 40, F32, lambda: opt(do_layer_norm_before=False, word_embed_proj_dim=20)),
    "opt-nobias": ("opt", 40, F16, lambda: opt(hidden_size=80, num_attention_heads=1, enable_bias=False,
        activation_function="gelu_new", word_embed_proj_dim=24, tie_word_embeddings=False)),
    # Falcon: 7B, 40B and 11B forms, and the sequential one with as many KV heads as query heads
    "falcon-7b": ("falcon", 40, BF16, lambda: falcon(hidden_size=128, num_attention_heads=2, num_hidden_layers=1)),
    "falcon-40b": ("falcon", 40, BF16, lambda: falcon(
        hidden_size=96, num_attention_heads=6, num_kv_heads=2, new_decoder_architecture=True, num_hidden_layers=3)),
    "falcon-11b": ("falcon", 40, BF16, lambda: falcon(
        hidden_size=64, num_attention_heads=4, num_kv_heads=2, new_decoder_architecture=True,
        num_ln_in_parallel_attn=1, ffn_hidden_size=48, tie_word_embeddings=False, bias=True)),
    "falcon-mha": ("falcon", 40, BF16, lambda: falcon(
        hidden_size=64, num_attention_heads=4, multi_query=False, parallel_attn=False, bias=True,
        activation="gelu_pytorch_tanh", ffn_hidden_size=72)),
    # Gemma 2: caps that scores and logits reach; biases and one KV head without a cap of scores; a head of 256
    "gemma2-caps": ("gemma2", 40, BF16, lambda: gemma(
        "Gemma2Config", num_hidden_layers=2, query_pre_attn_scalar=16, attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0)),
    "gemma2-mqa": ("gemma2", 33, F32, lambda: gemma(
        "Gemma2Config", hidden_size=18, intermediate_size=22, num_attention_heads=3, num_key_value_heads=1,
        head_dim=10, num_hidden_layers=2, attention_bias=True, attn_logit_softcapping=None, sliding_window=9,
        layer_types=["full_attention", "sliding_attention"])),
    "gemma2-wide": ("gemma2", 40, BF16, lambda: gemma(
        "Gemma2Config", hidden_size=8, intermediate_size=12, num_attention_heads=1, num_key_value_heads=1,
        head_dim=256, num_hidden_layers=1, query_pre_attn_scalar=144)),
    # Gemma 3: two bases, of which the global one is scaled; the model with a vision model next to it
    "gemma3-text": ("gemma3", 40, BF16, lambda: gemma(
        "Gemma3TextConfig", query_pre_attn_scalar=16, rope_parameters=GEMMA3_ROPE, num_attention_heads=2,
        num_key_value_heads=1, layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    "gemma3-vision": ("gemma3", 45, BF16, lambda: gemma3_with_vision(
        hidden_size=18, intermediate_size=22, num_attention_heads=3, head_dim=10, num_key_value_heads=1,
        num_hidden_layers=2, sliding_window=11, layer_types=["full_attention", "sliding_attention"])),
    # Mixtral: experts in every layer; a window, and an odd number of experts
    "mixtral-full": ("mixtral", 40, BF16, lambda: llama_like(
        "MixtralConfig", hidden_size=18, head_dim=8, intermediate_size=14, num_local_experts=5, num_hidden_layers=2)),
    "mixtral-window": ("mixtral", 37, F16, lambda: llama_like(
        "MixtralConfig", hidden_size=15, head_dim=10, num_attention_heads=3, num_key_value_heads=1, intermediate_size=11,
        num_local_experts=3, num_experts_per_tok=1, sliding_window=9, num_hidden_layers=2)),
    # Qwen3-MoE: factors that add up to 1 and some that do not, these with a layer without experts
    "qwen3-moe-norm": ("qwen3_moe", 40, BF16, lambda: llama_like(
        "Qwen3MoeConfig", hidden_size=16, head_dim=8, moe_intermediate_size=11, num_experts=7, num_experts_per_tok=3,
        norm_topk_prob=True, num_hidden_layers=2)),
    "qwen3-moe-plain": ("qwen3_moe", 33, BF16, lambda: llama_like(
        "Qwen3MoeConfig", hidden_size=18, head_dim=14, num_attention_heads=2, num_key_value_heads=2, intermediate_size=12,
        moe_intermediate_size=9, num_experts=6, num_experts_per_tok=2, norm_topk_prob=False, attention_bias=True,
        mlp_only_layers=[1], num_hidden_layers=2, tie_word_embeddings=True)),
    # Qwen2-MoE: an expert that every token uses, after a gate
    "qwen2-moe": ("qwen2_moe", 40, BF16, lambda: llama_like(
        "Qwen2MoeConfig", hidden_size=24, moe_intermediate_size=10, shared_expert_intermediate_size=13, num_experts=4,
        num_experts_per_tok=2, norm_topk_prob=False, num_hidden_layers=1)),
    "qwen2-moe-nobias": ("qwen2_moe", 31, F16, lambda: llama_like(
        "Qwen2MoeConfig", hidden_size=20, num_attention_heads=2, num_key_value_heads=1, intermediate_size=12,
        moe_intermediate_size=9, shared_expert_intermediate_size=7, num_experts=4, num_experts_per_tok=2,
        norm_topk_prob=True, qkv_bias=False, mlp_only_layers=[0], num_hidden_layers=2)),
    # gpt-oss: sinks, a window in every second layer, yarn; experts transposed and, in the second, in MXFP4
    "gpt-oss": ("gpt_oss", 45, BF16, lambda: gpt_oss(num_hidden_layers=2)),
    "gpt-oss-mxfp4": ("gpt_oss", 40, BF16, lambda: gpt_oss(
        hidden_size=32, intermediate_size=32, num_attention_heads=3, num_key_value_heads=1, head_dim=10,
        num_local_experts=3, num_experts_per_tok=1, num_hidden_layers=1, layer_types=["full_attention"],
        rope_parameters=dict(rope_type="default", rope_theta=1e4), swiglu_limit=1.5)),
    # OLMo 2 and 3: norms over all heads; yarn in the layers without a window
    "olmo2-gqa": ("olmo2", 40, BF16, lambda: olmo("Olmo2Config")),
    "olmo2-mha": ("olmo2", 33, F32, lambda: olmo(
        "Olmo2Config", hidden_size=18, intermediate_size=22, num_attention_heads=3, num_key_value_heads=3, attention_bias=True,
        rope_parameters=dict(rope_type="default", rope_theta=5e5))),
    "olmo3-yarn": ("olmo3", 45, BF16, lambda: olmo(
        "Olmo3Config", sliding_window=9, layer_types=["sliding_attention", "full_attention"], rope_parameters=dict(
            full_attention=dict(YARN, rope_theta=5e5), sliding_attention=dict(rope_type="default", rope_theta=5e5)))),
    # GLM-4: half a head is rotated in neighbouring pairs; no bias and another part in the second
    "glm4-half": ("glm4", 40, BF16, lambda: glm("Glm4Config")),
    "glm4-part": ("glm4", 33, F32, lambda: glm(
        "Glm4Config", hidden_size=18, num_attention_heads=3, num_key_value_heads=1, head_dim=10, attention_bias=False,
        rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.6))),
    "glm-half": ("glm", 40, BF16, lambda: glm("GlmConfig", num_hidden_layers=1, num_key_value_heads=4)),
    # StarCoder2: a window and biases; none of them
    "starcoder2-window": ("starcoder2", 40, BF16, lambda: starcoder2(sliding_window=9)),
    "starcoder2-nobias": ("starcoder2", 33, F32, lambda: starcoder2(
        hidden_size=18, intermediate_size=22, num_attention_heads=3, num_key_value_heads=1, use_bias=False, tie_word_embeddings=False)),
    # Phi-4-mini: longrope on three quarters of a head, beyond its original length
    "phi3-partial": ("phi3", 60, BF16, lambda: phi3(
        hidden_size=32, intermediate_size=20, num_attention_heads=2, num_key_value_heads=1, original_max_position_embeddings=32, tie_word_embeddings=True,
        partial_rotary_factor=0.75)),
    # yarn: the defaults; a ramp between parts of pairs and both mscales
    "qwen3-yarn": ("qwen3", 60, BF16, lambda: llama_like(
        "Qwen3Config", hidden_size=24, intermediate_size=20, head_dim=32, num_hidden_layers=1,
        rope_parameters=dict(YARN, rope_theta=1e6))),
    "llama-yarn": ("llama", 60, F32, lambda: llama_like(
        "LlamaConfig", hidden_size=18, intermediate_size=20, head_dim=18, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=1,
        rope_parameters=dict(YARN, rope_theta=1e4, beta_fast=4.0, beta_slow=0.5, truncate=False, mscale=0.8, mscale_all_dim=0.3))),
    # DeepSeek-V2: a factored Q and yarn with groups of experts; one matrix of Q and no groups, as in V2-Lite
    "deepseek-v2": ("deepseek_v2", 45, BF16, lambda: deepseek(
        "DeepseekV2Config", n_routed_experts=9, num_experts_per_tok=3, topk_method="group_limited_greedy", n_group=3, topk_group=2,
        routed_scaling_factor=1.7, rope_parameters=dict(YARN, rope_theta=1e4, mscale=0.9, mscale_all_dim=0.6))),
    "deepseek-v2-lite": ("deepseek_v2", 33, F32, lambda: deepseek(
        "DeepseekV2Config", hidden_size=18, num_attention_heads=3, q_lora_rank=None, kv_lora_rank=13, qk_nope_head_dim=7,
        qk_rope_head_dim=4, v_head_dim=9, n_routed_experts=5, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=0)),
    # DeepSeek-V3: sigmoids with a bias, groups by their two best experts, yarn
    "deepseek-v3": ("deepseek_v3", 41, BF16, lambda: deepseek(
        "DeepseekV3Config", num_attention_heads=5, n_routed_experts=12, num_experts_per_tok=4, n_group=4, topk_group=2,
        n_shared_experts=1, norm_topk_prob=True, routed_scaling_factor=2.5, qk_rope_head_dim=10,
        rope_parameters=dict(YARN, rope_theta=1e4, mscale=1.0, mscale_all_dim=1.0))),
    "deepseek-v3-plain": ("deepseek_v3", 29, F16, lambda: deepseek(
        "DeepseekV3Config", hidden_size=21, num_attention_heads=3, q_lora_rank=None, v_head_dim=3, n_routed_experts=6, num_experts_per_tok=2,
        n_group=1, topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.0, first_k_dense_replace=0, rope_interleave=False,
        num_hidden_layers=1)),
    # Gemma: as the 7B and, with one KV head, the 2B model; biases
    "gemma-mha": ("gemma", 40, BF16, lambda: llama_like(
        "GemmaConfig", hidden_size=24, intermediate_size=28, head_dim=16, num_key_value_heads=4, num_hidden_layers=2, tie_word_embeddings=True)),
    "gemma-mqa": ("gemma", 33, F32, lambda: llama_like(
        "GemmaConfig", hidden_size=18, intermediate_size=22, num_attention_heads=3, num_key_value_heads=1, head_dim=10,
        num_hidden_layers=2, attention_bias=True, tie_word_embeddings=True)),
    # Ministral: one layer with a window
    "ministral": ("ministral", 40, BF16, lambda: small(
        "MinistralConfig", head_dim=6, sliding_window=9, layer_types=["full_attention", "sliding_attention"])),
    # Seed-OSS: a bias on O alone differs from that on Q, K and V
    "seed-oss": ("seed_oss", 33, BF16, lambda: small(
        "SeedOssConfig", head_dim=10, num_attention_heads=3, num_key_value_heads=1, attention_bias=False, attention_out_bias=True, mlp_bias=True)),
    # ERNIE 4.5: neighbouring pairs over whole heads
    "ernie": ("ernie4_5", 40, BF16, lambda: small("Ernie4_5Config", head_dim=6, use_bias=True)),
    # InternLM3: dynamic NTK within the trained length; it computes as Llama does
    "internlm3": ("llama", 40, BF16, lambda: small(
        "InternLM3Config", head_dim=8, attention_bias=True, mlp_bias=True,
        rope_parameters=dict(rope_type="dynamic", factor=6.0, rope_theta=5e4))),
    # SmolLM3: layers without RoPE; yarn in the others
    "smollm3": ("smollm3", 60, BF16, lambda: small(
        "SmolLM3Config", num_hidden_layers=3, no_rope_layers=[1, 0, 1], tie_word_embeddings=True,
        rope_parameters=dict(YARN, rope_theta=1e4))),
    # EXAONE 4: no RoPE in the layer without a window
    "exaone4": ("exaone4", 45, BF16, lambda: small(
        "Exaone4Config", head_dim=6, sliding_window=9, layer_types=["sliding_attention", "full_attention"])),
    # Granite and MiniCPM: factors on embedding, scores, branches and logits
    "granite": ("granite", 40, BF16, lambda: small(
        "GraniteConfig", embedding_multiplier=6.0, logits_scaling=3.0, residual_multiplier=0.4, attention_multiplier=0.3,
        attention_bias=True, mlp_bias=True)),
    "minicpm": ("granite", 40, F32, lambda: small(
        "GraniteConfig", embedding_multiplier=12.0, logits_scaling=2.0, residual_multiplier=1.4 / 2 ** 0.5, attention_multiplier=0.5,
        tie_word_embeddings=True)),
    # Cohere: one layer norm without bias in a layer, a factor on logits; no RoPE in the layer without a window
    "cohere": ("cohere", 40, BF16, lambda: small("CohereConfig", attention_bias=True, logit_scale=0.3, tie_word_embeddings=True)),
    "cohere2": ("cohere2", 45, BF16, lambda: small(
        "Cohere2Config", num_attention_heads=2, num_key_value_heads=1, sliding_window=9, layer_types=["sliding_attention", "full_attention"])),
    # Mistral Small 3.1 and Ministral 3: a vision model next to it, and factors of queries beyond the original context
    "mistral3": ("ministral3", 45, BF16, lambda: mistral3(
        head_dim=6, rope_parameters=dict(YARN, original_max_position_embeddings=64, rope_theta=1e4, llama_4_scaling_beta=0.1, mscale=1.0,
                                         mscale_all_dim=1.0))),
    # GLM-4.5: the routing of DeepSeek-V3 with ordinary keys, half of which are rotated
    "glm4-moe": ("glm4_moe", 37, BF16, lambda: small(
        "Glm4MoeConfig", head_dim=8, attention_bias=True, use_qk_norm=True, moe_intermediate_size=7, n_routed_experts=6, num_experts_per_tok=3,
        n_group=3, topk_group=2, n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=1.6, num_mtp_layers=0)),
    # GPT-NeoX: two norms in parallel; in series without biases of attention, a fraction of a head rotated
    "gpt-neox": ("gpt_neox", 40, BF16, lambda: neox()),
    "gpt-neox-serial": ("gpt_neox", 33, F32, lambda: neox(
        hidden_size=18, num_attention_heads=3, use_parallel_residual=False, attention_bias=False, hidden_act="gelu_new",
        rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=5e3, partial_rotary_factor=0.7))),
    # StableLM: a quarter of a head rotated; in parallel after one norm
    "stablelm": ("stablelm", 40, BF16, lambda: stablelm(use_qkv_bias=True)),
    "stablelm-parallel": ("stablelm", 33, BF16, lambda: stablelm(
        num_key_value_heads=1, use_parallel_residual=True, rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5))),
    # Nemotron and Arcee: squared ReLU without a gate
    "nemotron": ("nemotron", 40, BF16, lambda: small("NemotronConfig", head_dim=8, num_key_value_heads=1, attention_bias=True, mlp_bias=True)),
    "arcee": ("arcee", 40, BF16, lambda: small("ArceeConfig", rope_parameters=dict(YARN, rope_theta=1e4))),
    # InternLM 2: Q, K and V in one tensor, by KV head
    "internlm2": ("llama", 40, BF16, lambda: small(
        "LlamaConfig", attention_bias=True, rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=1e6))),
    # OLMoE: norms over all heads, routed experts
    "olmoe": ("olmoe", 40, BF16, lambda: small("OlmoeConfig", num_experts=5, num_experts_per_tok=2, norm_topk_prob=False)),
    # dots.llm1, Solar Open, MiniMax-M2: the routing of DeepSeek-V3 with three kinds of attention
    "dots1": ("dots1", 37, BF16, lambda: small(
        "Dots1Config", head_dim=6, moe_intermediate_size=7, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=2,
        first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=1.4, sliding_window=9, max_window_layers=1)),
    "solar-open": ("solar_open", 40, BF16, lambda: without("intermediate_size", small(
        "SolarOpenConfig", head_dim=6, moe_intermediate_size=7, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1))),
    # GLM-4.7-Flash and Youtu-LLM: the latent attention of DeepSeek-V3, the second without experts
    "glm4-moe-lite": ("glm4_moe_lite", 40, BF16, lambda: deepseek(
        "Glm4MoeLiteConfig", num_key_value_heads=4, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1, num_hidden_layers=3,
        mlp_layer_types=["dense", "sparse", "dense"], routed_scaling_factor=1.3, rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    "youtu": ("youtu", 33, BF16, lambda: without("first_k_dense_replace", deepseek(
        "YoutuConfig", num_attention_heads=3, num_key_value_heads=3, tie_word_embeddings=True))),
    "minimax-m2": ("minimax_m2", 40, BF16, lambda: small(
        "MiniMaxM2Config", head_dim=8, num_local_experts=6, num_experts_per_tok=2, rotary_dim=4)),
    # Third shapes of families that have two above, with odd sizes. A model's seed follows from its
    # place in this table, so new models come last.
    "gemma3-mqa": ("gemma3", 37, F16, lambda: gemma(
        "Gemma3TextConfig", hidden_size=15, intermediate_size=23, num_attention_heads=5, num_key_value_heads=1, head_dim=6,
        num_hidden_layers=2, query_pre_attn_scalar=9, sliding_window=5, layer_types=["sliding_attention", "full_attention"])),
    "mixtral-mha": ("mixtral", 33, F32, lambda: llama_like(
        "MixtralConfig", hidden_size=17, head_dim=6, num_attention_heads=3, num_key_value_heads=3, intermediate_size=13,
        num_local_experts=4, num_experts_per_tok=3, num_hidden_layers=1)),
    "qwen3-moe-mqa": ("qwen3_moe", 37, F16, lambda: llama_like(
        "Qwen3MoeConfig", hidden_size=15, head_dim=10, num_attention_heads=3, num_key_value_heads=1, moe_intermediate_size=7,
        num_experts=5, num_experts_per_tok=1, norm_topk_prob=True, num_hidden_layers=1)),
    "gpt-oss-mha": ("gpt_oss", 33, F32, lambda: gpt_oss(
        hidden_size=15, intermediate_size=9, num_attention_heads=5, num_key_value_heads=5, head_dim=6, num_local_experts=4,
        num_experts_per_tok=3, num_hidden_layers=1, sliding_window=5, layer_types=["sliding_attention"])),
    "olmo2-mqa": ("olmo2", 37, F16, lambda: olmo(
        "Olmo2Config", hidden_size=30, intermediate_size=23, num_attention_heads=5, num_key_value_heads=1, num_hidden_layers=1)),
    "glm4-mha": ("glm4", 37, F16, lambda: glm(
        "Glm4Config", hidden_size=15, intermediate_size=13, num_attention_heads=3, num_key_value_heads=3, head_dim=8, num_hidden_layers=1)),
    "starcoder2-mha": ("starcoder2", 37, F16, lambda: starcoder2(
        hidden_size=30, intermediate_size=17, num_attention_heads=3, num_key_value_heads=3, num_hidden_layers=1, sliding_window=None)),
    # Phi-4-mini's longrope on a part of a head: within its original length; beyond it, with a window
    "phi3-partial-short": ("phi3", 33, F32, lambda: phi3(
        hidden_size=42, intermediate_size=23, num_attention_heads=3, num_key_value_heads=3, original_max_position_embeddings=48,
        partial_rotary_factor=0.75)),
    "phi3-partial-window": ("phi3", 37, F16, lambda: phi3(
        hidden_size=30, intermediate_size=19, num_attention_heads=5, num_key_value_heads=1, original_max_position_embeddings=16,
        sliding_window=9, partial_rotary_factor=0.7)),
    "deepseek-v2-odd": ("deepseek_v2", 37, F16, lambda: deepseek(
        "DeepseekV2Config", hidden_size=15, num_attention_heads=5, q_lora_rank=7, kv_lora_rank=15, qk_nope_head_dim=3, qk_rope_head_dim=8,
        v_head_dim=5, intermediate_size=23, moe_intermediate_size=7, n_routed_experts=7, num_experts_per_tok=3, n_shared_experts=1)),
    "deepseek-v3-odd": ("deepseek_v3", 33, F32, lambda: deepseek(
        "DeepseekV3Config", hidden_size=17, num_attention_heads=3, q_lora_rank=7, kv_lora_rank=9, qk_nope_head_dim=3, qk_rope_head_dim=4,
        v_head_dim=5, intermediate_size=21, moe_intermediate_size=5, n_routed_experts=9, num_experts_per_tok=2, n_group=3, topk_group=1,
        norm_topk_prob=True, routed_scaling_factor=1.8)),
}

def count_shapes(build):
    table = subprocess.run([f"{build}/bin/kvdim-collect", "--shape", "list"], check=True, capture_output=True, text=True).stdout
    for name in (line.split()[0] for line in table.splitlines()[1:]):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([f"{build}/tests/tool_shape", name, folder, "config=1"], check=True)
            config = transformers.AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        print(name, sum(p.numel() for p in model.parameters()))

if __name__ == "__main__":
    if sys.argv[1] == "--count":
        count_shapes(sys.argv[2])
        sys.exit()
    os.makedirs(sys.argv[1], exist_ok=True)
    for i, (name, (family, n, dtype, config)) in enumerate(MODELS.items()):
        if not sys.argv[2:] or name in sys.argv[2:]:
            make(sys.argv[1], name, 100 + i, family, config(), n, dtype)
