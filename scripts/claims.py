#!/usr/bin/env python3
"""Holds numbers in documents to the ledger of the papers' claims, which kvdim-report makes.

usage: claims.py LEDGER.csv RESULTS.md DOCUMENT.md... [--update]

RESULTS.md is the whole ledger as a table. In a document, a table between

    <!-- ledger: ID | ID -->        and        <!-- /ledger -->

has one row per claim named; the list of names may run over several lines. A number in a paragraph is held by a comment after it:

    ... 1.057 times ...   <!-- ledger ID has 1.057 times -->

Prints FILE:LINE and the difference for every text that the ledger does not give; exit status 1 if
there is one. --update writes the tables anew and still fails for paragraphs.
"""
import csv
import re
import sys

BLOCK = re.compile(r"(<!-- ledger: (.+?) -->\n)(.*?)(<!-- /ledger -->)", re.DOTALL)
INLINE = re.compile(r"<!-- ledger (?!: )(\S.*?) has (.+?) -->")


def first_part(ours):
    """The measured number, and that by which the trend is judged, without further measures."""
    if ours.startswith("not measured"):
        return ours.split(";")[0].strip()
    first, *others = ours.split("; ")
    return "; ".join([first] + [x for x in others if x.startswith(("holds at ", "trend ("))])


def cell(text):
    return text.lstrip("'").replace("|", "\\|")


def table(rows, claims):
    head = "| claim | published | measured | verdict |\n|---|---|---|---|\n"
    return head + "".join(
        f"| {cell(r['claim']) + ' ' if claims else ''}({r['id']}) | {cell(r['published'])} | "
        f"{cell(first_part(r['ours']))} | {r['verdict']} |\n" if claims else
        f"| {r['id']} | {cell(r['published'])} | {cell(first_part(r['ours']))} | {r['verdict']} |\n"
        for r in rows)


def main(argv):
    update = "--update" in argv
    argv = [a for a in argv if a != "--update"]
    if len(argv) < 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    with open(argv[0], newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    for r in rows:
        r["ours"] = r["ours"].lstrip("'")
    by_id = {r["id"]: r for r in rows}
    wrong = []

    def rows_of(ids, where):
        found = []
        for one in (" ".join(x.split()) for x in ids.split("|")):
            if one in by_id:
                found.append(by_id[one])
            else:
                wrong.append(f"{where}: the ledger has no claim '{one}'")
        return found

    whole = ("# The ledger of the papers' claims\n\nMade by `make claims UPDATE=1` from the committed files; "
             "`make claims` fails if it differs.\nClaims and rules are in "
             "[`data/paper/ledger.csv`](../data/paper/ledger.csv). Rates, latencies and\n"
             "throughputs of services are simulated by kvdim-serve from times of batches on the GPU that is\nnamed.\n\n"
             + table(rows, False))
    old = open(argv[1], encoding="utf-8").read() if update is False else ""
    if update:
        open(argv[1], "w", encoding="utf-8").write(whole)
    elif old != whole:
        a, b = old.split("\n"), whole.split("\n")
        at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        wrong.append(f"{argv[1]}:{at + 1}: '{a[at] if at < len(a) else ''}' is "
                     f"'{b[at] if at < len(b) else ''}' in the ledger; make claims UPDATE=1 writes it anew")

    for path in argv[2:]:
        text = open(path, encoding="utf-8").read()

        def block(m, path=path, text=text):
            line = text.count("\n", 0, m.start()) + 1
            new = table(rows_of(m.group(2), f"{path}:{line}"), True)
            if m.group(3) != new and not update:
                first = line + m.group(1).count("\n")
                for i, (x, y) in enumerate(zip(m.group(3).split("\n"), new.split("\n"))):
                    if x != y:
                        wrong.append(f"{path}:{first + i}: '{x}' is '{y}' in the ledger; "
                                     "make claims UPDATE=1 writes the table anew")
                        break
                else:
                    wrong.append(f"{path}:{line}: the table has another number of rows than its heading")
            return m.group(1) + new + m.group(4)

        changed = BLOCK.sub(block, text)
        for m in INLINE.finditer(text):
            line = text.count("\n", 0, m.start()) + 1
            before = " ".join(text[:m.start()].rsplit("\n\n", 1)[-1].split())
            for r in rows_of(m.group(1), f"{path}:{line}"):
                if m.group(2) not in r["ours"]:
                    wrong.append(f"{path}:{line}: '{m.group(2)}' is not what the ledger says of {r['id']}: "
                                 f"{r['ours'][:200]}")
                if m.group(2) not in before:
                    wrong.append(f"{path}:{line}: the paragraph does not say '{m.group(2)}'")
        if update and changed != text:
            open(path, "w", encoding="utf-8").write(changed)
    for w in wrong:
        print(w, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
