/* Regular expressions of tokenizer.json, written for Oniguruma and run by PCRE2. Constructs that
 * the two read differently are rewritten or refused. */
#ifndef KVD_MODEL_TEXT_TOKENIZER_REGEX_H
#define KVD_MODEL_TEXT_TOKENIZER_REGEX_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct kvd_regex kvd_regex;

/* Compiles a regular expression or, if `literal`, a plain text that matches itself. */
kvd_regex *kvd_regex_new(const char *pattern, size_t len, bool literal, kvd_err *err);
/* Compiles the pattern of a JSON object {"String": ...} (plain text) or {"Regex": ...}. */
kvd_regex *kvd_regex_parse(const json_t *spec, kvd_err *err);
void kvd_regex_free(kvd_regex *r);

/* iterator over the matches of a pattern in a text; kvd_scan_text starts the next text */
typedef struct {
    const kvd_regex *regex;
    void *match_data, *limits;
    const char *text;
    size_t len, at, last_end;
    bool matched_before, open;
    /* valid after kvd_scan_next returned 0: if more text follows, the next match begins at this
     * byte or later */
    size_t known;
    size_t window;
    size_t searches;
    /* processor time in seconds when the speed of this regex search was first measured; 0 before
     * that */
    double clock;
    /* byte position in the text when the speed of this regex search was first measured */
    size_t clock_at;
    /* processor time in seconds when the speed of this regex search was last measured */
    double checked;
} kvd_scan;

int kvd_scan_start(kvd_scan *s, const kvd_regex *r, kvd_err *err);
/* Begins a regex search in UTF-8 `text`, which must stay allocated. `open`: more may follow. */
void kvd_scan_text(kvd_scan *s, const char *text, size_t len, bool open);
/* Finds the regex's next match [*begin, *end). Returns 1, 0 if none is left, -1 with *err. */
int kvd_scan_next(kvd_scan *s, size_t *begin, size_t *end, kvd_err *err);
void kvd_scan_release(kvd_scan *s);

#endif
