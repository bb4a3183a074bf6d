"""Writes tests/data/floats.safetensors: casts to FP8 by PyTorch, blocks in MXFP4 and NVFP4 by torchao, codes per channel from their
definitions, for test_floats.c.

usage: make_floats.py tests/data/floats.safetensors
       make_floats.py --dtypes tests/data/every_dtype.safetensors   a tensor of every type, for test_safetensors.c

fp8_*  float32 numbers, among them all numbers of E4M3 and E5M2, the middles between neighbours and what lies next to these, and what
       torch.float8_e4m3fn and torch.float8_e5m2 read them as, clamped to the largest finite number first; scaled: divided by 0.037
       before and multiplied by it afterwards, as vLLM's FP8 cache does
mx_*   rows of 96 numbers, and what torchao's MX tensors read (E2M1, blocks of 32, scales by the floor of the exponent)
nv_*   the same for torchao's NVFP4 tensors (blocks of 16), without a scale per tensor and with 0.0123
vid_*  rows of 24 numbers in groups of 32 rows: keys and values of VidKV by torch.fft and PyTorch, 12 channels with 2 bits; keys with the
       whole spectrum, as the public code has it
comet  the same rows by torch.fake_quantize_per_channel_affine, 4 bits, one symmetric scale per channel

torchao raises scales of blocks below 2^-6 to that, which the format does not ask for; such blocks are left out.
"""
import sys

import torch
from safetensors.torch import save_file

if sys.argv[1] == "--dtypes":
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
        sys.argv[2],
        metadata={"format": "pt", "made_by": "safetensors"},
    )
    sys.exit()

from torchao.prototype.mx_formats.kernels import f4_unpacked_to_f32, unpack_uint4
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

torch.manual_seed(17)
out = {}

# ---- FP8 -------------------------------------------------------------------------------------------
parts = [torch.randn(600) * 10.0 ** torch.randint(-5, 6, (600,))]
for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
    every = torch.arange(256, dtype=torch.uint8).view(kind).float()
    every = every[every.isfinite()].sort().values
    middle = (every[1:] + every[:-1]) / 2
    up, down = torch.tensor(torch.inf), torch.tensor(-torch.inf)
    parts += [every, middle, torch.nextafter(middle, up), torch.nextafter(middle, down)]
x = torch.cat(parts)
out["fp8_x"] = x
for name, kind in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
    largest = torch.finfo(kind).max
    out["fp8_" + name] = x.clamp(-largest, largest).to(kind).float()
    scale = torch.tensor(0.037)
    out["fp8_" + name + "_scaled"] = (x / scale).clamp(-largest, largest).to(kind).float() * scale

# ---- FP4 in blocks ---------------------------------------------------------------------------------


def four(codes):
    return f4_unpacked_to_f32(unpack_uint4(codes))


x = torch.randn(40, 96) * 10.0 ** torch.linspace(-4, 4, 40)[:, None]
x[3, :32] = 0
x[4] = torch.round(torch.randn(96) * 8) / 4  # numbers half way between two of the format
x[5, 7] = 1e4
scale, codes = to_mx(x, torch.float4_e2m1fn_x2, 32, ScaleCalculationMode.FLOOR)[:2]
out["mx_x"] = x
out["mx"] = (four(codes).reshape(40, 3, 32) * scale.float()[..., None]).reshape(40, 96)

x = torch.randn(40, 96) * 10.0 ** torch.linspace(-0.5, 2.5, 40)[:, None]
x[4] = torch.round(torch.randn(96) * 8) / 4
out["nv_x"] = x
for name, tensor in (("nv", None), ("nv_scaled", torch.tensor(0.0123))):
    scale, codes = nvfp4_quantize(x, 16, tensor)
    whole = scale.float().reshape(40, 6, 1) * (1 if tensor is None else tensor)
    out[name] = (four(codes).reshape(40, 6, 16) * whole).reshape(40, 96)

# ---- codes per channel -----------------------------------------------------------------------------


def groups(x, code, size=32):
    """Applies a code to groups of `size` rows of each column."""
    return torch.cat([code(part) for part in x.split(size)])


def two_bits(x):
    low, high = x.min(0).values, x.max(0).values
    scale, zero = ((high - low) / 3).half().float(), low.half().float()
    return ((x - zero) / scale).round().clamp(0, 3) * scale + zero


def mean_magnitude(x):
    return x.abs().double().mean(0).float().half().float()


def signs(x):
    return torch.where(x >= 0, 1.0, -1.0) * mean_magnitude(x)


def ternary(x):
    scale = mean_magnitude(x)
    return torch.where(x > scale / 2, scale, torch.where(x < -scale / 2, -scale, torch.zeros(())))


x = torch.randn(72, 24) * (0.2 + torch.rand(24)) + torch.randn(24)
out["vid_x"] = x
wide = (x.max(0).values - x.min(0).values).topk(12).indices
easy = torch.tensor([j for j in range(24) if j not in wide])
keys = torch.empty_like(x)
keys[:, wide] = groups(x[:, wide], two_bits)
spectrum = torch.fft.fft(x[:, easy].double(), dim=-1)
read = torch.complex(groups(spectrum.real.float(), signs), groups(spectrum.imag.float(), signs))
keys[:, easy] = torch.fft.ifft(read, dim=-1).real
out["vid_keys"] = keys
out["vid_values"] = groups(x, ternary)
scale = (x.abs().max(0).values / 7).half().float()
out["comet"] = torch.fake_quantize_per_channel_affine(x, scale, torch.zeros(24, dtype=torch.int32), 1, -7, 7)

save_file({k: v.to(torch.float32).contiguous() for k, v in out.items()}, sys.argv[1])
