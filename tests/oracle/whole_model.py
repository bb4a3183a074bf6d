"""Losses of a Llama model under methods that no public code covers, apart from kvdim: NumPy, from docs/methods.md.

usage: whole_model.py MODEL IDS.csv PROMPT [HEADS.h5]

Prints "METHOD NLL" for each method below: the mean negative log-likelihood of the tokens after the prompts of IDS.csv, in
float64. tests/evaluate/test_kvdim_eval_tokens.sh holds the numbers and makes the ids. With HEADS.h5, a file of retaining
heads, the methods are those of locret, for tests/evaluate/test_trained.sh.
"""
import json
import math
import struct
import sys

import numpy as np


class Model:
    def __init__(self, folder):
        with open(folder + "/config.json") as f:
            c = json.load(f)
        self.layers, self.heads, self.kv = c["num_hidden_layers"], c["num_attention_heads"], c["num_key_value_heads"]
        self.d, self.theta = c["head_dim"], c["rope_parameters"]["rope_theta"]
        self.eps, self.group = c["rms_norm_eps"], self.heads // self.kv
        with open(folder + "/model.safetensors", "rb") as f:
            head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            data = f.read()
        head.pop("__metadata__", None)
        self.w = {name: self.tensor(data, t) for name, t in head.items()}

    @staticmethod
    def tensor(data, t):
        raw = data[slice(*t["data_offsets"])]
        x = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4") if t["dtype"] == "BF16" else np.frombuffer(raw, "<f4")
        return x.reshape(t["shape"]).astype(float)

    def part(self, layer, name):
        return self.w[f"model.layers.{layer}.{name}.weight"]

    def norm(self, x, gain):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * gain

    def rope(self, x, position):
        angle = np.outer(position, self.theta ** (-np.arange(0, self.d, 2) / self.d))
        a, b, c, s = x[..., : self.d // 2], x[..., self.d // 2:], np.cos(angle), np.sin(angle)
        return np.concatenate([a * c - b * s, b * c + a * s], -1)

    def rows(self, layer, x, position):
        """Q after and before RoPE [heads][n][d]; K after and before RoPE, and V [kv][n][d]."""
        h = self.norm(x, self.part(layer, "input_layernorm"))
        q, k, v = (
            (h @ self.part(layer, f"self_attn.{p}_proj").T).reshape(len(x), -1, self.d).transpose(1, 0, 2) for p in "qkv")
        return self.rope(q, position), q, self.rope(k, position), k, v

    def finish(self, layer, x, o):
        x = x + o @ self.part(layer, "self_attn.o_proj").T
        h = self.norm(x, self.part(layer, "post_attention_layernorm"))
        gate, up = h @ self.part(layer, "mlp.gate_proj").T, h @ self.part(layer, "mlp.up_proj").T
        return x + (gate / (1 + np.exp(-gate)) * up) @ self.part(layer, "mlp.down_proj").T

    def log_likelihood(self, x, token):
        z = self.norm(x, self.w["model.norm.weight"]) @ self.w["model.embed_tokens.weight"].T
        return z[token] - z.max() - math.log(np.exp(z - z.max()).sum())


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def top(x, k):
    return np.sort(np.argsort(-np.asarray(x), kind="stable")[:k])


def quantised(x, bits):
    """One scale and zero point in float16 for all numbers of x."""
    x, most = np.asarray(x, "f4"), 2**bits - 1
    zero, step = np.float32(np.float16(x.min())), np.float32(np.float16((x.max() - x.min()) / np.float32(most)))
    return step * np.clip(np.rint((x - zero) / step), 0, most) + zero if step > 0 else np.full(x.shape, zero)


class Method:
    """A cache is a list over KV heads of dicts of arrays whose first axis is the stored tokens."""

    def start(self, m, layer, g, seen):
        """The cache of a KV head after the prompt. seen: q, k, v and the probabilities a [heads][n][n] of the layer."""
        return dict(k=seen["k"][g].copy(), v=seen["v"][g].copy())

    def begin(self, m, seen):
        """The caches of all layers after the prompt."""
        return [[self.start(m, l, g, seen[l]) for g in range(m.kv)] for l in range(m.layers)]

    def append(self, cache, layer, g, k, v):
        for name in cache:
            row = k if name == "k" else v if name == "v" else np.zeros(cache[name].shape[1:])
            cache[name] = np.append(cache[name], row[None], 0)

    def step(self, cache, p):
        """p [group][n]: probabilities of the step."""

    @staticmethod
    def keep(cache, index):
        for name in cache:
            cache[name] = cache[name][index]


def received(m, g, seen):
    return seen["a"][g * m.group:(g + 1) * m.group]


class H2o(Method):
    def __init__(self, heavy, recent):
        self.heavy, self.recent = heavy, recent

    def start(self, m, layer, g, seen):
        cache = dict(super().start(m, layer, g, seen), sum=received(m, g, seen).sum((0, 1)))
        n = len(cache["sum"])
        self.leave(cache, np.append(top(cache["sum"][:n - self.recent], self.heavy), np.arange(n - self.recent, n)))
        return cache

    def leave(self, cache, index):
        self.keep(cache, index)

    def step(self, cache, p):
        cache["sum"] += p.sum(0)
        n = len(cache["sum"])
        if n > self.heavy + self.recent:
            self.leave(cache, np.delete(np.arange(n), np.argmin(cache["sum"][:n - self.recent])))


class D2o(H2o):
    def __init__(self, heavy, recent, beta):
        super().__init__(heavy, recent)
        self.beta, self.threshold = beta, {}

    def leave(self, cache, index):
        k, v = cache["k"].copy(), cache["v"].copy()
        gone = np.setdiff1d(np.arange(len(k)), index)
        unit = k / np.linalg.norm(k, axis=1, keepdims=True)
        like = unit[gone] @ unit[index].T
        u, into = like.max(1), index[like.argmax(1)]
        was = cache.get("threshold")
        now = u.mean() if was is None else self.beta * u.mean() + (1 - self.beta) * was[0, 0]
        for j in np.unique(into[u >= now]):
            some = (into == j) & (u >= now)
            weight = np.exp(np.append(1, u[some]))[:, None] / np.exp(np.append(1, u[some])).sum()
            rows = np.append(j, gone[some])
            cache["k"][j], cache["v"][j] = (weight * k[rows]).sum(0), (weight * v[rows]).sum(0)
        self.keep(cache, index)
        cache["threshold"] = np.full((len(index), 1), now)

    def append(self, cache, layer, g, k, v):
        super().append(cache, layer, g, k, v)
        cache["threshold"][:] = cache["threshold"][0]


class Scissorhands(Method):
    def __init__(self, budget, recent, history, drop):
        self.budget, self.recent, self.history, self.drop = budget, recent, history, drop

    def start(self, m, layer, g, seen):
        a, cache = received(m, g, seen), super().start(m, layer, g, seen)
        n = a.shape[1]
        low = np.zeros(n)
        for t in range(max(0, n - self.history), n):
            low[:t + 1] += (a[:, t, :t + 1] * (t + 1) < 1).sum(0) / m.group
        cache.update(low=low, age=np.zeros(n), rows=np.zeros((n, self.history)))
        self.shrink(cache)
        return cache

    def shrink(self, cache):
        n = len(cache["age"])
        old, gone = n - self.recent, max(self.drop, n - self.budget)
        if n > self.budget:
            count = cache["rows"].sum(1) + cache["low"] * np.maximum(0, 1 - cache["age"] / self.history)
            order = np.lexsort((np.arange(old), -np.round(count[:old], 9)))
            self.keep(cache, np.append(np.sort(order[min(gone, old):]), np.arange(old, n)))

    def step(self, cache, p):
        unimportant = 2 * (p * p.shape[1] < 1).sum(0) > len(p)
        cache["rows"] = np.hstack([unimportant[:, None], cache["rows"][:, :-1]])
        cache["age"] += 1
        self.shrink(cache)


class Hetero(Method):
    """Levels of the prompt's tokens: 1 high, 0 low."""

    def __init__(self, high, low=None):
        self.bits = (low, high)

    def levels(self, m, seen):
        return [np.ones(len(s["k"][0]), int) for s in seen]

    def code(self, cache, i, level):
        cache["k"][i], cache["v"][i] = (quantised(cache[x][i], self.bits[level][j]) for j, x in enumerate("kv"))

    def begin(self, m, seen):
        caches = super().begin(m, seen)
        for level, layer in zip(self.levels(m, seen), caches):
            for cache in layer:
                for i, high in enumerate(level):
                    self.code(cache, i, high)
        return caches

    def step(self, cache, p):
        self.code(cache, -1, 1)


class Received(Hetero):
    def __init__(self, g, rise, high, low):
        super().__init__(high, low)
        self.g, self.rise = g, rise

    def worth(self, seen):
        return seen["a"].sum((0, 1))

    def levels(self, m, seen):
        level = []
        for layer, s in enumerate(seen):
            x, share = self.worth(s), self.g + self.rise * layer / (m.layers - 1)
            level.append(np.isin(np.arange(len(x)), top(x, int(share * len(x) + 0.5))).astype(int))
        return level


class Importance(Received):
    def __init__(self, g, overlap, high, low):
        super().__init__(g, 0, high, low)
        self.overlap = overlap

    def worth(self, seen):
        return np.log(np.exp(seen["s"]).sum((0, 2)))

    def levels(self, m, seen):
        own = super().levels(m, seen)
        level = own[:1]
        for a, b in zip(own, own[1:]):
            both = [((a == x) & (b == x)).sum() / max((a == x).sum(), (b == x).sum()) for x in (0, 1)]
            level.append(level[-1] if min(both) >= self.overlap else b)
        return level


class Lower(Hetero):
    def __init__(self, heavy, recent, high, low):
        super().__init__(high, low)
        self.heavy, self.recent = heavy, recent

    def begin(self, m, seen):
        return [[self.start(m, l, g, seen[l]) for g in range(m.kv)] for l in range(m.layers)]

    def start(self, m, layer, g, seen):
        cache = dict(Method.start(self, m, layer, g, seen), sum=received(m, g, seen).sum((0, 1)))
        n = len(cache["sum"])
        high = np.append(top(cache["sum"][:n - self.recent], self.heavy), np.arange(n - self.recent, n))
        cache["high"] = np.isin(np.arange(n), high)
        for i in range(n):
            self.code(cache, i, int(cache["high"][i]))
        return cache

    def step(self, cache, p):
        cache["sum"] += p.sum(0)
        cache["high"] = cache["high"].astype(bool)
        cache["high"][-1] = True
        self.code(cache, -1, 1)
        old = np.flatnonzero(cache["high"][:len(cache["sum"]) - self.recent])
        if len(old) > self.heavy:
            least = old[np.argmin(cache["sum"][old])]
            cache["high"][least] = False
            self.code(cache, least, 0)


class Sparsity(Method):
    """Levels: 0 dropped, 1 low, 2 high. A low token is stored whole where no code lowers it."""

    def __init__(self, th, tl, window):
        self.th, self.tl, self.window = th, tl, window

    def start(self, m, layer, g, seen):
        a, cache = received(m, g, seen).mean(0), super().start(m, layer, g, seen)
        n = len(a)
        cache.update(sum=a.sum(0) - np.diag(a), rows=n - 1.0 - np.arange(n), level=np.full(n, 2))
        body = max(0, n - self.window)
        share = cache["sum"][:body] / cache["rows"][:body]
        share, reached, cut = share / share.sum(), 0, [0, 0]
        for i in np.argsort(share, kind="stable"):
            reached += share[i]
            if reached >= self.th:
                break
            cache["level"][i] = reached >= self.tl
            cut = [cut[0] if cache["level"][i] else share[i] * body, share[i] * body]
        cache["cut"] = np.tile(cut, (n, 1))
        self.keep(cache, cache["level"] > 0)
        return cache

    def append(self, cache, layer, g, k, v):
        super().append(cache, layer, g, k, v)
        cache["cut"][-1], cache["level"][-1] = cache["cut"][0], 2

    def step(self, cache, p):
        n, level = p.shape[1], cache["level"]
        cache["sum"][:n - 1] += p.mean(0)[:n - 1]
        cache["rows"][:n - 1] += 1
        leaving = n - self.window - 1
        if leaving < 0:
            return
        mean = cache["sum"][:leaving + 1] / cache["rows"][:leaving + 1]
        relative, (low, high), gone = mean / mean.mean(), cache["cut"][0], None
        if relative[leaving] < low:
            gone = leaving
        else:
            level[leaving] = 1 if relative[leaving] < high else 2
            same = np.flatnonzero(level[:leaving + 1] == level[leaving])
            least = same[np.argmin(relative[same])]
            if relative[least] < low:
                gone = least
            elif relative[least] < high:
                level[least] = 1
        if gone is not None:
            self.keep(cache, np.delete(np.arange(n), gone))


class Zipcache(Method):
    def __init__(self, high, low, share, block):
        self.high, self.low, self.share, self.block = high, low, share, block

    def start(self, m, layer, g, seen):
        a, cache = received(m, g, seen), super().start(m, layer, g, seen)
        cache.update(sum=a.sum((0, 1)), rows=m.group * (a.shape[1] - np.arange(a.shape[1], dtype=float)), coded=np.zeros(a.shape[1]))
        self.code(cache, len(cache["sum"]) // self.block * self.block)
        return cache

    def code(self, cache, end):
        block = np.arange(int(cache["coded"].sum()), end)
        if len(block) == 0:
            return
        salient = top(cache["sum"][block] / cache["rows"][block], int(self.share * len(block) + 0.5)) + block[0]
        for part, bits in ((salient, self.high), (np.setdiff1d(block, salient), self.low)):
            for j in range(cache["k"].shape[1]):
                cache["k"][part, j] = quantised(cache["k"][part, j], bits)
        channel = np.sqrt(np.abs(cache["v"][block].astype("f4")).max(0))
        for i in block:
            bits = self.high if i in salient else self.low
            cache["v"][i] = quantised(cache["v"][i].astype("f4") / channel, bits) * channel
        cache["coded"][block] = 1

    def step(self, cache, p):
        cache["sum"] += p.sum(0)
        cache["rows"] += len(p)
        self.code(cache, len(cache["sum"]) // self.block * self.block)


class Minicache(Method):
    def __init__(self, start, t, gamma):
        self.first, self.t, self.gamma = start, t, gamma

    def begin(self, m, seen):
        caches = super().begin(m, seen)
        for l in range(math.ceil(self.first * m.layers), m.layers - 1, 2):
            for x in "kv":
                a, b = seen[l][x], seen[l + 1][x]
                of_a, of_b = (np.linalg.norm(y, axis=2, keepdims=True) for y in (a, b))
                angle = np.arccos(np.clip((a * b).sum(2, keepdims=True) / (of_a * of_b), -1, 1))
                e = np.sin((1 - self.t) * angle) * a / of_a + np.sin(self.t * angle) * b / of_b
                e /= np.linalg.norm(e, axis=2, keepdims=True)
                apart = angle > angle.max() - self.gamma * (angle.max() - angle.min())
                for g in range(m.kv):
                    caches[l][g][x] = np.where(apart, a, e * of_a)[g]
                    caches[l + 1][g][x] = np.where(apart, b, e * of_b)[g]
        return caches


class Xkv(Method):
    def __init__(self, layers, rank_k, rank_v):
        self.layers, self.rank = layers, {"pre": rank_k, "v": rank_v}

    def begin(self, m, seen):
        caches = super().begin(m, seen)
        for first in range(0, m.layers, self.layers):
            some = seen[first:first + self.layers]
            for x, rank in self.rank.items():
                u, s, v = np.linalg.svd(np.concatenate([y for layer in some for y in layer[x]], 1), full_matrices=False)
                y = (u[:, :rank] * s[:rank] @ v[:rank]).reshape(len(u), len(some), m.kv, m.d)
                for l in range(len(some)):
                    for g in range(m.kv):
                        part = y[:, l, g]
                        caches[first + l][g]["k" if x == "pre" else x] = m.rope(part, np.arange(len(u))) if x == "pre" else part
        return caches


class Strawman(Method):
    def __init__(self, p):
        self.p, self.basis = p, {}

    def start(self, m, layer, g, seen):
        width = int((1 - self.p) * m.d + 0.5)
        for x in "kv":
            r = np.linalg.svd(seen[x][g], full_matrices=False)[2][:width]
            self.basis[layer, g, x] = r.T @ r
        return {x: seen[x][g] @ self.basis[layer, g, x] for x in "kv"}

    def append(self, cache, layer, g, k, v):
        super().append(cache, layer, g, k @ self.basis[layer, g, "k"], v @ self.basis[layer, g, "v"])


class Locret(Method):
    def __init__(self, budget, local, fc1, fc2):
        self.budget, self.local, self.fc1, self.fc2 = budget, local, fc1, fc2

    def start(self, m, layer, g, seen):
        cache, n = super().start(m, layer, g, seen), len(seen["k"][g])
        x = np.concatenate([seen[y].transpose(1, 0, 2).reshape(n, -1) for y in ("q_pre", "pre", "v")], 1) @ self.fc1[layer].T
        score = (x / (1 + np.exp(-x)) @ self.fc2[layer, g])[:max(0, n - self.local)]
        self.keep(cache, np.append(top(score, int(self.budget)), np.arange(len(score), n)))
        return cache


METHODS = {
    "none": Method(),
    "h2o,heavy=7,recent=6": H2o(7, 6),
    "d2o,heavy=7,recent=6,beta=0.6": D2o(7, 6, 0.6),
    "scissorhands,budget=15,recent=4,history=20,drop=3": Scissorhands(15, 4, 20, 3),
    "sparsity,th=0.5,tl=0.3,window=7": Sparsity(0.5, 0.3, 7),
    "hetero,k=5,v=3": Hetero((5, 3)),
    "lower+hetero,heavy=7,recent=5,k=6,v=5,lk=4,lv=3": Lower(7, 5, (6, 5), (4, 3)),
    "received+hetero,g=0.4,rise=0.3,k=6,v=6,lk=3,lv=3": Received(0.4, 0.3, (6, 6), (3, 3)),
    "importance+hetero,g=0.2,overlap=0.6,k=6,v=6,lk=3,lv=3": Importance(0.2, 0.6, (6, 6), (3, 3)),
    "zipcache,high=5,low=3,share=0.4,block=7": Zipcache(5, 3, 0.4, 7),
    "minicache,start=0.2,t=0.6,gamma=0.05": Minicache(0.2, 0.6, 0.05),
    "xkv,layers=2,rank_k=9,rank_v=11": Xkv(2, 9, 11),
    "strawman,p=0.6": Strawman(0.6),
}


def loss(m, method, ids, prompt):
    x, seen, total = m.w["model.embed_tokens.weight"][ids[:prompt]], [], 0
    for l in range(m.layers):
        q, q_pre, k, pre, v = m.rows(l, x, np.arange(prompt))
        s = q @ np.repeat(k, m.group, 0).transpose(0, 2, 1) / math.sqrt(m.d)
        s[:, np.triu(np.ones((prompt, prompt), bool), 1)] = -np.inf
        seen.append(dict(q_pre=q_pre, k=k, pre=pre, v=v, s=s, a=softmax(s)))
        x = m.finish(l, x, (seen[l]["a"] @ np.repeat(v, m.group, 0)).transpose(1, 0, 2).reshape(prompt, -1))
    caches = method.begin(m, seen)
    for t in range(prompt, len(ids) - 1):
        x = m.w["model.embed_tokens.weight"][ids[t]][None]
        for l in range(m.layers):
            q, _, k, _, v = m.rows(l, x, [t])
            out = np.empty((m.heads, m.d))
            for g, cache in enumerate(caches[l]):
                method.append(cache, l, g, k[g, 0], v[g, 0])
                mine = slice(g * m.group, (g + 1) * m.group)
                p = softmax(q[mine, 0] @ cache["k"].T / math.sqrt(m.d))
                out[mine] = p @ cache["v"]
                method.step(cache, p)
            x = m.finish(l, x, out.reshape(1, -1))
        total -= m.log_likelihood(x[0], ids[t + 1])
    return total / (len(ids) - 1 - prompt)


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    model, prompt, methods = Model(sys.argv[1]), int(sys.argv[3]), METHODS
    if len(sys.argv) == 5:
        import h5py

        with h5py.File(sys.argv[4]) as f:
            fc1, fc2 = f["fc1"][()].astype(float), f["fc2"][()].astype(float)
        methods = {f"locret,budget={b},local={n}": Locret(b, n, fc1, fc2) for b, n in ((7, 6), (1, 1), (20, 2), (0, 12))}
    with open(sys.argv[2]) as f:
        sequences = [[int(x) for x in line.split(",")] for line in f]
    for name, method in methods.items():
        print(name, f"{np.mean([loss(model, method, ids, prompt) for ids in sequences]):.7f}", flush=True)


if __name__ == "__main__":
    main()
