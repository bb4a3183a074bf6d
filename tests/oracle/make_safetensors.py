"""Writes tests/data/every_dtype.safetensors with the reference library: what our reader is held against.

usage: make_safetensors.py   (needs torch and safetensors)
"""
import os
import torch
from safetensors.torch import save_file

f = torch.tensor([[1.5, -2.25, 0.0], [65504.0, -1.0, 0.333251953125]])
save_file(
    {
        "f32": f,
        "f16": f.to(torch.float16),
        "bf16": f.to(torch.bfloat16),
        "scalar": torch.tensor(7.0),
        "empty": torch.zeros(0, 5),
        "rank4": torch.arange(24, dtype=torch.float32).reshape(2, 3, 2, 2),
        "i64": torch.tensor([1, 2, 3]),
        "u8": torch.tensor([1, 2, 3], dtype=torch.uint8),
        "bool": torch.tensor([True, False]),
        "f64": torch.tensor([1.0], dtype=torch.float64),
        "f8": torch.zeros(5).to(torch.float8_e4m3fn),
        "name with \u00e4 and \"quotes\"": torch.tensor([3.0]),
    },
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "every_dtype.safetensors"),
    metadata={"format": "pt", "made_by": "safetensors"},
)
