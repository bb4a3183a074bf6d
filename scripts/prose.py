#!/usr/bin/env python3
"""Finds sentences that the writing rules of CONTRIBUTING.md refuse, in comments, messages and documents.

usage: prose.py [PATH ...]      default: every tracked source file, script, page and the changelog

Prints FILE:LINE: what is wrong, one line per finding; exit status 1 if there is any. Lines of
scripts/prose-allowed.txt (FILE: TEXT, TEXT being a part of the line) are exceptions.
"""
import os
import re
import subprocess
import sys

CODE = (".c", ".h", ".cu", ".cuh")
SCRIPTS = (".sh", ".py", ".gp", ".mk", "Makefile")
COLUMNS = 100
# Most words of a comment in a source file after its first comment. Headers hold contracts and may need more.
MOST_WORDS = 45
OPENING = re.compile(r"^(What|Whether|Where|Of|Those|That which|So many|As many|The same)\b(?! follows)")
# A later sentence of a comment of C that opens so leans on the sentence before it.
LATER = re.compile(r"[.!?] (What|Whether|Where|Of|Those|That which|So many)\b(?!\?)")
WORDS = re.compile(
    r"\b(doors?|settle[sd]?|hush|tap(?:s|ped)?|hands? out|handed out|at hand|none the less|nonetheless|goes? with|went with|"
    r"stands?|stood|lies|lie|lay|behind|beside|besides|not so|and their kin|unawares|somebody|nobody asked|bears)\b",
    re.IGNORECASE)
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*(.*?)\*/|//([^\n]*)', re.DOTALL)


def tracked(paths):
    patterns = paths or ["src", "include", "examples", "tests", "scripts", "docs", "experiments", "plots", "results", "Makefile",
                         "README.md", "CHANGELOG.md", "CONTRIBUTING.md"]
    listed = subprocess.run(["git", "ls-files", "-z", "--", *patterns], check=True, capture_output=True,
                            text=True).stdout.split("\0")
    return [f for f in listed if f.endswith(CODE + SCRIPTS + (".md",)) and os.path.isfile(f)]


def allowed():
    path = os.path.join(os.path.dirname(__file__), "prose-allowed.txt")
    lines = [x.rstrip("\n") for x in open(path, encoding="utf-8")] if os.path.exists(path) else []
    return [tuple(x.split(": ", 1)) for x in lines if x and not x.startswith("#")]


def prose_of_code(text):
    """(line number, text) of every comment of a C file."""
    for m in COMMENT.finditer(text):
        body = m.group(1) if m.group(1) is not None else m.group(2)
        if body:
            lines = [re.sub(r"^\s*\*+ ?", "", x).strip() for x in body.strip().split("\n")]
            yield text.count("\n", 0, m.start()) + 1, " ".join(lines).strip()


def prose_of_script(text):
    """(line number, text) of every run of comment lines of a script or makefile, code spans removed."""
    for m in re.finditer(r"(?:^[ \t]*#(?!!).*\n?)+", text, re.MULTILINE):
        lines = [x.strip().lstrip("#").strip() for x in m.group(0).strip().split("\n")]
        yield text.count("\n", 0, m.start()) + 1, re.sub(r"`[^`]*`", "", " ".join(lines).strip())


def prose_of_page(text):
    """(line number, text) of every line of a Markdown page outside code blocks, code spans removed."""
    fenced = False
    for n, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield n, re.sub(r"`[^`]*`|\]\([^)]*\)", "", line)


def too_long(path, text):
    fenced = False
    for n, line in enumerate(text.split("\n"), 1):
        if path.endswith(".md"):
            fenced ^= line.lstrip().startswith("```")
            # tables, code blocks and lines that one link or one code span makes long
            if fenced or line.startswith(("|", "    ", "[")) or not re.search(r"\S\s+\S", line[COLUMNS:] and line[:COLUMNS]):
                continue
        elif re.search(r'"', line):
            continue
        if len(line) > COLUMNS:
            yield n, f"{len(line)} columns, {COLUMNS} are allowed"


def findings(path):
    text = open(path, encoding="utf-8").read()
    if not path.endswith(SCRIPTS):  # command lines may be long
        yield from too_long(path, text)
    sources = path.endswith((".c", ".cu"))
    parts = prose_of_code if path.endswith(CODE) else prose_of_script if path.endswith(SCRIPTS) else prose_of_page
    for i, (n, prose) in enumerate(parts(text)):
        words = len(re.findall(r"\b[A-Za-z]{2,}\b", prose))
        if sources and i and words > MOST_WORDS:
            yield n, f"a comment of {words} words, {MOST_WORDS} are allowed: {prose[:70]}"
        if not path.endswith(".md") and OPENING.match(prose):
            yield n, f"a comment opens with '{OPENING.match(prose).group(1)}': {prose[:70]}"
        for m in LATER.finditer(prose) if path.endswith(CODE) else ():
            yield n, f"a sentence opens with '{m.group(1)}': {prose[m.start() + 2:m.start() + 72]}"
        for m in WORDS.finditer(prose):
            yield n, f"'{m.group(0)}': {prose[max(0, m.start() - 30):m.end() + 30]}"


def main():
    exceptions = allowed()
    found = 0
    for path in tracked(sys.argv[1:]):
        for n, what in findings(path):
            if any(path == f and part in what for f, part in exceptions):
                continue
            print(f"{path}:{n}: {what}")
            found += 1
    print(f"{found} findings" if found else "prose: nothing to mend")
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
