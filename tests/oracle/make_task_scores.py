#!/usr/bin/env python3
"""Writes tests/data/task_scores.json: scores of answers by the benchmarks' own code; with `texts`,
tests/data/text_scores.json: scores of pairs of texts for test_task_scores.c.

Usage: make_task_scores.py texts OUT.json
       make_task_scores.py LONGBENCH RULER INFINITEBENCH OUT.json, with clones (bare or not) of
github.com/THUDM/LongBench, NVIDIA/RULER and OpenBMB/InfiniteBench. Needs the packages rouge,
fuzzywuzzy (without python-Levenshtein, as LongBench's requirements.txt has it) and jieba.
The last number of GSM8K follows lm_eval/tasks/gsm8k/gsm8k.yaml of EleutherAI/lm-evaluation-harness
(filter flexible-extract).
"""
import ast
import json
import random
import re
import subprocess
import sys
import warnings

warnings.filterwarnings("ignore")


def source(repo, path):
    return subprocess.check_output(["git", "-C", repo, "show", "HEAD:" + path], text=True)


def functions(text, names, imports=""):
    """The named functions of a source text, without running the rest of it."""
    tree = ast.parse(text)
    tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
    space = {}
    exec(imports, space)
    exec(compile(tree, "authors", "exec"), space)
    return space


