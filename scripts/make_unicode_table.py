#!/usr/bin/env python3
"""Writes src/model/tokenizer/unicode_table.c: what NFC and NFD need to know of Unicode.

Canonical combining classes as ranges, canonical decompositions and compositions as pairs. Hangul syllables are
computed, not listed. Usage: make_unicode_table.py > src/model/tokenizer/unicode_table.c
"""
import unicodedata as u

ranges = []
pairs = []
composed = []
for c in range(0x110000):
    if 0xD800 <= c < 0xE000:
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
 * Written by scripts/make_unicode_table.py from the Unicode Character Database %s; not edited.
 */
#include "model/tokenizer/unicode_table.h"

/* clang-format off */
""" % u.unidata_version)
print("const kvd_unicode_class kvd_unicode_classes[] = {")
rows(ranges, lambda r: "{0x%x, 0x%x, %d}," % tuple(r), 5)
print("};\nconst size_t kvd_unicode_n_classes = %d;\n" % len(ranges))
print("const kvd_unicode_pair kvd_unicode_pairs[] = {")
rows(pairs, lambda r: "{0x%x, 0x%x, 0x%x}," % r, 4)
print("};\nconst size_t kvd_unicode_n_pairs = %d;\n" % len(pairs))
print("const kvd_unicode_pair kvd_unicode_compositions[] = {")
rows(sorted(composed, key=lambda r: r[1:]), lambda r: "{0x%x, 0x%x, 0x%x}," % r, 4)
print("};\nconst size_t kvd_unicode_n_compositions = %d;" % len(composed))
