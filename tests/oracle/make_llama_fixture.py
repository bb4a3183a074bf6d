"""Makes tests/data/llama/: small Llama checkpoints and what Hugging Face Transformers computes from them.

usage: make_llama_fixture.py OUTDIR [--text TEXT --model NAME=DIR ...] [--perplexity]

Writes, in float32 with eager attention on the CPU:
  OUTDIR/{gqa,mha,mqa}/    three random LlamaForCausalLM checkpoints as save_pretrained writes them, and expected.safetensors
  OUTDIR/NAME.safetensors  for each --model (too large to be copied): ids are the first tokens of TEXT
  OUTDIR/perplexity.json   with --perplexity: over the first 64 windows of 1024 tokens of TEXT, for each --model

Tensors of an expected file, all float32: id [n]; row [r] and layer [l], the rows and layers that are kept;
q_pre, q, k_pre, k, v, o [l][r][heads * d_head]; logits [r][vocab]. q_pre and k_pre are before RoPE, o is the
attention output before W_O.
"""
import argparse, json, os, shutil, sys, time

# Transformers asks for a package that has the name of a script next to this one.
sys.path[:] = [p for p in sys.path if os.path.abspath(p) != os.path.dirname(os.path.abspath(__file__))]
import torch, transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

ap = argparse.ArgumentParser()
ap.add_argument("outdir")
ap.add_argument("--text")
ap.add_argument("--model", action="append", default=[])
ap.add_argument("--perplexity", action="store_true")
a = ap.parse_args()
torch.set_num_threads(2)

rotary = modeling_llama.apply_rotary_pos_emb
seen = {k: [] for k in ("q_pre", "q", "k_pre", "k", "v", "o")}

def recording_rotary(*args, **kw):
    q, k = rotary(*args, **kw)
    for name, x in (("q", q), ("k", k)):  # [1][heads][n][d_head]
        seen[name].append(x[0].transpose(0, 1).flatten(1))
    return q, k

modeling_llama.apply_rotary_pos_emb = recording_rotary

def load(path):
    model = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    for layer in model.model.layers:
        at = layer.self_attn
        for name, module in (("q_pre", at.q_proj), ("k_pre", at.k_proj), ("v", at.v_proj)):
            module.register_forward_hook(lambda m, i, out, name=name: seen[name].append(out[0]))
        at.o_proj.register_forward_pre_hook(lambda m, i: seen["o"].append(i[0][0]))
    return model

@torch.no_grad()
def write_expected(model, ids, rows, layers, path):
    for v in seen.values():
        v.clear()
    logits = model(torch.tensor([ids]), use_cache=False).logits[0]
    out = {k: torch.stack([v[l][rows] for l in layers]).contiguous() for k, v in seen.items()}
    out["logits"] = logits[rows].contiguous()
    for name, x in (("id", ids), ("row", rows), ("layer", layers)):
        out[name] = torch.tensor(x, dtype=torch.float32)
    save_file(out, path)
    print(path, os.path.getsize(path), "bytes")

def small(name, dtype, seed, **kw):
    torch.manual_seed(seed)
    config = LlamaConfig(bos_token_id=0, eos_token_id=1, initializer_range=0.2, **kw)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for key, w in model.named_parameters():
            if "norm" in key:
                w.uniform_(0.5, 1.5)
    folder = os.path.join(a.outdir, name)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder)
    os.remove(os.path.join(folder, "generation_config.json"))
    n = min(100, config.max_position_embeddings)
    ids = torch.randint(0, config.vocab_size, (n,)).tolist()
    write_expected(load(folder), ids, [0, 1, 2, 17, n // 2, n - 1], list(range(config.num_hidden_layers)),
                   os.path.join(folder, "expected.safetensors"))
    print(folder, sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)), "bytes")

os.makedirs(a.outdir, exist_ok=True)
small("gqa", torch.bfloat16, 1, vocab_size=160, hidden_size=48, intermediate_size=56, num_hidden_layers=2,
      num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=128, rms_norm_eps=1e-5,
      tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=10000.0))
small("mha", torch.float16, 2, vocab_size=96, hidden_size=64, intermediate_size=40, num_hidden_layers=2,
      num_attention_heads=2, num_key_value_heads=2, head_dim=32, max_position_embeddings=256, rms_norm_eps=1e-6,
      tie_word_embeddings=False,
      rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                           high_freq_factor=4.0, original_max_position_embeddings=64))
small("mqa", torch.float32, 3, vocab_size=100, hidden_size=36, intermediate_size=40, num_hidden_layers=1,
      num_attention_heads=3, num_key_value_heads=1, head_dim=64, max_position_embeddings=100, rms_norm_eps=1e-5,
      tie_word_embeddings=True, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0))

numbers = {}
for item in a.model:
    name, path = item.split("=", 1)
    tok = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
    ids = tok.encode(open(a.text, encoding="utf-8").read(), add_special_tokens=False).ids
    model = load(path)
    last = model.config.num_hidden_layers - 1
    write_expected(model, ids[:300], [1, 150, 299], [0, last // 2, last], os.path.join(a.outdir, name + ".safetensors"))
    if a.perplexity:
        start, nll, top1, n = time.time(), 0.0, 0, 0
        with torch.no_grad():
            for w in range(64):
                x = torch.tensor([ids[w * 1024 : (w + 1) * 1024]])
                assert x.shape[1] == 1024
                for v in seen.values():
                    v.clear()
                lp = torch.log_softmax(model(x, use_cache=False).logits[0, :-1].double(), -1)
                nll -= lp.gather(1, x[0, 1:, None]).sum().item()
                top1 += (lp.argmax(-1) == x[0, 1:]).sum().item()
                n += 1023
        numbers[name] = dict(text=os.path.basename(a.text), windows=64, seq_len=1024, n_predictions=n, nll=nll / n,
                             perplexity=float(torch.tensor(nll / n, dtype=torch.float64).exp()), top1=top1 / n,
                             transformers=transformers.__version__, torch=torch.__version__)
        print(name, numbers[name], round(time.time() - start), "s")
if a.perplexity:
    with open(os.path.join(a.outdir, "perplexity.json"), "w") as f:
        json.dump(numbers, f, indent=1)
        f.write("\n")
