"""Writes tests/data/text_scores.json: pairs of texts with their ROUGE-1 by Google's rouge-score 0.1.2 and their Levenshtein distance and
edit similarity by rapidfuzz, for test_text_scores.c.

usage: make_text_scores.py tests/data/text_scores.json
"""
import json
import random
import sys

from rapidfuzz.distance import Levenshtein
from rouge_score import rouge_scorer

random.seed(4)
scorer = rouge_scorer.RougeScorer(["rouge1"], use_stemmer=False)
words = "the a cat Cat sat, on mat. don't 3.14 x_y naïve Straße ΑΒΓ \u212aelvin \u0130stanbul 中文 é e\u0301 return f(x)\n -- 😀 42nd".split(" ")


def some(n):
    return " ".join(random.choice(words) for _ in range(n))


def changed(text):
    x = list(text)
    for _ in range(random.randrange(1, 12)):
        at = random.randrange(len(x) + 1)
        x[at:at + random.randrange(0, 3)] = random.choice(["", "a", " ", "Z9", "é"])
    return "".join(x)


pairs = [("", ""), ("", "a"), ("a b", ""), ("...", "!!"), ("中文", "中文"), ("kitten", "sitting"), ("The cat", "the CAT"),
         ("a a a b", "a b b"), ("\u0130x", "i x"), ("\u212a 1", "k1 K 1"), ("don't", "don t"), ("\u0130", "\u0130")]
for _ in range(60):
    a = some(random.randrange(1, 30))
    pairs.append((a, changed(a) if random.random() < 0.7 else some(random.randrange(1, 30))))
rows = []
for target, prediction in pairs:
    s = scorer.score(target, prediction)["rouge1"]
    rows.append({"target": target, "prediction": prediction, "precision": s.precision, "recall": s.recall, "f1": s.fmeasure,
                 "distance": Levenshtein.distance(target, prediction),
                 "edit_similarity": Levenshtein.normalized_similarity(target, prediction)})
with open(sys.argv[1], "w", encoding="utf-8") as f:
    f.write("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")
