#!/usr/bin/env python3
"""Writes tests/data/benchmark_prompts.json: items of benchmarks with the prompts of their authors' code.

Usage: make_benchmark_prompts.py LONGBENCH INFINITEBENCH MINFERENCE OUT.json, with clones (bare or not)
of github.com/THUDM/LongBench, OpenBMB/InfiniteBench and microsoft/MInference.

Or: make_benchmark_prompts.py GSM8K-COT.yaml OUT.json, which writes tests/data/gsm8k_shots.json: prompts of GSM8K with
examples, as lm-evaluation-harness builds them. The file is lm_eval/tasks/gsm8k/gsm8k-cot.yaml of
github.com/EleutherAI/lm-evaluation-harness (version 3.0). A prompt is the first N examples and then the question: each is
doc_to_text, and for an example a space, its target and an empty line (the harness's target_delimiter and
fewshot_delimiter). Needs jinja2 and PyYAML.
"""
import json
import subprocess
import sys


def gsm8k(path, out_path):
    import jinja2
    import yaml

    task = yaml.safe_load(open(path, encoding="utf-8"))
    text = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(task["doc_to_text"])
    shots = [(text.render(question=s["question"]), s["target"]) for s in task["fewshot_config"]["samples"]]
    question = "Max {input} has 2 balls\n and 3 bones. How many things?"
    out = []
    for n in (1, 5, task["num_fewshot"]):
        context = "".join(f"{a} {b}\n\n" for a, b in shots[:n])
        out.append({"shots": n, "question": question, "context": context, "prompt": context + text.render(question=question),
                    "stop": task["generation_kwargs"]["until"][0]})
    with open(out_path, "w", encoding="utf-8") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


if len(sys.argv) == 3:
    gsm8k(*sys.argv[1:])
    sys.exit()


def source(repo, path):
    return subprocess.check_output(["git", "-C", repo, "show", "HEAD:" + path], text=True)


def table(text, name):
    """The dictionary that a source text assigns to a name."""
    start = text.index("\n" + name + " = {") + 1
    space = {}
    exec(text[start:text.index("\n}\n", start) + 2], space)
    return space[name]


longbench, infinite, minference, out = sys.argv[1:5]
context, question = "A {context} of\n two lines.", "What {input} is it?"
options = ["the cat", "a dog", "C", "none {A}"]
letters = dict(zip(("OPTION_A", "OPTION_B", "OPTION_C", "OPTION_D"), options))
cases = []


def add(file, item, prompt, most, later=()):
    cases.append({"file": file, "item": item, "prompt": prompt, "max_new_tokens": most, "later": list(later)})


prompts = json.loads(source(longbench, "LongBench/config/dataset2prompt.json"))
most = json.loads(source(longbench, "LongBench/config/dataset2maxlen.json"))
for name in prompts:
    if name in ("multifieldqa_zh", "dureader", "vcsum"):  # need a word segmenter
        continue
    answer = {"passage_retrieval_en": "Paragraph 3", "passage_retrieval_zh": "段落3"}.get(name, "x")
    item = {"context": context, "input": question, "answers": [answer], "all_classes": ["x", "y"], "dataset": name}
    add("data.jsonl", item, prompts[name].format(**item), most[name])
    add("data.jsonl", {**item, "dataset": name + "_e"}, prompts[name].format(**item), most[name])

v2 = source(longbench, "prompts/0shot.txt").replace("$DOC$", context).replace("$Q$", question)
for letter, text in zip("ABCD", options):
    v2 = v2.replace("$C_%s$" % letter, text)
add("data.jsonl", {"question": " " + question + "\n", "context": "\n" + context, "answer": "B",
                   **{"choice_" + x: t + " " for x, t in zip("ABCD", options)}}, v2, 128)

base = table(source(infinite, "src/prompt.py"), "yarn_mistral_templates")
most = table(source(infinite, "src/eval_utils.py"), "DATA_NAME_TO_MAX_NEW_TOKENS")
for name in ("passkey", "number_string", "kv_retrieval", "longbook_choice_eng", "longbook_qa_eng", "longdialogue_qa_eng"):
    add(name + ".jsonl", {"context": context, "input": question, "answer": ["a dog"], "options": options},
        base[name].format(context=context, input=question, question=question, **letters), most[name])

text = source(minference, "scbench/eval_utils.py")
first, later = table(text, "multiturn_templates"), table(text, "multiturn_follow_up_templates")
most = table(text, "DATA_NAME_TO_MAX_NEW_TOKENS")
for name in ("scbench_kv", "scbench_prefix_suffix", "scbench_choice_eng", "scbench_qa_eng", "scbench_vt", "scbench_many_shot"):
    turns = [{"input": question, "answer": "a dog", "options": options}, {"input": "And now?", "answer": "C", "options": options}]
    add(name + ".jsonl", {"context": context, "multi_turns": turns},
        first[name].format(context=context, input=question, question=question, **letters), most[name],
        [later[name].format(pre_ans="", input="And now?", question="And now?", **letters)])

json.dump(cases, open(out, "w"), ensure_ascii=False, indent=0)
print(len(cases), "items")
