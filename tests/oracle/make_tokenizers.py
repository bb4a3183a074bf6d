#!/usr/bin/env python3
"""Makes tests/data/tokenizers/: small tokenizer.json files and the ids that Hugging Face
`tokenizers` gives with them, for tests/model/test_tokenizer.c.

Every file <base>.json is a BPE model of a few hundred pieces in the exact pipeline of a known
model family, trained on data/texts. cases.json holds texts and variants: a variant is a base
file with some of its top-level fields replaced ("patch"), the ids of every text with special
tokens ("ids") and without ("plain", null where equal), and what the ids decode to ("decoded",
null where that is the text itself).

shared.json is written when the folder of downloaded inputs is given: checksums (CRC-32 of the
ids as little-endian uint32) for real tokenizers on the beginnings of real texts.

normal_forms.json has hashes of what Hugging Face makes of every character. Of each block of 4096
code points and each normalizer: FNV-1a (64 bits) over the UTF-8 of the results. A character c is
put before and after marks and letters, so that its class and its compositions show. Lowercase: c
alone where it changes, without the letters of Unicode 16 and 17, which utf8proc lacks.

Usage, from the repository root: make_tokenizers.py tests/data/tokenizers [../shared]
                                 make_tokenizers.py --normal-forms tests/data/tokenizers/normal_forms.json
Needs: the package tokenizers (0.23).
"""
import copy
import glob
import json
import os
import struct
import sys
import zlib

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import __version__ as version

GPT4_PART = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = GPT4_PART % "{1,3}"
QWEN2 = GPT4_PART % ""
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TRAIN = [t for f in sorted(glob.glob("data/texts/*.txt")) for t in open(f, encoding="utf8").read()[:40000].split("\n\n")]
OTHER = ["Größe, naïve café, façade; žluťoučký kůň", "Привет, мир! Как дела?", "你好，世界。今天天气很好。",
         "こんにちは世界", "안녕하세요 세계", "مرحبا بالعالم", "नमस्ते दुनिया", "😀 👩‍👩‍👧 🇩🇪"]
TRAIN += OTHER * 4

TEXTS = [
    "", " ", "  ", "\n", "\t\t", "a", "Hello", " Hello", "  Hello", "Hello ", "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure they've said we'll go; it's John's, isn't it? I'd say so. IT'S, WE'LL, they'Re",
    "don\u2019t 'twas '\u017f x'\u017f",
    "1 12 123 1234 12345 3.14159 1,000,000 0x1F 2nd \u0663\u0664\u0665 \u00bd \u2167 x\u00b2",
    "line one\nline two\r\nline three\n\n\nafter blanks   \n   indented\n\ttab\t\ttabs \n",
    "trailing spaces    ", "    leading", "a  b   c    d     e", "a\u00a0b\u2003c\u3000d\u200be\u0085f\u180eg\u2028h",
    "def f(x):\n    if x > 0:\n        return [x ** 2 for _ in range(10)]  # squares\n    return None\n",
    "int main(void) { printf(\"%d\\n\", a[i]->b); return 0; } /* ok */ x+=1; y<<=2; z!=w && q||r",
    "Größe, naïve café, façade; žluťoučký kůň; ẞß", "e\u0301 a\u0308 o\u0302\u0323 n\u0303o\u0327\u0300 \u1e9b\u0323",
    "Привет, мир! Как дела?", "你好，世界。今天天气很好。", "こんにちは世界、カタカナ。ﾊﾝｶｸ", "안녕하세요 세계 \u1112\u1161\u11ab\u1100\u1173\u11af",
    "مرحبا بالعالم وَعَلَيْكُم", "नमस्ते दुनिया क्षि", "שָׁלוֹם עולם", "สวัสดีชาวโลก",
    "😀 😃😃 👩‍👩‍👧 🇩🇪 👍🏽 ❤️ text😀text", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠀀𪛖 \U0010ffff", "\u0344\u212b\u2126\uf900\u0958 \uac01\u11a8",
    "<s>", "<s>Hello</s>", "Hello<s> world </s>", " <s> x  </s>  y", "<s><s>a</s></s>", "a<s", "<unk> a <unk><unk>",
    "<|begin|>user\nHi<|end|>\n<|begin|>x<|endoftext|><|begin_of_text|>ok", "<|end<|end|>|>", "[TAG] and[TAG]x [TAGS][TAG",
    "one WORD two WORDS xWORD WORD, WORD", "left<L> right<R>   both  <B>  end", "\u2581already\u2581marked \u2581 x",
    "<0x41><0xE4>", "\x01\x02\x7f\u0080", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "........----====",
    "https://example.org/a/b?c=d&e=f#g", "The the THE thethe", "x" * 40 + " " * 40 + "y", "ab-cd--ef---gh -- i-", "-", "--a", "a--",
    "\u00e4b \u00e4", "\u1ebd\u0323x",
]


