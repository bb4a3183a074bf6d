"""Compares the bytes that kvdim-eval counts with those of the formulas in docs/methods.md, without NumPy.

usage: method_bytes.py SUMMARY.json PROMPT TOKENS LAYERS KV_HEADS D_HEAD D_MODEL

SUMMARY.json is the output of kvdim-eval --json --cache f16 for sequences of TOKENS tokens. Prints a line for each row that
differs. A bits method is described by the bits of one block of one KV head and side, a tokens method by the entries that a
KV head holds.
"""
import json
import math
import sys

PROMPT, TOKENS, LAYERS, KV, D, D_MODEL = (int(x) for x in sys.argv[2:8])


def ceil(a, b):
    return -(-a // b)


def tokens(value, of):
    """A budget below 1 is a fraction."""
    return int(value * of) if value < 1 else int(value)


class Holds:
    """Tokens methods: entries of a head after the prompt, and after a step that found m of them and its own."""

    def __init__(self, first, step=lambda m, n: m):
        self.first, self.step = first, step

    def rows(self):
        m = self.first
        for n in range(PROMPT + 1, TOKENS + 1):
            read = m + 1
            m = self.step(read, n)
            yield m * 32 * D, 0, read * 32 * D


class Selects:
    """All tokens are stored. bits(n): side information; read(n): entries that a step reads, None if it depends on data."""

    def __init__(self, bits, read):
        self.bits, self.read = bits, read

    def rows(self):
        for n in range(PROMPT + 1, TOKENS + 1):
            some = self.read(n)
            yield n * 32 * D, self.bits(n), math.nan if some is None else some * 32 * D + self.bits(n)


class Codes:
    """Bits methods: (newest tokens that stay exact, tokens of a block) of keys and of values, and the bits of a block."""

    def __init__(self, keys, values, code, sink=0):
        self.window, self.code, self.sink = (keys, values), code, sink

    def rows(self):
        done, payload, side = [0, 0], [0, 0], [0, 0]

        def fill(n, prompt):
            for s, (newest, block) in enumerate(self.window):
                end = max(0, n - newest) // block * block
                while done[s] < end:
                    some = end - done[s] if prompt else min(block, end - done[s])
                    exact = max(0, min(self.sink - done[s], some))
                    p, q = self.code(s, some - exact, prompt) if some > exact else (0, 0)
                    payload[s] += p + exact * 16 * D
                    side[s] += q
                    done[s] += some

        fill(PROMPT, True)
        for n in range(PROMPT + 1, TOKENS + 1):
            read = sum((n - done[s]) * 16 * D + payload[s] + side[s] for s in (0, 1))
            fill(n, False)
            yield sum((n - done[s]) * 16 * D + payload[s] for s in (0, 1)), sum(side), read


class Shortens:
    """Methods of the dims and layers axes: payload and side information of n tokens, all of which a step reads."""

    def __init__(self, bits):
        self.bits = bits

    def rows(self):
        for n in range(PROMPT + 1, TOKENS + 1):
            payload, side = self.bits(n)
            yield payload, side, payload + side


def think(k):
    pruned, channels = max(0, PROMPT - int(k["window"])), int(k["p"] * D)
    return Shortens(lambda n: (n * 32 * D - pruned * 16 * channels, D))


def strawman(k):
    width = int((1 - k["p"]) * D + 0.5)
    return Shortens(lambda n: (n * 32 * width, 32 * D * width))


def palu(k):
    rank = int((1 - k["p"]) * k["heads"] * D + 0.5) / k["heads"]
    return Shortens(lambda n: (n * 32 * rank, 0))


def xkv(k):
    bits, wide = 0, KV * D
    for first in range(0, LAYERS, int(k["layers"])):
        group = min(int(k["layers"]), LAYERS - first)
        for share in (k["rank_k"], k["rank_v"]):
            rank = min(int(share * group * wide + 0.5) if share < 1 else int(share), PROMPT)
            bits += PROMPT * wide * 16 if group == 1 else 16 * rank * (PROMPT + group * wide)
    return Shortens(lambda n: (bits / LAYERS / KV + (n - PROMPT) * 32 * D, 0))


def each(bits, side):
    """Every token by itself."""
    return Codes((0, 1), (0, 1), lambda s, n, prompt: (n * bits[s] * D, n * side[s]))


def kivi(k):
    group, residual = int(k["group"]), int(k["residual"])
    return Codes((0, residual or group), (residual, 1),
                 lambda s, n, prompt: (n * D * k["bits"], 32 * (n * ceil(D, group) if s else D * ceil(n, group))))


def zipcache(k):
    def code(s, n, prompt):
        high = int(k["share"] * n + 0.5)
        return (D * (high * k["high"] + (n - high) * k["low"]),
                n + (32 * n + 16 * D if s else 32 * D * ((high > 0) + (n > high))))

    return Codes((0, int(k["block"])), (0, int(k["block"])), code)


def gear(k):
    def code(s, n, prompt):
        lines, along = (n, D) if s else (D, n)
        apart = 2 * math.floor(k["outliers"] * along / 2 + 0.5)
        rank = min(k["rank" if prompt else "rank2"], n, D)
        return n * D * k["bits"], lines * (32 * ceil(along, int(k["group"])) + 32 * apart) + 16 * rank * (n + D)

    return Codes((0, int(k["buffer"])), (0, int(k["buffer"])), code)


def rotatekv(k):
    group = int(k["group"])
    side = ceil(KV * D, group) * 32 / KV, ceil(D, group) * 32
    return Codes((0, 1), (0, 1), lambda s, n, prompt: (n * D * k["bits"], n * side[s]), int(k["sink"]))


def turboquant(k):
    whole, more = int(k["bits"]), round((k["bits"] % 1) * D)
    block = int(k["group"]) if more else 1

    def code(s, n, prompt):
        norms = 1 + (k["qjl"] > 0 and s == 0)
        return n * (D * whole + more), n * 16 * norms * (2 if more else 1) + (D if more else 0)

    return Codes((0, block), (0, block), code)


def vidkv(k):
    group, block, two = int(k["group"]), int(k["residual"] or k["group"]), int((k["k"] - 1) * D)

    def code(s, n, prompt):
        groups = ceil(n, group)
        if s:
            return (8 * ceil(n * D, 5), 16 * D * groups) if k["ternary"] else (2 * n * D, 32 * D * groups)
        return n * (D + two), groups * (32 * two + 16 * (D - two)) + D

    return Codes((0, block), (0, block), code)


def comet(k):
    group = int(k["group"])
    return Codes((0, group), (0, group),
                 lambda s, n, prompt: (n * D * k["bits"], D * ceil(n, group) * (16 if k["symmetric"] else 32)))


def xquant(k):
    group, wide = int(k["group"]), KV * D
    if not k["latent"]:
        bits = D_MODEL * k["bits"] / 2 / KV, ceil(D_MODEL, group) * 16 / KV
        return Codes((0, 1), (0, 1), lambda s, n, prompt: (n * bits[0], n * bits[1]))
    return Codes((0, group), (0, 1), lambda s, n, prompt: (
        n * D * k["bits"], 32 / KV * (n * ceil(wide, group) if s else wide * ceil(n, group))))


def floating(block):
    spare = ceil(D, block) * block - D
    return each((4, 4), (ceil(D, block) * 8 + 4 * spare,) * 2)


def snapkv(k):
    return Holds(min(PROMPT, min(PROMPT, int(k["window"])) + tokens(k["budget"], PROMPT)))


def once(k):
    return Holds(min(PROMPT, tokens(k["budget"], PROMPT)))


def always(limit):
    return Holds(min(PROMPT, limit), lambda m, n: min(m, limit))


def scissorhands(k):
    budget, recent = tokens(k["budget"], TOKENS), tokens(k["recent"], TOKENS)
    left = lambda m: m if m <= budget else max(m - max(int(k["drop"]), m - budget), min(recent, m))
    return Holds(left(PROMPT), lambda m, n: left(m))


def elasticcache(k):
    most = lambda n: math.ceil(k["budget"] * n) if k["budget"] < 1 else k["budget"]
    return Holds(min(PROMPT, tokens(k["budget"], PROMPT)), lambda m, n: m - (m > most(n)))


def quest(k):
    page = int(k["page"])

    def read(n):
        pages, wanted = ceil(n, page), max(1, ceil(tokens(k["budget"], n), page))
        return n - (pages - 1) * page + (min(wanted, pages) - 1) * page

    return Selects(lambda n: ceil(n, page) * 32 * D, read)


METHOD = {
    "none": lambda k: Holds(PROMPT),
    "think": think, "strawman": strawman, "palu": palu, "xkv": xkv,
    "h2o": lambda k: always(tokens(k["heavy"], TOKENS) + tokens(k["recent"], TOKENS)),
    "d2o": lambda k: METHOD["h2o"](k),
    "keyformer": lambda k: always(tokens(k["keys"], TOKENS) + tokens(k["recent"], TOKENS)),
    "streaming": lambda k: always(int(k["sink"]) + tokens(k["recent"], TOKENS)),
    "tova": lambda k: always(max(1, tokens(k["budget"], TOKENS))),
    "scissorhands": scissorhands,
    "snapkv": snapkv, "adakv": snapkv, "kvcrush": snapkv, "ems": snapkv, "cake": snapkv, "pyramidkv": snapkv,
    "knorm": once, "keydiff": once, "expectedattention": once, "kvzip": once, "prefixkv": once,
    "elasticcache": elasticcache,
    "quest": quest,
    "alisa": lambda k: Selects(lambda n: n * k["history"] * 16, lambda n: max(1, tokens(k["budget"], n))),
    "a2ats": lambda k: Selects(lambda n: n * math.ceil(math.log2(k["size"])), lambda n: None),
    "kivi": kivi, "zipcache": zipcache, "gear": gear, "rotatekv": rotatekv, "turboquant": turboquant, "vidkv": vidkv,
    "comet": comet, "xquant": xquant,
    "hetero": lambda k: each((k["k"], k["v"]), (32, 32)),
    "fp8": lambda k: each((8, 8), (0, 0)),
    "mxfp4": lambda k: floating(32),
    "nvfp4": lambda k: floating(16),
    "allot": lambda k: Codes((0, 1), (0, 1), lambda s, n, prompt: (n * D * k["bits"], 0), int(k["sink"])),
}


def main():
    with open(sys.argv[1]) as f:
        rows = json.load(f)["rows"]
    seen = sum(range(PROMPT + 1, TOKENS + 1))
    for row in rows:
        name, settings = row["method"], row["settings"]
        keys = dict(x.split(".", 1)[1].split("=") for x in settings.split(",") if x)
        stored = side = read = 0
        for p, s, r in METHOD[name]({key: float(value) for key, value in keys.items()}).rows():
            stored, side, read = stored + p + s, side + s, read + r
        for column, bits in (("stored", stored), ("side", side), ("read", read)):
            want, got = bits / 8 / seen * LAYERS * KV, row["bytes_per_token_" + column]
            if not math.isnan(want) and abs(want - got) > 1e-6 * max(1, want):
                print(f"{name} {settings}: {column} {got} bytes per token, the formula gives {want}")


if __name__ == "__main__":
    main()
