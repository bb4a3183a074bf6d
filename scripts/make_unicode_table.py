#!/usr/bin/env python3
"""Writes src/model/tokenizer/unicode_table.c: what NFC and NFD need to know of Unicode 9.0.

Version 9.0 is what Hugging Face tokenizers normalizes by; later characters are left alone.

Canonical combining classes as ranges, canonical decompositions and compositions as pairs. Hangul syllables are
computed, not listed. Usage: make_unicode_table.py > src/model/tokenizer/unicode_table.c
"""
import unicodedata as u

# Marks and composites assigned after Unicode 9.0, up to 14.0. Python knows no ages.
LATER = [
    (0x7fd, 0x7fd), (0x898, 0x89f), (0x8ca, 0x8d3), (0x9fe, 0x9fe), (0xc3c, 0xc3c), (0xd3b, 0xd3c), (0xeba,
    0xeba), (0x1715, 0x1715), (0x1abf, 0x1ace), (0x1df6, 0x1dfa), (0xa82c, 0xa82c), (0x10d24, 0x10d27),
    (0x10eab, 0x10eac), (0x10f46, 0x10f50), (0x10f82, 0x10f85), (0x11070, 0x11070), (0x1133b, 0x1133b),
    (0x1145e, 0x1145e), (0x11839, 0x1183a), (0x11938, 0x11938), (0x1193d, 0x1193e), (0x11943, 0x11943),
    (0x119e0, 0x119e0), (0x11a34, 0x11a34), (0x11a47, 0x11a47), (0x11a99, 0x11a99), (0x11d42, 0x11d42),
    (0x11d44, 0x11d45), (0x11d97, 0x11d97), (0x16ff0, 0x16ff1), (0x1e130, 0x1e136), (0x1e2ae, 0x1e2ae),
    (0x1e2ec, 0x1e2ef),
]
assert u.unidata_version <= "14.0.0", "add what is new since 14.0 to LATER"

ranges = []
pairs = []
composed = []
for c in range(0x110000):
    if 0xD800 <= c < 0xE000 or any(a <= c <= b for a, b in LATER):
        continue
    ch = chr(c)
    ccc = u.combining(ch)
    if ccc:
        if ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == ccc:
            ranges[-1][1] = c
        else:
            ranges.append([c, c, ccc])
    d = u.decomposition(ch)
    if d and not d.startswith("<") and not 0xAC00 <= c <= 0xD7A3:
        p = [int(x, 16) for x in d.split()]
        assert len(p) in (1, 2)
        pairs.append((c, p[0], p[1] if len(p) == 2 else 0))
        # a pair composes again unless it is excluded (non-starters, some scripts)
        if len(p) == 2 and u.normalize("NFC", ch) == ch:
            composed.append((c, p[0], p[1]))


def rows(items, form, per_line):
    for i in range(0, len(items), per_line):
        print("    " + " ".join(form(x) for x in items[i:i + per_line]))


print("""/*
 * Written by scripts/make_unicode_table.py from the Unicode Character Database, version 9.0; not edited.
 */
#include "model/tokenizer/unicode_table.h"

/* clang-format off */
""")
print("const kvd_unicode_class kvd_unicode_classes[] = {")
rows(ranges, lambda r: "{0x%x, 0x%x, %d}," % tuple(r), 5)
print("};\nconst size_t kvd_unicode_n_classes = %d;\n" % len(ranges))
print("const kvd_unicode_pair kvd_unicode_pairs[] = {")
rows(pairs, lambda r: "{0x%x, 0x%x, 0x%x}," % r, 4)
print("};\nconst size_t kvd_unicode_n_pairs = %d;\n" % len(pairs))
print("const kvd_unicode_pair kvd_unicode_compositions[] = {")
rows(sorted(composed, key=lambda r: r[1:]), lambda r: "{0x%x, 0x%x, 0x%x}," % r, 4)
print("};\nconst size_t kvd_unicode_n_compositions = %d;" % len(composed))