def write_text_scores(out):
    """Pairs of texts with their ROUGE-1 by Google's rouge-score 0.1.2, and their Levenshtein distance and edit similarity by rapidfuzz."""
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
    with open(out, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")


if sys.argv[1] == "texts":
    write_text_scores(sys.argv[2])
    sys.exit()

longbench, ruler, infinite, out = sys.argv[1:5]
lb = {}
exec(source(longbench, "LongBench/metrics.py"), lb)
rl = functions(source(ruler, "scripts/eval/synthetic/constants.py"), ["string_match_part", "string_match_all"])
ib = functions(source(infinite, "src/compute_scores.py"),
               ["get_score_one_longbook_choice_eng", "get_score_one_passkey", "first_int_match",
                "get_score_one_kv_retrieval"], "import re")
v2 = functions(source(longbench, "pred.py"), ["extract_answer"], "import re")


def last_number(answer, reference):
    found = re.findall(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", answer)
    text = next(x for x in found[-1] if x) if found else "[invalid]"
    plain = []
    for s in (text, reference):
        for pattern in (",", r"\$", r"(?s).*#### ", r"\.$"):
            s = re.sub(pattern, "", s)
        plain.append(s)
    return float(plain[0] == plain[1])


def best(f):
    return lambda answer, refs, classes: max(float(f(answer, r, all_classes=classes)) for r in refs)


def rouge_1(answer, reference, **kwargs):
    try:
        return lb["Rouge"]().get_scores([answer], [reference], avg=True)["rouge-1"]["f"]
    except Exception:
        return 0.0


METRICS = {
    "match-all": lambda a, r, c: rl["string_match_all"]([a], [r]) / 100,
    "match-part": lambda a, r, c: rl["string_match_part"]([a], [r]) / 100,
    "exact": lambda a, r, c: float(any(a.strip() == x.strip() for x in r)),
    "qa-f1": best(lb["qa_f1_score"]),
    "rouge-1": best(rouge_1),
    "rouge-l": best(lb["rouge_score"]),
    "code": best(lb["code_sim_score"]),
    "classification": best(lb["classification_score"]),
    "retrieval": best(lb["retrieval_score"]),
    "retrieval-zh": best(lb["retrieval_zh_score"]),
    "count": best(lb["count_score"]),
    "number": lambda a, r, c: max(last_number(a, x) for x in r),
    "choice": lambda a, r, c: float(any(v2["extract_answer"](a.strip()) == x for x in r)),
    "letter": lambda a, r, c: float(ib["get_score_one_longbook_choice_eng"](a, r, "")),
    "first-integer": lambda a, r, c: float(max(ib["get_score_one_passkey"](a, x, "") for x in r)),
    "word": lambda a, r, c: float(max(ib["get_score_one_kv_retrieval"](a, x, "") for x in r)),
}

WORDS = ("the a an The and of Paris paris café CAFÉ naïve Straße Ärger Москва москва 42 3,141 $5.00 -7 it's don't "
         "end-of-line U.S. 1. Mr. (yes) no, no. \"quoted\" x_y \u00a0 \u2019s 東京 Élan the-man theory another").split(" ")
TEXTS = ["", " ", "\n\n", ".", "...", "Paris", " Paris. ", "The answer is 42.", "the the the a an",
         "A man, a plan, a canal: Panama!", "It was the best of times. It was the worst of times.",
         "It was the worst of times. It was the age of wisdom. Times change.", "one two three four. five six",
         "one four. three five two six one", "a.b.c", " . . ", "word\u00a0word\u2003word", "\u0130stanbul is big"]
r = random.Random(7)


def sentence(n):
    return "".join(r.choice(WORDS) + r.choice([" ", " ", " ", ". ", ", ", "\n", "  "]) for _ in range(n))


cases = []


def add(metric, answer, references, classes=()):
    cases.append({"metric": metric, "answer": answer, "references": list(references), "choices": list(classes),
                  "score": METRICS[metric](answer, list(references), list(classes))})


for metric in ("match-all", "match-part", "exact", "qa-f1", "rouge-1", "rouge-l"):
    for _ in range(25):
        add(metric, r.choice(TEXTS), r.sample([t for t in TEXTS if t], r.randint(1, 3)))
    for _ in range(25):
        words = sentence(r.randint(1, 30))
        other = words if r.random() < 0.3 else sentence(r.randint(1, 30))
        add(metric, words, [other, r.choice(WORDS)][:r.randint(1, 2)])

CODE = ["    return x + 1", "for i in range(10):", "# a comment", "// another", "`quoted`", "x = foo(bar, baz)", "", "return x+1",
        "const int n = 3; // three", "    total += weights[i] * values[i]", "raise ValueError('é')"]
for _ in range(40):
    add("code", "\n".join(r.choice(CODE) for _ in range(r.randint(0, 4))), [r.choice(CODE)])
for _ in range(8):  # long lines: difflib leaves out frequent characters from 200 on
    line = "".join(r.choice("abcdefgh ()=+_,.0123") for _ in range(r.randint(150, 320)))
    other = list(line)
    for _ in range(r.randint(0, 60)):
        other[r.randrange(len(other))] = r.choice("abcxyz ")
    add("code", line, ["".join(other)])

CLASSES = ["Other number", "number", "Number of something", "City", "Other location", "location", "Distance, linear measure"]
for _ in range(40):
    add("classification", " ".join(r.choice(CLASSES + ["perhaps", "type:"]) for _ in range(r.randint(0, 4))),
        [r.choice(CLASSES)], CLASSES[:r.randint(3, 7)])
NUMBERS = ["1", "12", "Paragraph 3", "3", "3 and 12", "the 3rd of 30", "none", "", "12,3", "007", "paragraphs 12 13 14"]
for answer in NUMBERS:
    for n in (1, 3, 12):
        add("retrieval", answer, ["Paragraph %d" % n])
        add("count", answer, [str(n)])
        add("first-integer", answer, [str(n)])
    add("first-integer", answer, ["007"])
for answer in NUMBERS + ["段落3", "答案是段落12。"]:
    add("retrieval-zh", answer, ["段落%d" % r.choice([3, 12])])
SUMS = ["18", "$18", "18.", "She makes $18.00 every day.", "9 * 2 = 18 dollars", "#### 1,234", "The answer is 1,234.", "-5", "- 5",
        "it is 5-7", "no number", "", "3.5.", "..", "a 1 b .", "$", "1234 apples and -5", "so 18, then"]
for answer in SUMS:
    for n in ("18", "1,234", "-5", "7", "3.5"):
        add("number", answer, ["First 2 + 2 = <<2+2=4>>4.\n#### " + n])
CHOICES = ["The correct answer is (B)", "The correct answer is B", "**The correct answer is (C)**", "the correct answer is (B)",
           "The correct answer is (E). The correct answer is A", "(B)", "", "The correct answer is (B", "The correct answer is (insert). "
           "The correct answer is (D)."]
for answer in CHOICES:
    for letter in "ABCD":
        add("choice", answer, [letter])
LETTERS = ["A", "B.", " C. the cat", "the cat", "The answer is: D", "answer is B", "I think the option is A!", "none of these", "",
           "answer:", "answer: C", "so \"B\" it is", "perhaps AB or C", "Dogs", "BC", "x answer is", "option is the cat"]
for answer in LETTERS:
    for references in (["the cat", "A"], ["a dog", "B"], ["Dogs", "D"], ["BC", "C"]):
        add("letter", answer, references)
KEYS = ["a1b2-c3", "The value is \"a1b2-c3\".", "{a1b2-c3}", "a1b2-c3d4", "", "x: a1b2-c3, y", "a1b2-\nc3"]
for _ in range(20):
    add("word", r.choice(KEYS), [r.choice(["a1b2-c3", "a1b2-c3d4", "x"])])

for case in cases:  # ROUGE adds 1e-8 to a denominator: 15 digits tell it from a formula without
    case["score"] = round(case["score"], 15)
json.dump(cases, open(out, "w"), ensure_ascii=False, indent=0)
print(len(cases), "cases")