def token(content, **flags):
    return dict({"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                 "special": True}, **flags)


def numbered(model, tokens):
    """Ids as a loader gives them: the vocabulary's, else the next free one."""
    n = len(model["vocab"])
    out = []
    for t in tokens:
        if t["content"] in model["vocab"]:
            out.append(dict({"id": model["vocab"][t["content"]]}, **t))
        else:
            out.append(dict({"id": n}, **t))
            n += 1
    return sorted(out, key=lambda t: t["id"])


def train(pre, norm, size, special, alphabet, **model):
    t = Tokenizer(models.BPE(**model))
    if norm:
        t.normalizer = norm
    if pre:
        t.pre_tokenizer = pre
    t.train_from_iterator(TRAIN, trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False,
                                                     initial_alphabet=alphabet))
    return json.loads(t.to_str())


def byte_level(size, pattern):
    pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]) if pattern \
        else pre_tokenizers.ByteLevel(add_prefix_space=False)
    return train(pre, None, size, [], sorted(pre_tokenizers.ByteLevel.alphabet()))


BYTES = ["<0x%02X>" % i for i in range(256)]
LLAMA2_NORM = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
SENTENCE_DECODER = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def template(*before):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": name, "type_id": 0}} for name, _ in before] + [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in before}}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def pre_sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


BL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def id_of(j, content):
    return next(t["id"] for t in j["added_tokens"] if t["content"] == content)


