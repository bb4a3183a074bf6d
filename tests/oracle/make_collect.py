"""Q, K (before and after RoPE) and V of kvdim-6m by Hugging Face Transformers, for test_kvdim_collect.sh.

usage: make_collect.py data/models/kvdim-6m tests/data/collect_kvdim6m.h5

Two sequences of ids; float32 on the CPU. Arrays [layer][head][token][dim], tokens of the sequences
one after another; attribute `layers` names the layers kept. rows: the ids, one CSV line a sequence.
"""
import sys
import h5py, numpy as np, torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama import modeling_llama

path, out = sys.argv[1:]
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
tok = PreTrainedTokenizerFast(tokenizer_file=path + "/tokenizer.json")
c = model.config
layers = [0, c.num_hidden_layers - 1]
rows = [tok.encode("The cat sat on a mat", add_special_tokens=False)[:6],
        tok.encode("int main(void)", add_special_tokens=False)[:4]]
seen = []  # per call of RoPE, one per layer
plain = modeling_llama.apply_rotary_pos_emb

def rope(q, k, *a, **kw):
    r = plain(q, k, *a, **kw)
    seen.append((q, k, *r))
    return r

modeling_llama.apply_rotary_pos_emb = rope
values = []
for l in model.model.layers:
    l.self_attn.v_proj.register_forward_hook(lambda m, i, o: values.append(o))
got = {n: [] for n in ("q", "k", "v", "q_pre", "k_pre")}
with torch.no_grad():
    for ids in rows:
        seen.clear(); values.clear()
        model(torch.tensor([ids]))
        assert len(seen) == len(values) == c.num_hidden_layers
        d = c.hidden_size // c.num_attention_heads
        pick = lambda i: np.stack([seen[l][i][0].numpy() for l in layers])
        got["q_pre"].append(pick(0)); got["k_pre"].append(pick(1))
        got["q"].append(pick(2)); got["k"].append(pick(3))
        got["v"].append(np.stack([values[l][0].numpy().reshape(len(ids), -1, d).transpose(1, 0, 2) for l in layers]))
with h5py.File(out, "w") as f:
    f.attrs["layers"] = layers
    f.attrs["rows"] = "".join(",".join(map(str, r)) + "\n" for r in rows)
    f.attrs["made_by"] = "make_collect.py, torch %s" % torch.__version__
    for n, x in got.items():
        f.create_dataset(n, data=np.concatenate(x, axis=2).astype("f4"), compression="gzip", shuffle=True)
