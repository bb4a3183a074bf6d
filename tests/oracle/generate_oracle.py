"""Writes tests/data/generate_expected.csv: what Transformers generates behind prompts with its own cache, for test_generate.c.

usage: generate_oracle.py data/models/kvdim-6m data/texts/reviews.txt tests/data/generate_expected.csv

Per prompt four lines: its ids; the N ids of greedy decoding in float32; the N ids that follow it in the text; log p of each of those,
the ones before it given.
"""
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

N, WINDOW, PROMPTS = 24, 120, (37, 50, 64, 80, 91)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
model.generation_config.eos_token_id = None  # it goes on to N
ids = AutoTokenizer.from_pretrained(sys.argv[1])(open(sys.argv[2], encoding="utf-8").read())["input_ids"]
with torch.no_grad(), open(sys.argv[3], "w") as f:
    for i, n in enumerate(PROMPTS):
        window = torch.tensor([ids[i * WINDOW:i * WINDOW + n + N]])
        prompt, after = window[:, :n], window[0, n:]
        made = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=N, do_sample=False)[0, n:]
        log_p = torch.log_softmax(model(window).logits[0, n - 1:-1].double(), dim=-1).gather(1, after[:, None])[:, 0]
        for row in (prompt[0].tolist(), made.tolist(), after.tolist()):
            f.write(",".join(map(str, row)) + "\n")
        f.write(",".join("%.9g" % x for x in log_p.tolist()) + "\n")