def make_bases():
    bases = {}
    # GPT-2: old file, merges as strings, model without a type
    j = byte_level(600, None)
    j["added_tokens"] = numbered(j["model"], [token("<|endoftext|>")])
    j["model"]["merges"] = [" ".join(m) for m in j["model"]["merges"]]
    j["model"].update(continuing_subword_prefix="", end_of_word_suffix="")
    del j["model"]["type"], j["model"]["byte_fallback"], j["model"]["ignore_merges"]
    j["decoder"] = j["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
    bases["gpt2"] = j
    # Llama 3
    j = byte_level(500, LLAMA3)
    j["added_tokens"] = numbered(j["model"], [token(t) for t in ("<|begin_of_text|>", "<|begin|>", "<|end|>")])
    # pieces that no merge reaches
    for word in ("\u0120dog", "\u0120jumps", "Hello", "\u4f60".encode().decode("latin1")):
        j["model"]["vocab"].setdefault("".join(chr(c) for c in map(ord, word)), len(j["model"]["vocab"]))
    j["added_tokens"] = numbered(j["model"], [token(t) for t in ("<|begin_of_text|>", "<|begin|>", "<|end|>")])
    j["model"]["ignore_merges"] = True
    j["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    j["post_processor"] = {"type": "Sequence", "processors": [
        dict(j["decoder"], trim_offsets=False), template(("<|begin_of_text|>", id_of(j, "<|begin_of_text|>")))]}
    bases["llama3"] = j
    # Qwen2
    j = byte_level(450, QWEN2)
    j["added_tokens"] = numbered(j["model"], [token("<|endoftext|>"), token("<|begin|>"), token("<|end|>"),
                                              token("<0x41>", special=False)])
    j["normalizer"] = {"type": "NFC"}
    j["decoder"] = j["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    bases["qwen2"] = j
    # Llama 2: normalizer, no pre-tokenizer, merges cross words
    j = train(None, normalizers.Sequence(LLAMA2_NORM), 900, ["<unk>", "<s>", "</s>"] + BYTES, [], unk_token="<unk>",
              fuse_unk=True, byte_fallback=True)
    j["added_tokens"] = numbered(j["model"], [token("<unk>"), token("<s>"), token("</s>")])
    j["decoder"] = SENTENCE_DECODER
    j["post_processor"] = template(("<s>", 1))
    bases["llama2"] = j
    # Characters and words only: what is not in the vocabulary is unknown
    j = train(pre_tokenizers.Metaspace(), None, 330, ["<unk>", "<s>"], [], unk_token="<unk>")
    kept = {p: i for p, i in j["model"]["vocab"].items() if i < 90 or ord(p[-1]) < 0x3000}
    j["model"]["vocab"] = {p: i for i, p in enumerate(sorted(kept, key=kept.get))}
    j["model"]["merges"] = [m for m in j["model"]["merges"] if all(p in j["model"]["vocab"] for p in m + ["".join(m)])]
    j["added_tokens"] = numbered(j["model"], [token("<unk>"), token("<s>")])
    j["decoder"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    bases["unknown"] = j
    return bases


def make_variants(bases):
    none = {"post_processor": None}
    v = [(b, b, {}) for b in bases]
    g, l = bases["gpt2"], bases["llama2"]

    def tokens(j, *more):
        return {"added_tokens": numbered(j["model"], [{k: x for k, x in t.items() if k != "id"} for t in j["added_tokens"]] + list(more))}

    v.append(("gpt2 with a space in front", "gpt2", {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}}))
    flags = [token("[TAG]", special=False), token("[TAGS]", special=False), token("WORD", single_word=True, special=False),
             token("<L>", lstrip=True), token("<R>", rstrip=True), token("<B>", lstrip=True, rstrip=True),
             token("  ", special=False), token("<|end|>", normalized=True)]
    v.append(("added tokens of all kinds", "gpt2", tokens(g, *flags)))
    v.append(("added tokens of all kinds, normalized", "llama2", tokens(l, *[dict(f, normalized=True) for f in flags])))
    v.append(("added tokens before the normalizer", "llama2", tokens(l, *flags)))
    for b in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            v.append(("split %s%s" % (b, " inverted" if invert else ""), "gpt2",
                      {"pre_tokenizer": pre_sequence(split("-|\\s", b, invert), BL)}))
    v.append(("split on a string", "gpt2", {"pre_tokenizer": pre_sequence(split("a", "MergedWithPrevious", False, "String"), BL)}))
    v.append(("split on empty matches", "gpt2", {"pre_tokenizer": pre_sequence(split("(?=[A-Z])|x*", "MergedWithNext"), BL)}))
    v.append(("split on lines", "gpt2", {"pre_tokenizer": pre_sequence(split("^\\s+|$|\\w+", "Isolated"), BL)}))
    v.append(("DeepSeek", "gpt2", {"pre_tokenizer": pre_sequence(
        split("[\r\n]"), split("\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ]+"), split("\\s?[!-/:-~！-／：-～‘-‟　-。]+"), split("\\s+$"),
        split("[一-龥ࠀ-一가-퟿]+"), {"type": "Digits", "individual_digits": True}, BL)}))
    v.append(("digits together", "gpt2", {"pre_tokenizer": pre_sequence({"type": "Digits", "individual_digits": False}, dict(BL, use_regex=True))}))
    v.append(("words", "gpt2", {"pre_tokenizer": pre_sequence({"type": "Whitespace"}, BL)}))
    v.append(("white space", "gpt2", {"pre_tokenizer": pre_sequence({"type": "WhitespaceSplit"}, BL)}))
    v.append(("whole document", "gpt2", {"pre_tokenizer": BL}))
    v.append(("scripts", "gpt2", {"pre_tokenizer": pre_sequence(split("\\p{Han}+|\\p{^L}|[\\p{Hiragana}\\w]+|\\u0301", "Isolated"), BL)}))
    for name, steps in (("NFD", [{"type": "NFD"}]), ("NFC, NFD, NFC", [{"type": "NFC"}, {"type": "NFD"}, {"type": "NFC"}]),
                        ("Strip", [{"type": "Strip", "strip_left": True, "strip_right": True}]),
                        ("Strip left, Prepend", [{"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "Prepend", "prepend": "é-"}]),
                        ("Replace", [{"type": "Replace", "pattern": {"Regex": " {2,}|\\n+"}, "content": "\u2581x"},
                                     {"type": "Replace", "pattern": {"String": "a"}, "content": ""}])):
        v.append((name, "gpt2", {"normalizer": {"type": "Sequence", "normalizers": steps}}))
    for scheme in ("first", "always", "never"):
        for cut in (False, True):
            v.append(("Metaspace %s%s" % (scheme, ", split" if cut else ""), "llama2", dict(
                {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": cut}}, **none)))
    v.append(("Metaspace first behind normalizers", "llama2", dict({
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"Regex": "^\\s\\s|a"}, "content": "bc"},
                                                           {"type": "Strip", "strip_left": True, "strip_right": False}]},
        "pre_tokenizer": pre_sequence(split("\\s+|b", "Isolated"), {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True})}, **none)))
    v.append(("Metaspace first behind NFD", "llama2", dict({
        "normalizer": {"type": "NFD"},
        "pre_tokenizer": pre_sequence(split("\\p{M}", "Isolated"), {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True})}, **none)))
    m = copy.deepcopy(bases["unknown"]["model"])
    v.append(("unknown, fused", "unknown", {"model": dict(m, fuse_unk=True)}))
    m2 = dict(m, unk_token=None)
    v.append(("unknown left out", "unknown", {"model": m2}))
    m3 = dict(m, byte_fallback=True, vocab=dict(m["vocab"]))
    for i in list(range(0x80, 0xc0)) + [0xc3, 0xd0, 0xe4]:
        m3["vocab"]["<0x%02X>" % i] = len(m3["vocab"])
    v.append(("bytes for some", "unknown", {"model": m3}))
    v.append(("bytes for some, fused", "unknown", {"model": dict(m3, fuse_unk=True)}))
    v.append(("no decoder", "unknown", {"decoder": None}))
    v.append(("Metaspace never in the decoder", "unknown", {"decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never"}}))
    v.append(("Strip and Replace in the decoder", "llama2", {"decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"Regex": "\u2581+"}, "content": "_"}, {"type": "Strip", "content": "_", "start": 1, "stop": 0},
        {"type": "ByteFallback"}]}}))
    return v + make_families(bases)


def make_families(bases):
    """The pipelines of published models that the bases do not have already."""
    g, l, q = bases["gpt2"], bases["llama2"], bases["qwen2"]

    def plus(j, *more):
        return numbered(j["model"], [{k: x for k, x in t.items() if k != "id"} for t in j["added_tokens"]] + list(more))

    end = token("</s>", normalized=True)
    opt = plus(g, end, token("<pad>", normalized=True))
    falcon = pre_sequence({"type": "Punctuation", "behavior": "Contiguous"}, dict(BL, use_regex=True),
                          {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]"))
    tail = [token(t, rstrip=True) for t in ("<|endoftext|>", "<|end|>", "<|begin|>")]
    phi3 = [dict(t, rstrip=True) if t["content"] == "</s>" else t for t in plus(l, *tail)]
    mark = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    v = [("Falcon", "gpt2", {"pre_tokenizer": falcon}),
         ("Punctuation alone", "gpt2", {"pre_tokenizer": pre_sequence({"type": "Punctuation"}, BL)}),
         ("split behind ByteLevel", "gpt2", {"pre_tokenizer": pre_sequence(BL, split("\\p{N}|\u00c3|\u0120", "MergedWithNext"), split("\u0138.", "Removed"))}),
         ("OPT", "gpt2", {"added_tokens": opt, "post_processor": template(("</s>", id_of({"added_tokens": opt}, "</s>")))}),
         ("Phi-3", "llama2", {"added_tokens": phi3, "post_processor": None}),
         ("Yi", "llama2", {"normalizer": mark, "post_processor": None, "decoder": {"type": "Sequence", "decoders": SENTENCE_DECODER["decoders"][:3]}}),
         ("Mistral, third version", "llama2", {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}}),
         ("Mistral, tekken", "llama3", {"pre_tokenizer": pre_sequence(split(TEKKEN), BL)}),
         ("Qwen3", "qwen2", {"added_tokens": plus(q, token("<think>", special=False), token("</think>", special=False))})]
    return v


def make_shared(shared, out):
    """Beginnings of the texts; texts that are not UTF-8 are left out."""
    rows = []
    for path, limit in (("data/models/kvdim-6m/tokenizer.json", 400000),
                        (os.path.join(shared, "inputs/models/tinystories656K.tokenizer.json"), 150000)):
        t = Tokenizer.from_file(path)
        for text in sorted(glob.glob(os.path.join(shared, "inputs/text/*"))):
            whole = open(text, "rb").read()
            raw = whole[:limit]
            while len(raw) < len(whole) and raw[-1] >= 0x80:  # end behind ASCII, not inside a character
                raw = raw[:-1]
            try:
                ids = t.encode(raw.decode("utf8")).ids
            except UnicodeDecodeError:
                continue
            rows.append({"tokenizer": path if path.startswith("data") else os.path.relpath(path, shared),
                         "text": os.path.relpath(text, shared), "bytes": len(raw), "n": len(ids),
                         "crc32": zlib.crc32(struct.pack("<%dI" % len(ids), *ids))})
    with open(os.path.join(out, "shared.json"), "w", encoding="utf8") as f:
        f.write("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")
    print(sum(r["n"] for r in rows), "ids in shared.json")


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    bases = make_bases()
    for name, j in bases.items():
        with open(os.path.join(out, name + ".json"), "w", encoding="utf8") as f:
            json.dump(j, f, ensure_ascii=False, separators=(",", ":"))
            f.write("\n")
    variants = []
    for name, base, patch in make_variants(bases):
        j = copy.deepcopy(bases[base])
        j.update(patch)
        t = Tokenizer.from_str(json.dumps(j))
        ids = [t.encode(x).ids for x in TEXTS]
        plain = [t.encode(x, add_special_tokens=False).ids for x in TEXTS]
        decoded = [t.decode(x, skip_special_tokens=False) for x in ids]
        variants.append({"name": name, "base": base, "patch": patch, "ids": ids,
                         "plain": [p if p != i else None for p, i in zip(plain, ids)],
                         "decoded": [d if d != x else None for d, x in zip(decoded, TEXTS)]})
    with open(os.path.join(out, "cases.json"), "w", encoding="utf8") as f:
        f.write('{"made_by":"tests/oracle/make_tokenizers.py with tokenizers %s",\n"texts":%s,\n"variants":[\n%s\n]}\n' % (
            version, json.dumps(TEXTS, ensure_ascii=True, separators=(",", ":")),
            ",\n".join(json.dumps(v, ensure_ascii=True, separators=(",", ":")) for v in variants)))
    if len(sys.argv) > 2:
        make_shared(sys.argv[2], out)


LAST = 0x20000
MORE = range(0x2F800, 0x2FA20)  # compatible Chinese characters
NEW_LETTERS = {0x1C89, 0xA7CB, 0xA7CC, 0xA7CE, 0xA7D2, 0xA7D4, 0xA7DA, 0xA7DC, *range(0x10D50, 0x10D66), *range(0x16EA0, 0x16EB9)}



def around(c):
    return "a" + chr(c) + "\u0334" + "e" + chr(c) + "\u0301"


def fnv(h, data):
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def blocks(result):
    out = {}
    for c in [*range(LAST), *MORE]:
        if not 0xD800 <= c < 0xE000:
            block = f"{c >> 12 << 12:x}"
            out[block] = fnv(out.get(block, 0xCBF29CE484222325), result(c).encode())
    return {k: f"{v:016x}" for k, v in out.items()}


def make_normal_forms(path):
    low = normalizers.Lowercase()

    def lower(c):
        after = low.normalize_str(chr(c))
        return "" if c in NEW_LETTERS or after == chr(c) else after

    answer = {n: blocks(lambda c, f=getattr(normalizers, n)(): f.normalize_str(around(c))) for n in ["NFC", "NFD", "NFKC", "NFKD"]}
    answer["Lowercase"] = blocks(lower)
    with open(path, "w") as f:
        json.dump(answer, f, indent=0)
        f.write("\n")


if sys.argv[1] == "--normal-forms":
    make_normal_forms(sys.argv[2])
else:
    main()
