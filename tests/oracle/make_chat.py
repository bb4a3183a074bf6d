#!/usr/bin/env python3
"""Writes tests/data/chat.json: conversations as published chat templates render them.

usage: make_chat.py FOLDER [FORM ...]

FOLDER holds templates as NAME.jinja; the names are in the table below. If forms are named, only
these are made anew. The templates are run by jinja2 with the settings of transformers' apply_chat_template,
and are not copied. The file holds the rendered conversations and the tokens that the templates
write. Needs jinja2 (3.1.6 was used).

Sources of the templates: llama.cpp (models/templates, tests/test-chat-template.cpp), and the list
of templates of GGUF files in huggingface.js (packages/ollama-utils/src/chat-template-automap.ts).
"""

import json
import os
import sys

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Texts of the user, with white space at both ends, and answers of the assistant.
USERS = [" \n What is 6 * 7?\u2003", "And that\n\n twice? \n", "\tThank you  "]
ANSWERS = ["It is 42.", "84"]

DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
LLAMA = ("<|begin_of_text|>", "<|eot_id|>")
MISTRAL = ("<s>", "</s>")

# form: templates, (bos_token, eos_token), text that the template writes before an earlier answer and
# that the model writes itself
FORMS = {
    "chatml": (["openhermes"], ("<s>", "<|im_end|>"), ""),
    "qwen2": (["qwen2"], (None, "<|im_end|>"), ""),
    "qwen2.5": (["qwen2.5", "qwen2.5-small"], (None, "<|im_end|>"), ""),
    "qwen3": (["qwen3"], (None, "<|im_end|>"), ""),
    "llama3": (["llama3"], LLAMA, ""),
    "llama3.1": (["llama3.1", "llama3.2", "llama3.3"], LLAMA, ""),
    "gemma": (["gemma2", "gemma3-1b", "gemma3-270m"], ("<bos>", "<eos>"), ""),
    "mistral-v0.1": (["mistral-v0.1"], MISTRAL, ""),
    "mistral-v0.2": (["mistral-v0.2"], MISTRAL, ""),
    "mistral-v1": (["mistral-v1", "mixtral-8x7b"], MISTRAL, " "),
    "mistral-v3": (["mistral-v3", "mixtral-8x22b", "mistral-v7"], MISTRAL, " "),
    "mistral-tekken": (["mistral-nemo", "mistral-small"], MISTRAL, ""),
    "phi3": (["phi3-medium", "phi3-mini", "phi3.5"], ("<s>", "<|endoftext|>"), ""),
    "phi4-mini": (["phi4-mini"], ("<|endoftext|>", "<|endoftext|>"), ""),
    "phi4": (["phi4"], ("<|endoftext|>", "<|im_end|>"), ""),
    "gpt-oss": (["gpt-oss"], ("<|startoftext|>", "<|return|>"), "<|channel|>final<|message|>"),
    "olmo2": (["olmo2"], ("<|endoftext|>", "<|endoftext|>"), ""),
    "glm4": (["glm4"], (None, "<|endoftext|>"), "\n"),
    "deepseek-v2": (["deepseek-v2"], DEEPSEEK, " "),
    "deepseek-v3": (["deepseek-v2.5", "deepseek-v3"], DEEPSEEK, ""),
    "deepseek-r1": (["r1-distill-qwen", "r1-distill-llama"], DEEPSEEK, ""),
    "llama2": (["llama2-chat"], MISTRAL, " "),
}

def render(form, template, tokens, users, answers):
    def refuse(message):
        raise ValueError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.globals["raise_exception"] = refuse
    if form == "gpt-oss":  # The date of the fixed system message; Llama's templates have their own.
        env.globals["strftime_now"] = lambda how: {"%Y-%m-%d": "2025-08-05"}[how]
    messages = []
    for i, user in enumerate(users):
        messages.append({"role": "user", "content": user})
        messages += [{"role": "assistant", "content": answers[i]}] if i < len(answers) else []
    given = {name: token for name, token in zip(("bos_token", "eos_token"), tokens) if token is not None}
    return env.from_string(template).render(messages=messages, add_generation_prompt=True, **given)


def main():
    folder, wanted = sys.argv[1], sys.argv[2:] or FORMS
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "chat.json")
    made = {x["form"]: x for x in json.load(open(path, encoding="utf-8"))["forms"]} if sys.argv[2:] else {}
    out = []
    for form, (names, tokens, head) in FORMS.items():
        if form not in wanted:
            out.append(made[form])
            continue
        seen = set()
        for name in names:
            with open(os.path.join(folder, name + ".jinja"), encoding="utf-8", newline="") as f:
                template = f.read()
            seen.add((render(form, template, tokens, USERS[:1], []), render(form, template, tokens, USERS, ANSWERS)))
        assert len(seen) == 1, (form, seen)
        one, three = seen.pop()
        out.append({"form": form, "templates": names, "bos": tokens[0], "eos": tokens[1],
                    "answers": [head + a for a in ANSWERS], "one": one, "three": three})
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"users": USERS, "forms": out}, f, ensure_ascii=False, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
