#!/usr/bin/env python3
"""What unmodified Hugging Face Transformers gives.

usage: transformers_oracle.py generate MODEL TEXT OUT.csv
       transformers_oracle.py perplexity DATA TOKENS SEQ_LEN NAME=DIR...

generate writes tests/data/generate_expected.csv for tests/evaluate/test_generate.c, with Transformers' own cache, from
data/models/kvdim-6m and data/texts/reviews.txt. Per prompt four lines: its ids; the N ids of greedy decoding in float32;
the N ids that follow it in the text; log p of each of those, the ones before it given.

perplexity prints rows of tests/data/export_expected.csv for tests/export/test_kvdim_export.sh, which has the command lines.
DATA is a text, tokenised by the checkpoint's own tokenizer (the first TOKENS ids in rows of SEQ_LEN), or FILE.csv with one
sequence of token ids per line, of which TOKENS and SEQ_LEN must be the size. Weights are read as they are stored and used
in float32.
"""
import math
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

N, WINDOW, PROMPTS = 24, 120, (37, 50, 64, 80, 91)


def ids_of(folder, text):
    return AutoTokenizer.from_pretrained(folder)(open(text, encoding="utf-8").read())["input_ids"]


def generate(folder, text, out):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # it goes on to N
    ids = ids_of(folder, text)
    with torch.no_grad(), open(out, "w") as f:
        for i, n in enumerate(PROMPTS):
            window = torch.tensor([ids[i * WINDOW:i * WINDOW + n + N]])
            prompt, after = window[:, :n], window[0, n:]
            made = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=N, do_sample=False)[0, n:]
            log_p = torch.log_softmax(model(window).logits[0, n - 1:-1].double(), dim=-1).gather(1, after[:, None])[:, 0]
            for row in (prompt[0].tolist(), made.tolist(), after.tolist()):
                f.write(",".join(map(str, row)) + "\n")
            f.write(",".join("%.9g" % x for x in log_p.tolist()) + "\n")


def perplexity(data, tokens, seq_len, *checkpoints):
    tokens, seq_len = int(tokens), int(seq_len)
    for argument in checkpoints:
        name, folder = argument.split("=", 1)
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
        assert not any(info.values()), info  # every tensor was expected, every expected tensor was there
        model = model.float().eval()
        if data.endswith(".csv"):
            ids = [[int(x) for x in line.split(",")] for line in open(data)]
        else:
            ids = ids_of(folder, data)[:tokens]
            ids = [ids[i:i + seq_len] for i in range(0, tokens, seq_len)]
        assert sum(map(len, ids)) == tokens and all(len(x) == seq_len for x in ids)
        nll = n = 0
        with torch.no_grad():
            for x in torch.tensor(ids):
                lp = model(x[None]).logits[0, :-1].double().log_softmax(-1)
                nll -= lp.gather(-1, x[1:, None]).sum().item()
                n += len(x) - 1
        print(f"{name},{math.exp(nll / n):.6f}", flush=True)


if __name__ == "__main__":
    command = {"generate": generate, "perplexity": perplexity}.get(sys.argv[1] if len(sys.argv) > 1 else "")
    command(*sys.argv[2:]) if command else sys.exit(__doc__)
