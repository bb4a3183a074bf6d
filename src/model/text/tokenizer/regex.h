/*
 * Regular expressions of tokenizer.json, written for Oniguruma (Ruby syntax, UTF-8) and run by
 * PCRE2. Constructs that the two read differently are rewritten or refused.
 */
#ifndef KVD_MODEL_TEXT_TOKENIZER_REGEX_H
#define KVD_MODEL_TEXT_TOKENIZER_REGEX_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct kvd_regex kvd_regex;

/*
 * Compiles a pattern. If `literal`, matches the text itself. On failure returns NULL and fills
 * *err.
 */
kvd_regex *kvd_regex_new(const char *pattern, size_t len, bool literal, kvd_err *err);
/*
 * Compiles a pattern of tokenizer.json, {"String": ...} or {"Regex": ...}. On failure returns NULL
 * and fills *err.
 */
kvd_regex *kvd_regex_parse(const json_t *spec, kvd_err *err);
void kvd_regex_free(kvd_regex *r);

/* Iterator over the matches of a pattern in one text. kvd_scan_text starts the next text. */
typedef struct {
    const kvd_regex *regex;
    void *match_data, *limits;
    const char *text;
    size_t len, at, last_end;
    bool matched_before, open;
    /* When kvd_scan_next has returned 0, no match begins in the bytes before `known`. */
    size_t known;
    size_t window;
    size_t searches;
    /* Processor time in seconds at the first check of the search's speed, or 0. */
    double clock;
    /* Byte that the search had reached at the first check of its speed. */
    size_t clock_at;
    /* Processor time in seconds at the last check of the search's speed. */
    double checked;
} kvd_scan;

int kvd_scan_start(kvd_scan *s, const kvd_regex *r, kvd_err *err);
/*
 * Begins a search in `text`, UTF-8 that must stay allocated. `open` means that more text may
 * follow.
 */
void kvd_scan_text(kvd_scan *s, const char *text, size_t len, bool open);
/* Finds the next match, bytes [*begin, *end). Returns 1, 0 if none is left, or -1 with *err. */
int kvd_scan_next(kvd_scan *s, size_t *begin, size_t *end, kvd_err *err);
void kvd_scan_release(kvd_scan *s);

#endif
