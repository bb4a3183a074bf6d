#!/usr/bin/env python3
"""Makes items of kvdim-tasks from passages of a text: the model is to write the next word of a pair
of words that the passage has already, so the answer is in the cache. usage:
cloze.py TEXT LABEL N [FIELD[,FIELD]]  prints at most N items, of passages spread over
the text, and on stderr how often the most frequent word of the prompt is the answer."""
import csv
import json
import re
import sys

FIRST = 40  # words before the answer, at least
MOST = 110  # words of a passage
LETTERS = 5  # of an answer, at least


def passages(path, fields):
    """Documents of a .csv, .json or .jsonl file; paragraphs of another file."""
    kind = path.rsplit(".", 1)[-1]
    with open(path, encoding="utf-8", newline="" if kind == "csv" else None) as f:
        if kind == "csv":
            rows = list(csv.DictReader(f))
        elif kind == "json":
            rows = json.load(f)
        elif kind == "jsonl":
            rows = [json.loads(line) for line in f]
        else:
            paragraph = r"\n\s*\n" if "\n\n" in f.read(4096) else r"\n"
            f.seek(0)
            return [" ".join(p.split()) for p in re.split(paragraph, f.read())]
    return ["".join(row[k] for k in fields) for row in rows]


def answer(text):
    """Returns the last long word of the passage that follows the same word as earlier, its place,
    and the most frequent long word before it; or None."""
    pairs, found, counts = set(), None, {}
    words = list(re.finditer(r"[A-Za-z_]+", text))[:MOST]
    for i, (before, m) in enumerate(zip(words, words[1:]), 1):
        w, pair = m.group(), (before.group(), m.group())
        if len(w) >= LETTERS:
            if i >= FIRST and pair in pairs and text[before.end() : m.start()] == " ":
                found = w, m.start(), max(counts, key=counts.get)
            counts[w] = counts.get(w, 0) + 1
        pairs.add(pair)
    return found


path, label, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
fields = (sys.argv[4:] or ["text"])[0].split(",")
found = [(text, answer(text)) for text in passages(path, fields)]
found = [x for x in found if x[1]]
n = min(n, len(found))
if n == 0:
    sys.exit(f"cloze.py: no passage of {path} has a pair of words twice; take a longer text")
found = [found[i * len(found) // n] for i in range(n)]
for i, (text, (word, at, _)) in enumerate(found):
    item = {"task": f"cloze-{label}", "id": str(i), "prompt": text[: at - 1], "references": [word],
            "metric": "word", "max_new_tokens": 6, "stop": "\n"}
    print(json.dumps(item))
frequent = sum(word == guess for _, (word, _, guess) in found)
print(f"cloze-{label}: {n} items; the most frequent word of the prompt answers {frequent}", file=sys.stderr)
