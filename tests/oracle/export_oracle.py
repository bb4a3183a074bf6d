#!/usr/bin/env python3
"""Perplexity of exported checkpoints by unmodified Hugging Face Transformers, for tests/export/test_kvdim_export.sh.

usage: export_oracle.py DATA TOKENS SEQ_LEN NAME=DIR...      (rows of tests/data/export_expected.csv; the test has the command lines)

DATA is a text, tokenised by the checkpoint's own tokenizer (the first TOKENS ids in rows of SEQ_LEN), or FILE.csv with one
sequence of token ids per line, of which TOKENS and SEQ_LEN must be the size. Weights are read as they are stored and used in float32.
"""
import math
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

data, tokens, seq_len = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for argument in sys.argv[4:]:
    name, folder = argument.split("=", 1)
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert not any(info.values()), info  # every tensor was expected, every expected tensor was there
    model = model.float().eval()
    if data.endswith(".csv"):
        ids = [[int(x) for x in line.split(",")] for line in open(data)]
    else:
        ids = AutoTokenizer.from_pretrained(folder)(open(data, encoding="utf-8").read())["input_ids"][:tokens]
        ids = [ids[i:i + seq_len] for i in range(0, tokens, seq_len)]
    assert sum(map(len, ids)) == tokens and all(len(x) == seq_len for x in ids)
    nll = n = 0
    with torch.no_grad():
        for x in torch.tensor(ids):
            lp = model(x[None]).logits[0, :-1].double().log_softmax(-1)
            nll -= lp.gather(-1, x[1:, None]).sum().item()
            n += len(x) - 1
    print(f"{name},{math.exp(nll / n):.6f}", flush=True)
