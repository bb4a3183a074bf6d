/*
 * Regular expressions of tokenizer.json in Oniguruma's Ruby syntax (UTF-8), run by PCRE2. Different
 * constructs are rewritten (\s \w \v \uHHHH, script names) or refused (\h \b, back references,
 * nested classes, && in a class, {,n}, ...).
 */
#ifndef KVD_MODEL_TEXT_TOKENIZER_REGEX_H
#define KVD_MODEL_TEXT_TOKENIZER_REGEX_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct kvd_regex kvd_regex;

/* Compiles a pattern, or a text to match if `literal`. On failure returns NULL and fills *err. */
kvd_regex *kvd_regex_new(const char *pattern, size_t len, bool literal, kvd_err *err);
/* Compiles {"String": literal} or {"Regex": pattern}. On failure returns NULL and fills *err. */
kvd_regex *kvd_regex_parse(const json_t *spec, kvd_err *err);
void kvd_regex_free(kvd_regex *r);

/* Iterator over the matches in one text; kvd_scan_text starts the next text. */
typedef struct {
    const kvd_regex *regex;
    void *match_data, *limits;
    const char *text;
    size_t len, at, last_end;
    bool matched_before, open;
    /* After kvd_scan_next returned 0: no match begins before byte `known`. */
    size_t known;
    size_t window;
    size_t searches;
    /* Processor time in seconds at the first speed check, or 0. */
    double clock;
    /* Byte reached at the first speed check. */
    size_t clock_at;
    /* Processor time in seconds at the last speed check. */
    double checked;
} kvd_scan;

int kvd_scan_start(kvd_scan *s, const kvd_regex *r, kvd_err *err);
/*
 * `text` (valid UTF-8) must stay allocated. `open`: finds only matches independent of following
 * text.
 */
void kvd_scan_text(kvd_scan *s, const char *text, size_t len, bool open);
/*
 * Finds the next match: returns 1, 0 if none is left, -1 with *err if interrupted or too slow.
 * Skips empty matches after a match.
 */
int kvd_scan_next(kvd_scan *s, size_t *begin, size_t *end, kvd_err *err);
void kvd_scan_release(kvd_scan *s);

#endif
