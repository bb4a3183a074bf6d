/*
 * Patterns of tokenizer.json. They are written for Oniguruma (Ruby syntax, UTF-8); PCRE2 runs
 * them. What the two read differently is rewritten (\s \w \v \uHHHH, script names), or refused
 * by name (\h \b, back references, nested classes and && in a class, {,n}, ...).
 *
 * Character classes follow the Unicode version of the installed PCRE2 (14.0 for PCRE2 10.42): a
 * character that became a letter later is not a letter here.
 */
#ifndef KVD_MODEL_TOKENIZER_REGEX_H
#define KVD_MODEL_TOKENIZER_REGEX_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct kvd_regex kvd_regex;

/* Compiles a pattern; literal: the bytes themselves are looked for. NULL on failure. */
kvd_regex *kvd_regex_new(const char *pattern, size_t len, bool literal, kvd_err *err);
/* The same from {"String": ...} or {"Regex": ...}. */
kvd_regex *kvd_regex_parse(const json_t *spec, kvd_err *err);
void kvd_regex_free(kvd_regex *r);

/* One walk over the matches of one text; texts follow each other with kvd_scan_text. */
typedef struct {
    const kvd_regex *regex;
    void *match_data;
    const char *text;
    size_t len, at, last_end;
    bool matched_before;
} kvd_scan;

int kvd_scan_start(kvd_scan *s, const kvd_regex *r, kvd_err *err);
/* text is valid UTF-8 and stays where it is until the walk over it is done. */
void kvd_scan_text(kvd_scan *s, const char *text, size_t len);
/*
 * Next match in [*begin, *end): 1 found, 0 none left, -1 error (match limit). Matches do not
 * overlap; an empty one right behind the previous match is passed over.
 */
int kvd_scan_next(kvd_scan *s, size_t *begin, size_t *end, kvd_err *err);
void kvd_scan_release(kvd_scan *s);

#endif
